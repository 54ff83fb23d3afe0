"""What is kept of every round beside HF-online's vectors: all that `federated_bound` is computed from.

One entry, for the server's own key in the store, holds all rounds until then as JSON, encrypted where the vectors are:
of each who took part with how many examples and steps, the lengths of vectors and moves, what proves its part of the
bound or why nothing does, and the models' hashes before and after.

A certificate is computed from these records alone, so it does not matter what the settings are by then. The hashes
make a chain: a round, or anything else that moved the model, of which there is no record breaks it. Of a
client that was forgotten the lengths of its vector and of its local models' distances stay: three numbers a
round, without which nothing could be said of a later deletion.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unlearning.certified.linear_head import linear_head
from unlearning.certified.noise_certificate import unmet_assumptions
from unlearning.certified.round_lengths import LocalWork, Premises, RoundLengths, declared_logistic_constants
from unlearning.certified.rounding import Arithmetic
from unlearning.certified.sensitivity import Weighting
from unlearning.methods.preparation import FederatedRound
from unlearning.parameters import Vector, content_hash, distance, norm, weighted_mean
from unlearning.runtime.json_codec import from_plain, to_plain
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
    rounds = [one for one in rounds_of(earlier) if one.lengths.number < done.number]
    reported = {client: _reported(done.arrays.get(client, {}).get(WORK)) for client in done.models}
    unmet = _unmet(done, reported, feature_norm)
    lengths = RoundLengths(
        number=done.number,
        learning_rate=0.0 if done.training is None else done.training.learning_rate,
        clients={
            client: LocalWork(
                num_examples=count,
                num_steps=int(reported[client][0]),
                distance=distance(done.after, local),
            )
            for client, (count, local) in done.models.items()
        },
        moved=distance(done.after, done.before),
        norm=norm(done.before),
        vectors={unit: norm(vector) for unit, vector in vectors.items()},
        premises=None if unmet else _premises(done, feature_norm),
        unmet=unmet,
    )
    one = KeptRound(lengths, weighting, content_hash(done.before), content_hash(done.after))
    return json.dumps(to_plain((*rounds, one)))


def rounds_of(text: str) -> tuple[KeptRound, ...]:
    """Return all rounds of which `append_round` has written a record, in their order."""
    return from_plain(tuple[KeptRound, ...], json.loads(text)) if text else ()


def has_trained(text: str, number: int) -> frozenset[str]:
    """Return the clients that took part in a round before `number`, as far as there are records."""
    before = [one.lengths for one in rounds_of(text) if one.lengths.number < number]
    return frozenset(client for lengths in before for client in lengths.clients)


def _unmet(
    done: FederatedRound, reported: Mapping[str, NDArray[np.float64]], feature_norm: float
) -> tuple[str, ...]:
    """Say in one sentence each why nothing can be proven of a round; empty where something can."""
    training = done.training
    if done.task is None or training is None:
        return ("Nothing is known of how it was trained.",)
    is_as_set = all(
        np.array_equal(reported[client], work_of(count, training, feature_norm))
        for client, (count, _) in done.models.items()
    )
    return (
        *unmet_assumptions(done.task, training.weight_decay),
        *(() if feature_norm else (NOT_DECLARED,)),
        *(() if _is_plain(training) else (_NOT_PLAIN,)),
        *(() if is_as_set else (_NOT_AS_SET,)),
        *(() if np.array_equal(weighted_mean(done.models), done.after) else (_NOT_MEAN,)),
    )


def _premises(done: FederatedRound, feature_norm: float) -> Premises:
    """Return what proves a round's part of the bound, of which `_unmet` has found nothing."""
    assert done.task is not None
    assert done.training is not None
    layer = linear_head(done.task).layer
    return Premises(
        constants=declared_logistic_constants(
            feature_norm=feature_norm, l2=done.training.weight_decay, frozen=frozen_part(done.task)
        ),
        arithmetic=Arithmetic(
            num_inputs=layer.in_features + (layer.bias is not None),
            num_classes=layer.out_features,
            feature_norm=feature_norm,
            batch_size=done.training.batch_size,
        ),
    )


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
