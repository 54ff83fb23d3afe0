"""What may enter the model: the checks that every client's vector passes, and the weighted mean."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from unlearning.errors import UpdateRefused
from unlearning.parameters import Vector, check_finite, check_length


def check_vector(vector: Vector, *, like: Vector) -> None:
    """Refuse a vector that has another length or dtype than `like`, or values that are not finite.

    Raises:
        UpdateRefused: what is wrong.
    """
    check_length(vector, like.size)
    if vector.dtype != like.dtype:
        raise UpdateRefused(f"The model is of type {like.dtype}, got {vector.dtype}.")
    check_finite(vector)


@dataclass(frozen=True, slots=True, kw_only=True)
class CountLimits:
    """How many examples a client may count: the count is its weight in every mean, and its own word.

    most: of any client; 0 for no such bound.
    factor: so many times the median of the clients' counts; 0 for no such bound.
    own: by client, what an operator allows it in place of both.
    """

    most: int = 0
    factor: float = 0.0
    own: Mapping[str, int] = field(default_factory=dict)

    def check(self, client: str, num_examples: int, counts: Iterable[int]) -> None:
        """Refuse an answer that counts more than the client may; `counts` are all clients' as far as known.

        A minority cannot move the median beyond the counts of the others. Of two counts it is the mean, so a factor
        of 2 or more refuses neither.

        Raises:
            UpdateRefused: it counts more.
        """
        said = f"It counts {num_examples:,} examples,"
        if client in self.own:
            if num_examples > self.own[client]:
                raise UpdateRefused(f"{said} client-example-limits allows this client {self.own[client]:,}.")
            return
        if 0 < self.most < num_examples:
            raise UpdateRefused(f"{said} max-client-examples allows {self.most:,}.")
        usual = [count for count in counts if count > 0]
        if self.factor > 0 and usual and num_examples > self.factor * (middle := median(usual)):
            raise UpdateRefused(
                f"{said} max-count-factor allows {self.factor:g} times the median {middle:,g}. If the site is so "
                f'large, let it in by client-example-limits="{client}={num_examples}".'
            )


def check_norm(change: Vector, bound: float) -> None:
    """Refuse a change of the model whose Euclidean norm is over `bound`; 0 means no bound.

    Raises:
        UpdateRefused: it is larger.
    """
    if bound <= 0:
        return
    norm = float(np.linalg.norm(change.astype(np.float64)))
    if norm > bound:
        raise UpdateRefused(f"Its norm is {norm:.3g}, max-update-norm allows {bound:g}.")


STATISTICS = "The norm of its running statistics' deviations"


def over_the_median(
    changes: Mapping[str, Vector], factor: float, *, what: str = "Its norm"
) -> dict[str, str]:
    """Return which changes of the model are larger than `factor` times the median norm of all, and by how much.

    A minority of any size and norm cannot move the median beyond the norms of the others. `factor` 0 means
    no bound; neither is there one where the median is 0, for then most clients had nothing to change. Of two
    changes the median is the mean, so a factor of 2 or more refuses neither. what: is measured, for the message.
    """
    if factor <= 0 or not changes:
        return {}
    norms = {client: float(np.linalg.norm(change.astype(np.float64))) for client, change in changes.items()}
    middle = median(norms.values())
    return {
        client: f"{what} is {norm:.3g}, max-norm-factor allows {factor:g} times the median {middle:.3g}."
        for client, norm in norms.items()
        if 0 < factor * middle < norm
    }
