"""What may enter the model: the checks that every client's vector passes, and the weighted mean."""

from collections.abc import Mapping
from statistics import median

import numpy as np

from unlearning.errors import UpdateRefused
from unlearning.methods.method import Reply
from unlearning.parameters import Vector, check_finite, check_length


def checked(reply: Reply, *, like: Vector) -> Reply:
    """`reply` if its vector has the length and dtype of `like` and only finite values.

    Raises:
        UpdateRefused: no examples, another length or dtype, or not finite.
    """
    if reply.num_examples < 1:
        raise UpdateRefused("It was trained on no example.")
    check_vector(reply.vector, like=like)
    return reply


def check_vector(vector: Vector, *, like: Vector) -> None:
    """Refuse a vector that has another length or dtype than `like`, or values that are not finite.

    Raises:
        UpdateRefused: what is wrong.
    """
    check_length(vector, like.size)
    if vector.dtype != like.dtype:
        raise UpdateRefused(f"The model is of type {like.dtype}, got {vector.dtype}.")
    check_finite(vector)


def check_count(num_examples: int, bound: int) -> None:
    """Refuse an answer that counts more than `bound` examples, which are its weight in the mean; 0 means no bound.

    Raises:
        UpdateRefused: it counts more.
    """
    if 0 < bound < num_examples:
        raise UpdateRefused(f"It counts {num_examples:,} examples, max-client-examples allows {bound:,}.")


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


def over_the_median(changes: Mapping[str, Vector], factor: float) -> dict[str, str]:
    """Which changes of the model are larger than `factor` times the median norm of all, and by how much.

    A minority of any size and norm cannot move the median beyond the norms of the others. `factor` 0 means
    no bound; neither is there one where the median is 0, for then most clients had nothing to change. Of two
    changes the median is the mean, so a factor of 2 or more refuses neither.
    """
    if factor <= 0 or not changes:
        return {}
    norms = {client: float(np.linalg.norm(change.astype(np.float64))) for client, change in changes.items()}
    middle = median(norms.values())
    return {
        client: f"Its norm is {norm:.3g}, max-norm-factor allows {factor:g} times the median {middle:.3g}."
        for client, norm in norms.items()
        if 0 < factor * middle < norm
    }
