"""What is kept of every round beside HF-online's vectors: all that `federated_bound` is computed from.

One entry, for the server's own key in the store, holds all rounds until then, encrypted where the vectors are:

    how        the ways in which rounds were trained (settings, model, loss, dtype, code), each once
    rounds     each with its way, learning rate, the models' hashes before and after, who took part and was refused,
               with how many examples and steps, and the lengths of vectors and moves

A certificate is computed from these records alone, so it does not matter what the settings are by then. The hashes
make a chain: a round, or anything else that moved the model, of which there is no record breaks it. Of a
client that was forgotten the lengths of its vector and of its local models' distances stay: three numbers a
round, without which nothing could be said of a later deletion.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unlearning.certified.linear_head import linear_head
from unlearning.certified.noise_certificate import unmet_assumptions
from unlearning.certified.round_lengths import LocalWork, Premises, RoundLengths, declared_logistic_constants
from unlearning.certified.rounding import Arithmetic
from unlearning.certified.sensitivity import Weighting
from unlearning.errors import NumericalError
from unlearning.methods.preparation import FederatedRound
from unlearning.parameters import Vector, content_hash, weighted_mean
from unlearning.tasks.task import Task
from unlearning.training import TrainingSettings, frozen_part

WORK = "work"
"""The array by which a client says how it has trained."""

_WORK_NUMBERS = 7
NOT_DECLARED = "No bound on the features' norm is declared (feature_norm in prepare), so nothing is proven."
_NOT_PLAIN = "It was not plain SGD (momentum, augmentation, clipping); no bound is known then."
_NOT_AS_SET = "Its clients did not all report that they trained as the server had set it."
_NOT_MEAN = "Its model is not the mean of the clients' models by their numbers of examples."


@dataclass(frozen=True, slots=True)
class KeptRound:
    """What is kept of one round: its lengths, which retraining it stands for, and the models' hashes."""

    lengths: RoundLengths
    weighting: Weighting
    before: str
    after: str


def work_of(num_examples: int, training: TrainingSettings, feature_norm: float) -> NDArray[np.float64]:
    """Return how a client trains, as it reports to the server.

    Number of steps, η, μ, whether it is plain SGD, the feature norm that it has checked, batch size, examples.
    """
    steps = training.epochs * -(-num_examples // training.batch_size)
    numbers = [steps, training.learning_rate, training.weight_decay, float(_is_plain(training))]
    return np.array([*numbers, feature_norm, training.batch_size, num_examples])


def append_round(
    earlier: str,
    done: FederatedRound,
    vectors: Mapping[str, Vector],
    *,
    weighting: Weighting,
    feature_norm: float,
) -> str:
    """Return the text of `earlier` rounds (empty: none) with one more, which replaces one of the same number.

    vectors: those with which the round began.
    """
    known: dict[str, Any] = json.loads(earlier) if earlier else {"how": [], "rounds": []}
    way = _way(done, weighting, feature_norm)
    ways = known["how"] if way in known["how"] else [*known["how"], way]
    reported = {client: _reported(done.arrays.get(client, {}).get(WORK)) for client in done.models}
    one = {
        "number": done.number,
        "how": ways.index(way),
        "learning_rate": 0.0 if done.training is None else done.training.learning_rate,
        "as_set": done.training is not None
        and all(
            np.array_equal(reported[client], work_of(count, done.training, feature_norm))
            for client, (count, _) in done.models.items()
        ),
        "mean": bool(np.array_equal(weighted_mean(done.models), done.after)),
        "before": content_hash(done.before),
        "after": content_hash(done.after),
        "clients": {
            client: [count, int(reported[client][0]), _length(done.after, local)]
            for client, (count, local) in done.models.items()
        },
        "refused": sorted(done.refused),
        "norm": _length(done.before, np.zeros(1)),
        "moved": _length(done.after, done.before),
        "vectors": {unit: _length(vector, np.zeros(1)) for unit, vector in vectors.items()},
    }
    rounds = [entry for entry in known["rounds"] if entry["number"] < done.number]
    return json.dumps({**known, "how": ways, "rounds": [*rounds, one]})


def rounds_of(text: str) -> tuple[KeptRound, ...]:
    """Return all rounds of which `append_round` has written a record, in their order."""
    value = json.loads(text) if text else {"rounds": []}
    return tuple(_kept_round(one, value["how"][one["how"]]) for one in value["rounds"])


def has_trained(text: str, number: int) -> frozenset[str]:
    """Return the clients that took part in a round before `number`, as far as there are records."""
    value = json.loads(text) if text else {"rounds": []}
    return frozenset(client for one in value["rounds"] if one["number"] < number for client in one["clients"])


def _way(done: FederatedRound, weighting: Weighting, feature_norm: float) -> dict[str, Any]:
    """Describe all that rounds have in common until a setting changes; the learning rate may change with each."""
    way: dict[str, Any] = {
        "code": _code_version(),
        "weighting": str(weighting),
        "feature_norm": feature_norm,
    }
    if done.task is None or done.training is None:
        return {**way, "unmet": ["Nothing is known of how it was trained."]}
    training = done.training
    return {
        **way,
        **_model_of(done.task),
        "optimizer": training.optimizer,
        "weight_decay": training.weight_decay,
        "momentum": training.momentum,
        "clip_norm": training.clip_norm,
        "augment": training.augment,
        "epochs": training.epochs,
        "batch_size": training.batch_size,
        "unmet": [
            *unmet_assumptions(done.task, training.weight_decay),
            *(() if feature_norm else (NOT_DECLARED,)),
            *(() if _is_plain(training) else (_NOT_PLAIN,)),
        ],
    }


def _model_of(task: Task) -> dict[str, Any]:
    known = {
        "task": task.name,
        "dtype": str(task.dtype).removeprefix("torch."),
        "loss": getattr(task.loss, "__qualname__", type(task.loss).__qualname__),
        "frozen": frozen_part(task),
    }
    try:
        layer = linear_head(task).layer
    except NumericalError:
        return {**known, "model": "not linear", "num_inputs": 0, "num_classes": 0}
    inputs = layer.in_features + (layer.bias is not None)
    return {**known, "model": "one linear layer", "num_inputs": inputs, "num_classes": layer.out_features}


def _kept_round(one: Mapping[str, Any], way: Mapping[str, Any]) -> KeptRound:
    unmet = [*way["unmet"]]
    unmet += [] if one["as_set"] else [_NOT_AS_SET]
    unmet += [] if one["mean"] else [_NOT_MEAN]
    premises = None
    if not unmet:
        premises = Premises(
            constants=declared_logistic_constants(
                feature_norm=way["feature_norm"], l2=way["weight_decay"], frozen=way.get("frozen", "")
            ),
            arithmetic=Arithmetic(
                num_inputs=way["num_inputs"],
                num_classes=way["num_classes"],
                feature_norm=way["feature_norm"],
                batch_size=way["batch_size"],
            ),
        )
    lengths = RoundLengths(
        number=one["number"],
        learning_rate=one["learning_rate"],
        clients={
            client: LocalWork(num_examples=count, num_steps=steps, distance=distance)
            for client, (count, steps, distance) in one["clients"].items()
        },
        moved=one["moved"],
        norm=one["norm"],
        vectors=one["vectors"],
        premises=premises,
        unmet=tuple(unmet),
    )
    return KeptRound(lengths, Weighting(way["weighting"]), one["before"], one["after"])


def _reported(work: NDArray[Any] | None) -> NDArray[np.float64]:
    """Return what a client reported of its work; zeros where it reported nothing that can be read."""
    if (
        work is None
        or work.shape != (_WORK_NUMBERS,)
        or work.dtype != np.float64
        or not np.isfinite(work).all()
    ):
        return np.zeros(_WORK_NUMBERS)
    return work


def _is_plain(training: TrainingSettings) -> bool:
    return training.optimizer == "sgd" and not (
        training.momentum or training.augment or training.clip_norm or training.maximize
    )


def _length(one: Vector, other: Vector) -> float:
    return float(np.linalg.norm(one.astype(np.float64) - other))


def _code_version() -> str:
    try:
        return version("flower-unlearning")
    except PackageNotFoundError:
        return "unknown"
