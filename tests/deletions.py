"""Deletions small enough to be worked out by hand; most are on the federation of `unlearning.testing.convex`."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from unlearning.local import problem_of
from unlearning.methods.method import Method, Problem, Reply
from unlearning.requests import Granularity, Target
from unlearning.testing.convex import DATA, TASK, TRAINING

THETA = np.array([1.0, -1.0, 0.5, 0.0, 0.2, -0.2])
"""A model of the convex federation that is no optimum of anything."""

CLIENT = Target(Granularity.CLIENT, "u")


def samples(count: int) -> Target:
    """The first examples of client u of the convex federation."""
    return Target(Granularity.SAMPLE, "u", frozenset(f"u-{number}" for number in range(count)))


def reply(update: ArrayLike, num_examples: int = 1, **rest: Any) -> Reply:
    """A client's answer; one number stands for a vector of it, as long as THETA."""
    vector = np.asarray(update, dtype=np.float64)
    return Reply(vector=vector if vector.ndim else np.full(6, vector), num_examples=num_examples, **rest)


def convex_problem(method: Method, *targets: Target, **parameters: Any) -> Problem:
    """The problem of forgetting the targets, client u if none is given, from the convex federation."""
    return problem_of(method, TASK, targets or [CLIENT], DATA, TRAINING, **parameters)
