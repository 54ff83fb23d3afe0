"""Many retrained models beside as many unlearned ones: how far apart the two are, as distributions.

An experiment with `oracles: N` has N seeds, which train on the same clients' examples, and N oracles of each case:
models retrained without what the case forgets, with seeds that nobody else has. Of every model the margins of the same
examples are kept. The row `retrain` is a second set of oracles, so its distances are the floor.

Oracles of a linear head or an MLP are trained several at once (`batched_training`), others as Retrain is.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.bench.cases import Case
from benchmarks.bench.client_data import DEALING_SEED, ClientData
from benchmarks.bench.columns import ORIGINAL, Row
from benchmarks.bench.klom import klom, summary
from benchmarks.bench.u_lira import FEWEST, ULira, centred, mixed, u_lira, vulnerability
from unlearning.evaluation import predict
from unlearning.parameters import Vector
from unlearning.requests import Forget
from unlearning.runtime.archive import pack_arrays
from unlearning.runtime.durable_files import write_atomically
from unlearning.tasks.task import Examples, Task, forgotten_mask, join
from unlearning.verification.observations import margins

Margins = dict[str, NDArray[np.float64]]
"""φ of one model (n,) or several (m, n), by `forget`, `retained` and `test`; `had` is 1 where a model was trained on
the example of `forget` before it was unlearned, else 0 (`benchmarks.bench.shadows`)."""

Ends = tuple[NDArray[np.intp], NDArray[np.intp]]
"""Positions among the forgotten examples: of the most vulnerable and of the least."""

AUDITED = 1_000
"""So many examples of each set are compared; the same in every seed."""


MIXED_SHARE = 0.1
"""So many of the forgotten examples are called the most vulnerable, and as many the least."""


def audited_examples(data: ClientData, case: Case) -> dict[str, Examples]:
    """Return the examples whose margins are compared, by set.

    `test` is missing where the server has none, and has no example of a class that is forgotten.
    """
    generator = np.random.default_rng(DEALING_SEED)
    sets = {"forget": data.forget_set(case).examples, "retained": reduce(join, data.retained(case).values())}
    if data.test is not None:
        sets["test"] = data.test
        if case.class_label is not None:
            gone = forgotten_mask(data.test, Forget(classes=frozenset({case.class_label})))
            sets["test"] = data.test.select(~gone)
    return {name: examples.select(_some(generator, len(examples))) for name, examples in sets.items()}


def audited_had(data: ClientData, case: Case) -> NDArray[np.bool_]:
    """Return which of the audited forgotten examples this seed's clients train on."""
    had = data.forget_set(case).had
    return had[_some(np.random.default_rng(DEALING_SEED), len(had))]


def audited_ends(data: ClientData, case: Case) -> Ends | None:
    """Return the two ends of which a mixed case is made; None where the case is not mixed."""
    vulnerable = data.forget_set(case).vulnerable
    if vulnerable is None:
        return None
    audited = vulnerable[_some(np.random.default_rng(DEALING_SEED), len(vulnerable))]
    return np.flatnonzero(audited), np.flatnonzero(~audited)


def _some(generator: np.random.Generator, count: int) -> NDArray[np.intp]:
    """Return positions of the audited among `count` examples; those of the forgotten are drawn first."""
    return np.sort(generator.permutation(count)[:AUDITED])


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
    write_atomically(path, pack_arrays({name: values.astype(np.float32) for name, values in found.items()}))


def read(path: Path) -> Margins:
    """Return what `save` wrote."""
    with np.load(path) as archive:
        return {name: archive[name].astype(np.float64) for name in archive.files}


def figures(unlearned: Margins, oracles: Margins, ends: Ends | None = None) -> dict[str, Any]:
    """Return KLoM of each set and U-LiRA of the forgotten examples; nothing where a model blew up or they are too few.

    ends: the most and the least vulnerable forgotten examples, which are judged apart.
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
    row |= of_ends(attack, ends)
    if "test" in unlearned:
        attack = u_lira(*(centred(side["forget"], side["test"]) for side in sides))
        row |= {"u-lira-centred": attack.balanced_accuracy, "u-lira-centred-tpr": attack.tpr}
        row["shift"] = float(unlearned["test"].mean() - oracles["test"].mean())
    return row


def of_ends(attack: ULira, ends: Ends | None) -> dict[str, Any]:
    """Return U-LiRA of the most and of the least vulnerable examples."""
    if ends is None:
        return {}
    names = ("u-lira-vulnerable", "u-lira-protected")
    return {name: float(attack.accuracies[those].mean()) for name, those in zip(names, ends, strict=True)}


def with_figures(rows: Sequence[tuple[Row, Path]], oracles: Margins, ends: Ends | None = None) -> list[Row]:
    """Return the rows of one case, each with its method's figures under `oracles`: of all its seeds together.

    rows: with the file of the model's margins, which a failed row lacks.
    ends: of a mixed case; of any other they are found by what Original gives away.
    """
    paths: dict[str, list[Path]] = {}
    for row, path in rows:
        if path.exists():
            paths.setdefault(row["method"], []).append(path)
    of = {name: stacked([read(path) for path in mine]) for name, mine in paths.items()}
    if ends is None and oracles and ORIGINAL in of:
        ends = mixed(vulnerability(of[ORIGINAL]["forget"], oracles["forget"]), MIXED_SHARE)
    found = {name: figures(mine, oracles, ends) for name, mine in of.items()}
    return [{**row, "oracles": found.get(row["method"], {})} for row, _ in rows]
