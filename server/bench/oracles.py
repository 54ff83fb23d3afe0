"""Many retrained models beside as many unlearned ones: how far apart the two are, as distributions.

An experiment with `oracles: N` has N seeds, which train on the same clients' examples, and N oracles of each case:
models retrained without what the case forgets, with seeds that nobody else has. Of every model the margins of the same
examples are kept. The row `retrain` is a second set of oracles, so its distances are the floor.

Oracles of a linear head or an MLP are trained several at once (`unlearning.batched_training`), others as Retrain is.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from server.bench.client_data import DEALING_SEED, ClientData
from server.bench.columns import ORIGINAL, Row
from server.bench.experiment import Case
from unlearning.durable_files import write_atomically
from unlearning.parameters import Vector
from unlearning.tasks.task import Examples, Task, join
from unlearning.training import predict
from unlearning.verification.klom import klom, summary
from unlearning.verification.margins import margins
from unlearning.verification.u_lira import FEWEST, centred, mixed, u_lira, vulnerability

Margins = dict[str, NDArray[np.float64]]
"""φ of one model (n,) or several (m, n), by `forget`, `retained` and `test`."""

AUDITED = 1_000
"""So many examples of each set are compared; the same in every seed."""


MIXED_SHARE = 0.1
"""So many of the forgotten examples are called the most vulnerable, and as many the least."""


def audited_examples(data: ClientData, case: Case) -> dict[str, Examples]:
    """Return the examples whose margins are compared, by set; `test` is missing where the server has none."""
    generator = np.random.default_rng(DEALING_SEED)
    sets = {"forget": data.forgotten(case), "retained": reduce(join, data.retained(case).values())}
    if data.test is not None:
        sets["test"] = data.test
    return {
        name: examples.select(np.sort(generator.permutation(len(examples))[:AUDITED]))
        for name, examples in sets.items()
    }


def margins_of(task: Task, model: Vector, audited: Mapping[str, Examples]) -> Margins:
    """Return the margins of one model, by set."""
    return {
        name: margins(predict(task, model, examples).astype(np.float64), examples.targets.numpy())
        for name, examples in audited.items()
    }


def stacked(parts: Sequence[Margins]) -> Margins:
    """Return several models' margins, one a row, or several sets of rows one after another."""
    return {name: np.vstack([part[name] for part in parts]) for name in parts[0]} if parts else {}


def save(path: Path, found: Margins) -> None:
    """Write margins durably."""
    content = BytesIO()
    arrays: dict[str, Any] = {name: values.astype(np.float32) for name, values in found.items()}
    np.savez(content, **arrays)
    write_atomically(path, content.getvalue())


def read(path: Path) -> Margins:
    """Return what `save` wrote."""
    with np.load(path) as archive:
        return {name: archive[name].astype(np.float64) for name in archive.files}


def figures(unlearned: Margins, oracles: Margins, original: Margins | None = None) -> dict[str, Any]:
    """Return KLoM of each set and U-LiRA of the forgotten examples; nothing where a model blew up or they are too few.

    original: of the models before, by which the most and the least vulnerable forgotten examples are judged apart.
    shift: by how much more the unlearned models are sure of test examples, in the mean.
    """
    sides = (unlearned, oracles)
    if not all(side and np.isfinite(np.concatenate([*side.values()], axis=1)).all() for side in sides):
        return {}
    row: dict[str, Any] = {"unlearned": len(unlearned["forget"]), "oracles": len(oracles["forget"])}
    for name, values in unlearned.items():
        found = summary(klom(values, oracles[name]))
        row |= {f"klom-{name}": found.p95, f"klom-{name}-mean": found.mean}
    if min(row["unlearned"], row["oracles"]) < FEWEST:
        return row
    attack = u_lira(unlearned["forget"], oracles["forget"])
    row |= {"u-lira": attack.balanced_accuracy, "u-lira-tpr": attack.tpr}
    if original:
        ends = mixed(vulnerability(original["forget"], oracles["forget"]), MIXED_SHARE)
        for name, those in zip(("vulnerable", "protected"), ends, strict=True):
            row[f"u-lira-{name}"] = float(attack.accuracies[those].mean())
    if "test" in unlearned:
        attack = u_lira(*(centred(side["forget"], side["test"]) for side in sides))
        row |= {"u-lira-centred": attack.balanced_accuracy, "u-lira-centred-tpr": attack.tpr}
        row["shift"] = float(unlearned["test"].mean() - oracles["test"].mean())
    return row


def with_figures(rows: Sequence[tuple[Row, Path]], oracles: Margins) -> list[Row]:
    """Return the rows of one case, each with its method's figures under `oracles`: of all its seeds together.

    rows: with the file of the model's margins, which a failed row lacks.
    """
    paths: dict[str, list[Path]] = {}
    for row, path in rows:
        if path.exists():
            paths.setdefault(row["method"], []).append(path)
    of = {name: stacked([read(path) for path in mine]) for name, mine in paths.items()}
    found = {name: figures(mine, oracles, of.get(ORIGINAL)) for name, mine in of.items()}
    return [{**row, "oracles": found.get(row["method"], {})} for row, _ in rows]
