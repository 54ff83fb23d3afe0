"""Which method a request gets that names none, and why; in this order, of those that the federation can carry out now:

    0  where training is private, leaving the model as it is, while that covers the deletion
    1  one that was prepared for and gives a model that never saw the data (`MethodInfo.is_exact`)
    2  one by which most deletions of the same granularity here were shown to have an effect
    3  of the measurements near this federation: what ended nearest to retraining
    4  retraining, whose result rests on no test; where that cannot be, what else there is

The user's own runs of the same model (`flower-unlearn bench --app`) take the place of the published measurements. Of
these one is near where classes are told, inputs have as many dimensions, the same granularity was forgotten, and the
model's number of parameters differs by at most a factor of `NEAR_FACTOR`. The nearest decide: a method counts if it is
nearer to retraining than doing nothing and than training on without the data, by more than chance over the seeds
explains (`Comparison.is_nearer`), never so much further, and costs at most half of retraining. What the nearest cannot
tell apart the next ones may; of what ties to the end, the cheapest is taken.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from server.ledger import Ledger
from server.requests.comparisons import NOTHING, Comparison, known
from server.requests.plan_data import PublishedDistance, places
from unlearning.methods.eligibility import FederationProfile
from unlearning.methods.method import Method
from unlearning.methods.registry import METHODS
from unlearning.outcomes import is_shown
from unlearning.requests import Granularity, Outcome, Target

NEAR_FACTOR = 10
ENOUGH_HERE = 3
"""Deletions by a method, from which on their outcomes say something."""

IsPossible = Callable[[str], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """A method's name, and in a sentence why it; both empty where none can serve."""

    method: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Shown:
    """Of how many deletions here an effect was shown, of those that were carried out."""

    shown: int
    of: int

    @property
    def is_most(self) -> bool:
        """Whether it is most of enough."""
        return self.of >= ENOUGH_HERE and 2 * self.shown > self.of


def recommend(
    granularity: Granularity,
    federation: FederationProfile | None,
    *,
    is_admissible: IsPossible,
    absent_for: Callable[[str], str],
    here: Mapping[str, Shown],
    own: Sequence[Comparison] = (),
) -> Recommendation:
    """Return the method that a request of this granularity should take.

    is_admissible: whether the federation can serve the request by a method. absent_for: for whom it would then wait;
        empty for none. here: by method, the outcomes of this federation's deletions of the granularity. own: what the
        user's own runs measured.
    """
    groups = [] if federation is None else near(granularity, federation, own)
    found = _choose(federation, lambda name: is_admissible(name) and not absent_for(name), here, groups)
    if found.method:
        return found
    found = _choose(federation, is_admissible, here, groups)
    if not found.method:
        return found
    return replace(found, why=f"{found.why} It waits for {absent_for(found.method)} to come online.")


def waits_for(method: Method, target: Target, online: set[str]) -> str:
    """Return the client that a request would wait for; empty if it can be served."""
    if target.client_id is not None and target.client_id not in online and method.info.works_with_the_data:
        return f"client {target.client_id}"
    return "" if online else "any client"


def safest_first() -> list[str]:
    """Return all methods: what trains again without the data first, what does not unlearn last."""

    def rank(name: str) -> tuple[bool, bool, bool]:
        info = METHODS[name].info
        return not info.moves_model, not info.is_exact, info.preparation is not None

    return sorted(METHODS, key=rank)


def shown_here(ledger: Ledger, granularity: Granularity) -> dict[str, Shown]:
    """Return by method in how many of this federation's deletions of a granularity tests showed an effect.

    Those of too few records say nothing of a method, and those whose result needs no test neither.
    """
    found: dict[str, Shown] = {}
    for (method, outcome), count in ledger.requests.outcomes(granularity).items():
        if outcome not in (Outcome.TOO_FEW, Outcome.RETRAINED, Outcome.GUARANTEED):
            one = found.get(method, Shown(0, 0))
            found[method] = Shown(one.shown + count * is_shown(outcome), one.of + count)
    return found


def near(
    granularity: Granularity, federation: FederationProfile, own: Sequence[Comparison] = ()
) -> list[list[Comparison]]:
    """Return the comparisons that are near a federation, those of one size of model together, the nearest first.

    own: of the user's own runs; where they have the federation's model they are all.
    """
    mine = [
        item
        for item in own
        if item.granularity is granularity and item.num_parameters == federation.num_parameters
    ]
    if mine or federation.score_name != "accuracy":
        return [mine] if mine else []

    def factor(item: Comparison) -> float:
        return abs(math.log(item.num_parameters / max(1, federation.num_parameters)))

    fitting = [
        item
        for item in known()
        if item.granularity is granularity
        and item.input_dimensions == federation.input_dimensions
        and factor(item) <= math.log(NEAR_FACTOR)
    ]
    return [list(group) for _, group in groupby(sorted(fitting, key=factor), key=factor)]


def compared(
    method: str, granularity: Granularity, federation: FederationProfile, own: Sequence[Comparison] = ()
) -> PublishedDistance | None:
    """Return how the method did in the comparison nearest to a federation; None where none is near."""
    groups = near(granularity, federation, own)
    fitting = [item for group in groups for item in group if method in item.methods]
    if not fitting:
        return None
    there = fitting[0]
    found, is_worse = there.methods[method], True if there.is_nearer(NOTHING, method) else None
    return PublishedDistance(
        distance=found.distance,
        spread=found.spread,
        nothing=there.nothing.distance,
        is_worse=False if there.is_nearer(method, NOTHING) else is_worse,
        rank=there.rank(method),
        num_ranked=len(there.methods),
        ranks=_over_data_sets(method, granularity),
        source=there.source,
        is_own=not there.page,
    )


def _over_data_sets(method: str, granularity: Granularity) -> str:
    """Return the places that a method can have in the published comparisons, all of them together; empty for one."""
    there = [item for item in known() if item.granularity is granularity and method in item.methods]
    if len(there) < 2:
        return ""
    ranks = [item.rank(method) for item in there]
    span = (min(first for first, _ in ranks), max(last for _, last in ranks))
    return f"{places(span)} over {len(there)} published comparisons"


def _choose(
    federation: FederationProfile | None,
    is_possible: IsPossible,
    here: Mapping[str, Shown],
    groups: Sequence[Sequence[Comparison]],
) -> Recommendation:
    for name, method in METHODS.items() if federation is not None else ():
        if method.info.rests_on_training and is_possible(name):
            why = "Training has differential privacy, which covers the deletion."
            return Recommendation(method=name, why=why)
    for name, method in METHODS.items() if federation is not None else ():
        if method.info.is_exact and method.info.preparation is not None and is_possible(name):
            why = f"This federation is prepared for {method.info.title}, whose model never saw the data."
            return Recommendation(method=name, why=why)
    by_success = sorted(here, key=lambda name: here[name].shown / here[name].of, reverse=True)
    for name in by_success:
        if here[name].is_most and name in METHODS and METHODS[name].info.moves_model and is_possible(name):
            return Recommendation(method=name, why=f"{_past(here[name])}.")
    if groups and (tied := _nearest(groups, is_possible)):
        return Recommendation(method=tied[0], why=_why(groups[0], tied, here))
    return _safest(is_possible, groups)


def _nearest(groups: Sequence[Sequence[Comparison]], is_possible: IsPossible) -> list[str]:
    """Return the methods that end nearest to retraining as far as the comparisons can tell, the cheapest first."""
    nearest = groups[0]
    names = {name for one in nearest for name in one.methods if _counts(name, nearest) and is_possible(name)}
    tied = sorted(
        names, key=lambda name: sum(one.methods[name].bytes for one in nearest if name in one.methods)
    )
    for group in groups:
        tied = [name for name in tied if not any(_beats(other, name, group) for other in tied)] or tied
    return tied


def _counts(name: str, group: Collection[Comparison]) -> bool:
    """Return whether a method is worth its price in these comparisons."""
    if name not in METHODS or not METHODS[name].info.several_at_once or not METHODS[name].info.moves_model:
        return False
    clearly_nearer = False
    for one in group:
        if name not in one.methods:
            continue
        figures, others = one.methods[name], [NOTHING, *_baselines(one)]
        if figures.failed or 2 * figures.bytes > one.retrain.bytes:
            return False
        if any(one.is_nearer(other, name) for other in others):
            return False
        clearly_nearer |= all(one.is_nearer(name, other) for other in others)
    return clearly_nearer


def _baselines(one: Comparison) -> list[str]:
    """Return the methods that do not unlearn, but train on without the data."""
    return [name for name in one.methods if name in METHODS and not METHODS[name].info.moves_model]


def _beats(first: str, second: str, group: Sequence[Comparison]) -> bool:
    """Return whether one method is clearly nearer to retraining than another in one comparison, and further in none."""
    both = [one for one in group if {first, second} <= {*one.methods}]
    return any(one.is_nearer(first, second) for one in both) and not any(
        one.is_nearer(second, first) for one in both
    )


def _why(nearest: Sequence[Comparison], tied: Sequence[str], here: Mapping[str, Shown]) -> str:
    [name, *others] = tied
    figures = "; ".join(
        f"{one.source}: {one.methods[name].text}, doing nothing {one.nothing.text}"
        for one in nearest
        if name in one.methods
    )
    equal = f"; {', '.join(others)} came as near and cost more" if others else ""
    past = f"; {_past(here[name])}" if name in here else ""
    return (
        f"In the measurements most like this federation it came nearest to a model retrained without the data "
        f"({figures} points away){equal}{past}."
    )


def _past(done: Shown) -> str:
    return f"of {done.of} deletions of this kind by it here, {done.shown} were shown to have an effect"


def _safest(is_possible: IsPossible, groups: Sequence[Sequence[Comparison]]) -> Recommendation:
    because = (
        "In the measurements most like this federation, no method for at most half the price of retraining came "
        "clearly nearer to it than training on without the data"
        if groups
        else "No measurement is near enough to this federation to recommend a method by"
    )
    for name in safest_first():
        if is_possible(name):
            what = METHODS[name].info
            safe = (
                "is the safest: it trains the model again without the data"
                if what.is_exact
                else "can serve now"
            )
            return Recommendation(method=name, why=f"{because}; {what.title} {safe}.")
    return Recommendation()
