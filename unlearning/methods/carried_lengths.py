"""Lengths of every round, kept beside HF-online's vectors: what `federated_bound` is computed from.

One entry, for the server's own key in the store, holds all rounds until then, encrypted where the vectors are. Of a
client that was forgotten the lengths of its vector and of its local models' distances stay: three numbers a
round, without which nothing could be said of a later deletion.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unlearning.certified import LocalWork, RoundLengths
from unlearning.parameters import Vector
from unlearning.tasks.task import Examples
from unlearning.training import TrainingSettings

LENGTHS_KEY = ""
"""The key of the entry: no client has an empty id."""

WORK = "work"
"""The array by which a client says how it has trained."""


@dataclass(frozen=True, slots=True)
class KeptLengths:
    """All rounds' lengths, and why no bound can be computed from them (empty where one can)."""

    rounds: tuple[RoundLengths, ...]
    unmet: tuple[str, ...] = ()


def work_of(examples: Examples, training: TrainingSettings) -> NDArray[np.float64]:
    """How a client trains, as it tells the server: number of steps, η, μ, and whether it is plain SGD."""
    steps = training.epochs * -(-len(examples) // training.batch_size)
    plain = training.optimizer == "sgd" and not (
        training.momentum or training.augment or training.clip_norm or training.maximize
    )
    return np.array([steps, training.learning_rate, training.weight_decay, float(plain)])


def extended(
    earlier: str,
    number: int,
    before: Vector,
    after: Vector,
    models: Mapping[str, tuple[int, Vector]],
    works: Mapping[str, NDArray[Any] | None],
    vectors: Mapping[str, Vector],
) -> str:
    """The text of `earlier` rounds (empty where there are none) with one more; it replaces one of the same number.

    vectors: those with which the round began; where there are some and `earlier` is empty, the record is not whole.
    """
    known: dict[str, Any] = json.loads(earlier) if earlier else {"whole": not vectors, "rounds": []}
    told = {client: work for client, work in works.items() if work is not None}
    ways = {(float(work[1]), float(work[2]), float(work[3])) for work in told.values()}
    rate, decay, plain = next(iter(ways)) if len(ways) == 1 else (0.0, 0.0, 0.0)
    one = {
        "number": number,
        "learning_rate": rate,
        "weight_decay": decay,
        "plain": bool(plain) and len(told) == len(models),
        "clients": {
            client: [count, int(told[client][0]) if client in told else 0, _length(after, local)]
            for client, (count, local) in models.items()
        },
        "moved": _length(after, before),
        "vectors": {
            unit: float(np.linalg.norm(vector.astype(np.float64))) for unit, vector in vectors.items()
        },
    }
    rounds = [entry for entry in known["rounds"] if entry["number"] < number]
    return json.dumps({"whole": known["whole"], "rounds": [*rounds, one]})


def lengths_of(text: str) -> KeptLengths:
    """What `extended` has written."""
    if not text:
        return KeptLengths((), ("No lengths of the rounds are kept.",))
    value = json.loads(text)
    unmet = []
    if not value["whole"]:
        unmet.append("The lengths of the first rounds are not kept: feature_norm was set too late.")
    if not all(one["plain"] for one in value["rounds"]):
        unmet.append(
            "Some rounds were not plain SGD with one learning rate (momentum, augmentation); no bound is known then."
        )
    if len({one["weight_decay"] for one in value["rounds"]}) > 1:
        unmet.append("The weight decay was changed between rounds.")
    rounds = tuple(
        RoundLengths(
            number=one["number"],
            learning_rate=one["learning_rate"],
            weight_decay=one["weight_decay"],
            clients={
                client: LocalWork(num_examples=count, num_steps=steps, distance=distance)
                for client, (count, steps, distance) in one["clients"].items()
            },
            moved=one["moved"],
            vectors=one["vectors"],
        )
        for one in value["rounds"]
    )
    return KeptLengths(rounds, tuple(unmet))


def _length(one: Vector, other: Vector) -> float:
    return float(np.linalg.norm(one.astype(np.float64) - other))
