"""Ridge heads whose deleted records come back, a network's step that is inverted, and the pictures of both."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.bench.figures import save
from benchmarks.data import sites_and_test
from benchmarks.difference.federations import CLIENT, L2, error, first_layer, flat, samples
from benchmarks.difference.gradient_inversion import Inversion, invert
from benchmarks.difference.linear_record import estimated_gram, record_of_ridge
from benchmarks.tables import Row
from unlearning.curvature.gradients import gradient
from unlearning.local import begin, learn, unlearn
from unlearning.tasks import TaskSettings, make_task
from unlearning.training import TrainingSettings, initial_parameters

SHOWN = 6
PICTURES = (
    "FashionMNIST, one record deleted alone. Rows: the record; from both ridge heads and the sums; from both heads and "
    "similar data; from one step of a small CNN. Below each its error over the record's length"
)


def heads(dataset: str, data_dir: str) -> dict[str, Any]:
    """Measure what two exact ridge heads tell of the records deleted between them."""
    lines: list[Row] = []
    shown: dict[str, Any] = {}
    for dtype in ("float64", "float32"):
        settings = TaskSettings(
            dataset=dataset,
            num_clients=10,
            max_examples=1000 if dataset == "digits" else 5000,
            max_test_examples=1000,
            data_dir=data_dir,
            dtype=dtype,
        )
        task, (sites, test) = make_task(settings), sites_and_test(settings)
        start = begin(task, TrainingSettings(), f"exact-ridge l2={L2}")
        learnt = learn(task, sites, start, rounds=2)
        size = sum(map(len, sites.values()))
        grams = {
            "sums": estimated_gram(np.concatenate([flat(one) for one in sites.values()]), size, L2),
            "similar": estimated_gram(flat(test), size, L2),
        }
        before = first_layer(task, learnt.parameters)
        for together in (1, 5):
            errors: dict[str, list[float]] = {name: [] for name in grams}
            right = []
            for start_at in range(0, SHOWN * together, together):
                forgotten = sites[CLIENT].select(np.arange(start_at, start_at + together))
                done = unlearn("exact-ridge", task, learnt, sites, [samples(forgotten)])
                after = first_layer(task, done.parameters)
                found = {name: record_of_ridge(before, after, gram) for name, gram in grams.items()}
                for name, one in found.items():
                    errors[name].append(error(one, forgotten))
                right.append(found["sums"].label in forgotten.targets.tolist())
                if together == 1 and dtype == "float32" and dataset == "fashion-mnist":
                    pictures = {"record": flat(forgotten)[0]} | {
                        name: one.features for name, one in found.items()
                    }
                    for name, values in pictures.items():
                        shown.setdefault(name, []).append(np.round(values, 3).tolist())
            lines.append(
                {
                    "dtype": dtype,
                    "together": together,
                    **{name: float(np.median(values)) for name, values in errors.items()},
                    "classes": f"{sum(right)} of {len(right)}",
                }
            )
    return {"lines": lines, "shown": shown}


def inverted(data_dir: str) -> Row:
    """Invert the gradient of one record at an untrained small CNN, for the records that are shown."""
    settings = TaskSettings(
        dataset="fashion-mnist", model="small-cnn", num_clients=10, max_examples=5000, data_dir=data_dir
    )
    task, (sites, _) = make_task(settings), sites_and_test(settings)
    model = initial_parameters(task, seed=0)
    found, errors = [], []
    for number in range(SHOWN):
        one = sites[CLIENT].select(np.array([number]))
        low, high = float(one.inputs.min()), float(one.inputs.max())
        how = Inversion(steps=100, smoothness=1e-3, low=low, high=high)
        update = gradient(task, model, one)
        picture, _ = invert(task, model, update, one.targets, tuple(one.inputs.shape[1:]), how)
        original = flat(one)[0]
        values = picture.numpy().astype(np.float64).ravel()
        found.append(np.round(values, 3).tolist())
        errors.append(float(np.linalg.norm(values - original) / np.linalg.norm(original)))
    return {"shown": found, "errors": errors}


def draw(rows: dict[str, Any], path: Path) -> bool:
    """Write the picture; return whether there is one."""
    ridge, step = rows.get("ridge fashion-mnist"), rows.get("step")
    if ridge is None or step is None:
        return False
    if "shown" not in ridge or "shown" not in step:  # measured earlier, and drawn then
        return path.exists()
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    shown = [*(ridge["shown"][name] for name in ("record", "sums", "similar")), step["shown"]]
    figure, axes = plt.subplots(4, SHOWN, figsize=(0.9 * SHOWN, 4.1), layout="constrained")
    for line, pictures in zip(axes, shown, strict=True):
        for place, values, original in zip(line, pictures, shown[0], strict=True):
            _show(place, np.array(values), np.array(original))
    save(figure, path)
    plt.close(figure)
    return True


def _show(place: Any, values: NDArray[np.float64], original: NDArray[np.float64]) -> None:
    side = int(np.sqrt(len(values)))
    place.imshow(values.reshape(side, side), cmap="gray", vmin=original.min(), vmax=original.max())
    place.set_axis_off()
    off = float(np.linalg.norm(values - original) / np.linalg.norm(original))
    place.set_title("" if off == 0 else f"{off:.2g}", fontsize=7, y=-0.22)
