"""Comparisons from the rows of docs/results: distances to Retrain or to the oracles, and what they cost."""

import json
import lzma
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.bench.columns import ORIGINAL, RETRAIN, Row, is_retrain, retrain_for
from benchmarks.bench.experiment import found
from server.requests.plan_data import Comparison, Figures

RESULTS = Path("docs/results")
SCORES = ("test", "retained", "forget")
KLOM = "klom-forget-mean"


@dataclass(frozen=True, slots=True)
class Case:
    """One table of docs/results that is compared: its experiment, setting and case, and its name here.

    beside_oracles: whether the distance is KLoM of the forgotten examples, not that of accuracies.
    is_timed: whether its seconds were taken on a machine that did nothing else.
    in_plans: whether plans show it; not where the distance is no points.
    """

    key: str
    experiment: str
    setting: str
    case: str
    title: str
    beside_oracles: bool = False
    is_timed: bool = True
    in_plans: bool = True


def _medium(data_set: str, title: str, case: str, ending: str = "") -> Iterator[Case]:
    """Yield a case of a data set's medium experiment in both of its settings."""
    experiment = {"cifar10": "cifar10-medium", "fashion": "fashion-mnist-medium"}[data_set]
    for setting, skew in (("IID", ""), ("α = 0.1", "-skew")):
        name = f"{title}, {setting}, {case}"
        yield Case(f"{data_set}{skew}{ending}", experiment, setting, case, name)


CASES = (
    Case("oracles", "oracles-features-small", "", "one client", "CIFAR-10 features, MLP head, one client",
         beside_oracles=True, is_timed=False, in_plans=False),
    *_medium("cifar10", "CIFAR-10, CNN", "one client"),
    *_medium("fashion", "FashionMNIST, LeNet", "one client"),
    Case("digits", "digits-small", "", "one client", "digits, MLP, one client"),
    Case("rivals", "rivals-small", "", "one client", "digits, MLP, α = 0.5, forty rounds, one client", is_timed=False),
    *_medium("cifar10", "CIFAR-10, CNN", "half of a client's samples", "-samples"),
    *_medium("fashion", "FashionMNIST, LeNet", "half of a client's samples", "-samples"),
    Case("digits-samples", "digits-small", "", "half of a client's samples",
         "digits, MLP, half of a client's samples"),
    *_medium("cifar10", "CIFAR-10, CNN", "a class", "-class"),
    *_medium("fashion", "FashionMNIST, LeNet", "a class", "-class"),
    Case("digits-class", "digits-small", "", "a class", "digits, MLP, a class"),
)  # fmt: skip
"""In the order of the page."""


@cache
def rows_of(experiment: str, results: Path = RESULTS) -> list[Row]:
    """Return the committed rows of an experiment."""
    text = lzma.decompress((results / f"{experiment}.jsonl.xz").read_bytes()).decode()
    return [json.loads(line) for line in text.splitlines()]


def comparison(case: Case, results: Path = RESULTS) -> Comparison:
    """Return the comparison of one case, without methods that have no finished seed or a title of their own."""
    experiment = found(case.experiment)
    titles = {contender.title for contender in experiment.methods}
    groups: dict[str, list[Row]] = {}
    for row in rows_of(case.experiment, results):
        if (row["setting"], row["case"]) == (case.setting, case.case) and row["method"] not in titles:
            groups.setdefault(row["method"], []).append(row)
    (granularity,) = {item.granularity for item in experiment.cases if item.name == case.case}
    retrained = {row["seed"]: row for row in groups[RETRAIN]}
    figures = {
        name: _figures(rows, {row["seed"]: row for row in retrain_for(name, groups)}, case)
        for name, rows in groups.items()
        if not is_retrain(name)
    }
    size = next(iter(retrained.values()))["storage"] // 4  # Retrain keeps one model in single precision
    return Comparison(
        title=case.title,
        page=f"results/{case.experiment}.md",
        granularity=granularity,
        num_parameters=size,
        nothing=figures[ORIGINAL],
        retrain=_figures([*retrained.values()], retrained, case),
        methods={name: one for name, one in sorted(figures.items()) if name != ORIGINAL and one.bytes >= 0},
    )


def spread_of_retrain(case: Case, results: Path = RESULTS) -> float:
    """Return the largest standard deviation over seeds of Retrain's scores, in points."""
    rows = [
        row
        for row in rows_of(case.experiment, results)
        if (row["setting"], row["case"], row["method"]) == (case.setting, case.case, RETRAIN)
    ]
    return 100 * max(statistics.stdev(float(row[score]) for row in rows) for score in SCORES)


def _figures(rows: Sequence[Row], retrained: Mapping[int, Row], case: Case) -> Figures:
    done = [row for row in rows if "failed" not in row]
    if not done:
        return Figures(distance=0.0, bytes=-1, seconds=-1, failed=len(rows))
    if case.beside_oracles:
        distances = [row["oracles"][KLOM] for row in done]
    else:
        by_score = (
            [100 * abs(row[score] - retrained[row["seed"]][score]) for row in done] for score in SCORES
        )
        distances = max(by_score, key=statistics.fmean)
    error = statistics.stdev(distances) / math.sqrt(len(done)) if len(done) > 1 else None
    return Figures(
        distance=float(f"{statistics.fmean(distances):.6g}"),
        error=None if error is None else float(f"{error:.3g}"),
        bytes=float(f"{statistics.fmean(row['bytes'] for row in done):.6g}"),
        seconds=float(f"{statistics.fmean(row['seconds'] for row in done):.6g}"),
        failed=len(rows) - len(done),
    )
