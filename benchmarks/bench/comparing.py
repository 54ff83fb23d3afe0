"""Which method ended nearer to retraining, and whether the seeds tell: comparisons from rows.

Methods are compared by the differences d of their distances, seed by seed. One is nearer than another if the interval
mean(d) ± t · s / √n (n seeds, s the standard deviation of d, t the quantile of Student's distribution of n − 1 degrees
of freedom) lies beyond 0. The confidence is 1 − 0.05 / (k − 1) for k methods compared, the model as it was among them:
so all k − 1 statements about one method hold at once with 95 %, and so does the set of places that it can have.

Sources: Student, The Probable Error of a Mean, Biometrika 6, 1908 (paired differences); Dunn, Multiple Comparisons
Among Means, JASA 56, 1961; Mogstad, Romano, Shaikh, Wilhelm, Inference for Ranks, Review of Economic Studies 91, 2024.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy.stats import t as student

from benchmarks.bench.columns import ORIGINAL, RETRAIN, Row, is_retrain, own_retrain
from benchmarks.bench.experiment import Experiment
from server.requests.comparisons import NOTHING, Comparison, Figures
from unlearning.methods.registry import METHODS
from unlearning.requests import Granularity

SCORES = ("test", "retained", "forget")
KLOM = "klom-forget-mean"
ERROR = 0.05
"""How often at most a wrong statement is made about one method."""

Distances = Mapping[int, float]
"""By seed, in points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What `comparison` is of: see `Comparison`. beside_oracles: whether the distance is KLoM, not points."""

    title: str
    page: str
    granularity: Granularity
    input_dimensions: int
    beside_oracles: bool = False


def comparison(rows: Sequence[Row], about: Compared) -> Comparison:
    """Return the comparison of the rows of one setting and case, without methods that have no finished seed.

    A method whose model is of another kind than ordinary training's is left out where its own retraining is missing.
    """
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["method"], []).append(row)
    distances = {
        name: found
        for name in groups
        if not is_retrain(name) and (found := _distances(name, groups, about)) is not None
    }
    nearer = {} if about.beside_oracles else nearer_than(_complete(distances, groups))
    figures = {
        name: _figures(groups[name], found, about, nearer.get(name, ())) for name, found in distances.items()
    }
    retrained = groups[RETRAIN]
    none_off = dict.fromkeys((row["seed"] for row in retrained), 0.0)
    return Comparison(
        title=about.title,
        page=about.page,
        granularity=about.granularity,
        num_parameters=retrained[0]["storage"] // 4,  # Retrain keeps one model in single precision
        input_dimensions=about.input_dimensions,
        num_seeds=len(retrained),
        made_on=_days(rows),
        nothing=figures[ORIGINAL],
        retrain=_figures(retrained, _klom(retrained) if about.beside_oracles else none_off, about, ()),
        methods={name: one for name, one in sorted(figures.items()) if name != ORIGINAL},
    )


def own_comparisons(experiment: Experiment, rows: Sequence[Row]) -> list[Comparison]:
    """Return the comparisons of an app's own runs, a case each that has a finished Original, Retrain and method."""
    found = []
    for case in experiment.cases:
        mine = [row for row in rows if row["case"] == case.name]
        if {ORIGINAL, RETRAIN} < {row["method"] for row in mine}:
            about = Compared(
                title=f"{experiment.title}, {case.name}",
                page="",
                granularity=case.granularity,
                input_dimensions=0,
            )
            found.append(comparison(mine, about))
    return found


def nearer_than(distances: Mapping[str, Distances]) -> dict[str, tuple[str, ...]]:
    """Return by name which others it is nearer than, by more than chance explains."""
    confidence = 1 - ERROR / max(1, len(distances) - 1)
    return {
        name: tuple(
            NOTHING if other == ORIGINAL else other
            for other, theirs in sorted(distances.items())
            if is_nearer(own, theirs, confidence)
        )
        for name, own in distances.items()
    }


def is_nearer(first: Distances, second: Distances, confidence: float) -> bool:
    """Return whether the interval of the paired differences lies beyond 0; never of fewer than two seeds."""
    both = sorted(first.keys() & second.keys())
    if len(both) < 2:
        return False
    differences = [second[seed] - first[seed] for seed in both]
    quantile = float(student.ppf((1 + confidence) / 2, len(both) - 1))
    half = quantile * statistics.stdev(differences) / math.sqrt(len(both))
    return statistics.fmean(differences) > half


def _distances(name: str, groups: Mapping[str, Sequence[Row]], about: Compared) -> Distances | None:
    """Return a method's distances by seed; None where it has none, or only to a retraining of another kind."""
    rows = [row for row in groups[name] if "failed" not in row]
    own = groups.get(own_retrain(name), ())
    if not rows or (_has_own_kind(name) and not own):
        return None
    if about.beside_oracles:
        return _klom(rows)
    retrained = {row["seed"]: row for row in own or groups[RETRAIN]}
    by_score = (
        {row["seed"]: 100 * abs(row[score] - retrained[row["seed"]][score]) for row in rows}
        for score in SCORES
    )
    return max(by_score, key=lambda found: statistics.fmean(found.values()))


def _klom(rows: Sequence[Row]) -> Distances:
    return {row["seed"]: row["oracles"][KLOM] for row in rows}


def _has_own_kind(name: str) -> bool:
    preparation = METHODS[name].info.preparation if name in METHODS else None
    return preparation is not None and preparation.has_own_retraining


def _complete(
    distances: Mapping[str, Distances], groups: Mapping[str, Sequence[Row]]
) -> dict[str, Distances]:
    """Return the distances of methods that failed in no seed: of the others only the survivors are known."""
    return {name: found for name, found in distances.items() if len(found) == len(groups[name])}


def _figures(rows: Sequence[Row], distances: Distances, about: Compared, nearer: tuple[str, ...]) -> Figures:
    done = [row for row in rows if "failed" not in row]
    values = [*distances.values()]
    has_spread = len(values) > 1 and not about.beside_oracles  # KLoM is one figure of all seeds
    return Figures(
        distance=_short(statistics.fmean(values)),
        spread=_short(statistics.stdev(values)) if has_spread else None,
        bytes=_short(statistics.fmean(row["bytes"] for row in done)),
        seconds=_short(statistics.fmean(row["seconds"] for row in done)),
        failed=len(rows) - len(done),
        nearer_than=nearer,
    )


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def _days(rows: Sequence[Row]) -> str:
    days = sorted({row["made"]["date"] for row in rows if "made" in row})
    return " to ".join(dict.fromkeys([*days[:1], *days[-1:]]))
