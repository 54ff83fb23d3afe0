"""Comparisons from the rows of docs/results: distances to Retrain or to the oracles, and what they cost."""

import json
import lzma
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.bench.columns import RETRAIN, Row
from benchmarks.bench.comparing import SCORES, Compared
from benchmarks.bench.comparing import comparison as bench_comparison
from benchmarks.bench.experiment import found
from server.requests.comparisons import Comparison

RESULTS = Path("docs/results")


@dataclass(frozen=True, slots=True)
class Case:
    """One table of docs/results that is compared: its experiment, setting and case, and its name here.

    beside_oracles: whether the distance is KLoM of the forgotten examples, not that of accuracies.
    is_timed: whether its seconds were taken on a machine that did nothing else.
    in_plans: whether plans show it; not where the distance is no points.
    has_every_method: whether it counts over data sets; not where only some methods were measured.
    """

    key: str
    experiment: str
    setting: str
    case: str
    title: str
    beside_oracles: bool = False
    is_timed: bool = True
    in_plans: bool = True
    input_dimensions: int = 3
    has_every_method: bool = True


def _medium(data_set: str, title: str, case: str, ending: str = "") -> Iterator[Case]:
    """Yield a case of a data set's medium experiment in both of its settings."""
    experiment = {"cifar10": "cifar10-medium", "fashion": "fashion-mnist-medium"}[data_set]
    for setting, skew in (("IID", ""), ("α = 0.1", "-skew")):
        name = f"{title}, {setting}, {case}"
        yield Case(f"{data_set}{skew}{ending}", experiment, setting, case, name)


def _held_out(case: str, ending: str = "") -> Iterator[Case]:
    """Yield a case of the data sets that no method was tuned on; the machine was busy."""
    for data_set, title in _HELD_OUT.items():
        if case == "one client" or data_set == "heart-disease":
            yield Case(f"{data_set}{ending}", f"held-out-{data_set}", "", case, f"{title}, {case}",
                       is_timed=False, input_dimensions=1, has_every_method=data_set != "reuters-r8")  # fmt: skip


_HELD_OUT = {
    "breast-cancer": "breast cancer, MLP",
    "heart-disease": "heart disease, MLP",
    "reuters-r8": "Reuters R8, linear head",
}

CASES = (
    Case("oracles", "oracles-features-small", "", "one client", "CIFAR-10 features, MLP head, one client",
         beside_oracles=True, is_timed=False, in_plans=False),
    *_medium("cifar10", "CIFAR-10, CNN", "one client"),
    *_medium("fashion", "FashionMNIST, LeNet", "one client"),
    Case("digits", "digits-small", "", "one client", "digits, MLP, one client"),
    Case("rivals", "rivals-small", "", "one client", "digits, MLP, α = 0.5, forty rounds, one client", is_timed=False,
         has_every_method=False),
    *_held_out("one client"),
    *_medium("cifar10", "CIFAR-10, CNN", "half of a client's samples", "-samples"),
    *_medium("fashion", "FashionMNIST, LeNet", "half of a client's samples", "-samples"),
    Case("digits-samples", "digits-small", "", "half of a client's samples",
         "digits, MLP, half of a client's samples"),
    *_held_out("half of a client's samples", "-samples"),
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
    """Return the comparison of one case, without methods that have a title of their own."""
    experiment = found(case.experiment)
    titles = {contender.title for contender in experiment.methods}
    (granularity,) = {item.granularity for item in experiment.cases if item.name == case.case}
    return bench_comparison(
        [row for row in _rows_of_case(case, results) if row["method"] not in titles],
        Compared(
            title=case.title,
            page=f"results/{case.experiment}.md",
            granularity=granularity,
            input_dimensions=case.input_dimensions,
            beside_oracles=case.beside_oracles,
        ),
    )


def spread_of_retrain(case: Case, results: Path = RESULTS) -> float:
    """Return the largest standard deviation over seeds of Retrain's scores, in points."""
    rows = [row for row in _rows_of_case(case, results) if row["method"] == RETRAIN]
    return 100 * max(statistics.stdev(float(row[score]) for row in rows) for score in SCORES)


def _rows_of_case(case: Case, results: Path) -> list[Row]:
    here = (case.setting, case.case)
    return [row for row in rows_of(case.experiment, results) if (row["setting"], row["case"]) == here]
