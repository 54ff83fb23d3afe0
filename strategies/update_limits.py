"""The limits on what one client may do to a model: what its vector may be, and how much its count and length may weigh.

A vector has the model's length and dtype, and finite values; its norm and its count have bounds of their own, and
neither may be far over the median of all clients.

The *influence* of a client is its count of examples times the length of its change of the model. Count and length have
bounds of their own, ten times the median each, so that one client of ten could still weigh more than all others. Here
the client with the most influence is compared with the median influence of the others:

    bound    max-influence-factor times that median, but no more than a third of what all others have by it, and no
             less than the median itself: of ten clients 3 medians, of five 4/3, of three 1.
    held     over the bound it still counts in full where it does no harm: where the server's test loss with it is at
             most a hundredth over that without it. Without test examples, where its change points where those of the
             others point. Else its count is reduced until its influence is that of the bound.

So a site that really has nine times the data counts in full as long as it trains as the others do, and one that does
not keeps a vote.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from statistics import median

import numpy as np

from unlearning.buffers import Change, buffers_in, check_variances, deviations
from unlearning.errors import UpdateRefused
from unlearning.parameters import Vector, check_finite, check_length
from unlearning.tasks.task import Task

FEWEST = 3
"""Of two clients it cannot be known which one is wrong."""
AGREEMENT = 0.1
"""The least cosine of two changes that point the same way: a random direction has 0.01 among 10,000 parameters."""


def check_vector(vector: Vector, *, like: Vector) -> None:
    """Refuse a vector that has another length or dtype than `like`, or values that are not finite.

    Raises:
        UpdateRefused: what is wrong.
    """
    _check_kind(vector, like=like)
    check_finite(vector)


def _check_kind(vector: Vector, *, like: Vector) -> None:
    check_length(vector, like.size)
    if vector.dtype != like.dtype:
        raise UpdateRefused(f"The model is of type {like.dtype}, got {vector.dtype}.")


CheckCount = Callable[[str, int], None]
"""Raises `UpdateRefused` for a client that counts more examples than it may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountLimits:
    """How many examples a client may count: the count is its weight in every mean, by its own statement.

    most: of any client; 0 for no such bound.
    factor: times the median of the clients' counts; 0 for no such bound.
    own: by client, what an operator allows it in place of both.
    """

    most: int = 0
    factor: float = 0.0
    own: Mapping[str, int] = field(default_factory=dict)

    def among(self, counts: Iterable[int]) -> CheckCount:
        """Return what refuses an answer that counts more than its client may; `counts` are all clients', where known.

        A minority cannot move the median beyond the counts of the others. Of two counts it is the mean, so a factor
        of 2 or more refuses neither.
        """
        usual = [count for count in counts if count > 0]
        return partial(self._check, median(usual) if usual else 0)

    def _check(self, middle: float, client: str, num_examples: int) -> None:
        said = f"It counts {num_examples:,} examples,"
        if client in self.own:
            if num_examples > self.own[client]:
                raise UpdateRefused(f"{said} client-example-limits allows this client {self.own[client]:,}.")
            return
        if 0 < self.most < num_examples:
            raise UpdateRefused(f"{said} max-client-examples allows {self.most:,}.")
        if 0 < self.factor * middle < num_examples:
            raise UpdateRefused(
                f"{said} max-count-factor allows {self.factor:g} times the median {middle:,g}. If the site is so "
                f'large, let it in by client-example-limits="{client}={num_examples}".'
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a run; 0 is no bound.

    max_norm: of a change of the model. norm_factor, influence_factor: times the median of the clients.
    """

    task: Task
    max_norm: float
    norm_factor: float
    influence_factor: float
    counts: CountLimits

    def check_model(self, model: Vector, before: Vector) -> Change:
        """Return what a model (d,) changes of `before` (d,); refuse one that training would not have given.

        Raises:
            UpdateRefused: what is wrong.
        """
        _check_kind(model, like=before)
        change = Change(model, before, buffers_in(self.task, model))
        if change.zeros.size or not math.isfinite(change.norm):  # a finite norm has finite terms
            check_finite(model)
        check_variances(self.task, model)
        check_norm(change, self.max_norm)
        return change

    def outliers(
        self, changes: Mapping[str, Change], models: Mapping[str, Vector] | None = None
    ) -> dict[str, str]:
        """Return which changes, or running statistics of `models`, are far over the median of all, and by how much."""
        spread = {client: Change(deviations(self.task, model)) for client, model in (models or {}).items()}
        what = "The norm of its running statistics' deviations"
        return over_the_median(spread, self.norm_factor, what=what) | over_the_median(
            changes, self.norm_factor
        )


def check_norm(change: Change, bound: float) -> None:
    """Refuse a change of the model whose Euclidean norm is over `bound`; 0 means no bound.

    Raises:
        UpdateRefused: it is larger.
    """
    if 0 < bound < change.norm:
        raise UpdateRefused(f"Its norm is {change.norm:.3g}, max-update-norm allows {bound:g}.")


def over_the_median(
    changes: Mapping[str, Change], factor: float, *, what: str = "Its norm"
) -> dict[str, str]:
    """Return which changes of the model are larger than `factor` times the median norm of all, and by how much.

    A minority of any size and norm cannot move the median beyond the norms of the others. `factor` 0 means
    no bound; neither is there one where the median is 0, for then most clients had nothing to change. Of two
    changes the median is the mean, so a factor of 2 or more refuses neither. what: is measured, for the message.
    """
    if factor <= 0 or not changes:
        return {}
    norms = {client: change.norm for client, change in changes.items()}
    middle = median(norms.values())
    return {
        client: f"{what} is {norm:.3g}, max-norm-factor allows {factor:g} times the median {middle:.3g}."
        for client, norm in norms.items()
        if 0 < factor * middle < norm
    }


@dataclass(frozen=True, slots=True)
class Excess:
    """A client whose influence is over its bound."""

    client: str
    influence: float
    bound: float


def influences(weights: Mapping[str, float], changes: Mapping[str, Change]) -> dict[str, float]:
    """Compute the weight times ‖Δ_i‖ for each change Δ_i (d,), in float64."""
    return {client: weights[client] * change.norm for client, change in changes.items()}


def excess(found: Mapping[str, float], factor: float) -> Excess | None:
    """Return the client with the most influence if it is over its bound; None for a `factor` of 0, or too few clients.

    The most influential is furthest over its bound, as the median of the others is the lowest for it. A median of 0 is
    no bound: most clients had nothing to change.
    """
    if factor <= 0 or len(found) < FEWEST:
        return None
    client = max(sorted(found), key=lambda name: found[name])
    usual = median(value for name, value in found.items() if name != client)
    bound = usual * max(1.0, min(factor, (len(found) - 1) / 3))
    return Excess(client, found[client], bound) if 0 < bound < found[client] else None


def agrees(client: str, weights: Mapping[str, float], changes: Mapping[str, Change]) -> bool:
    """Tell whether a client's change points where the weighted sum of the others' changes points."""
    names = sorted(other for other in changes if other != client)
    own_norm, most = changes[client].norm, sum(weights[name] * changes[name].norm for name in names)
    if not own_norm * most:
        return True
    product = squared = 0.0
    # At most 1 long, so in the models' dtype nothing overflows.
    shares = [weights[name] / most for name in names]
    for own, total, *others in zip(*(changes[name].chunks() for name in (client, *names)), strict=True):
        own /= own_norm
        total *= shares[0]
        for share, one in zip(shares[1:], others, strict=True):
            one *= share
            total += one
        product += float(np.vdot(own, total))
        squared += float(np.vdot(total, total))
    return product >= AGREEMENT * math.sqrt(squared)
