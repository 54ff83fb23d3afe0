"""How close an unlearned model is to the retrained one: pure functions on arrays.

Legend: z outputs (logits) of shape (n, classes) or (n, classes, ...), p = softmax(z) over axis 1, θ flat vectors.
Source: HF-KCU, section on equivalence to retraining, for KL, logit MSE and causal faithfulness.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax
from scipy.stats import pearsonr, spearmanr

from unlearning.errors import DataError
from unlearning.parameters import Vector

Array = NDArray[np.floating]

FAITHFULNESS_FLOOR = 0.01
"""Where original and retrained accuracy differ by less, causal faithfulness says nothing."""


def kl_divergence(retrained: Array, unlearned: Array) -> float:
    """Return mean over examples of KL(p_retrained ‖ p_unlearned), in nats, from logits (n, classes, ...).

    Raises:
        DataError: the two differ in shape or are empty.
    """
    _check_pair(retrained, unlearned)
    log_p = log_softmax(retrained.astype(np.float64), axis=1)
    log_q = log_softmax(unlearned.astype(np.float64), axis=1)
    return float(np.sum(np.exp(log_p) * (log_p - log_q), axis=1).mean())


def logit_mse(retrained: Array, unlearned: Array) -> float:
    """Return mean squared difference of logits.

    Raises:
        DataError: the two differ in shape or are empty.
    """
    _check_pair(retrained, unlearned)
    return float(np.mean((retrained.astype(np.float64) - unlearned.astype(np.float64)) ** 2))


def prediction_agreement(retrained: Array, unlearned: Array) -> float:
    """Return share of predictions (argmax over axis 1) that are the same.

    Raises:
        DataError: the two differ in shape or are empty.
    """
    _check_pair(retrained, unlearned)
    return float(np.mean(retrained.argmax(axis=1) == unlearned.argmax(axis=1)))


def parameter_gap(retrained: Vector, unlearned: Vector) -> float:
    """Compute ‖θ_u − θ_r‖ / ‖θ_r‖.

    Raises:
        DataError: the lengths differ or θ_r is zero.
    """
    if retrained.shape != unlearned.shape:
        raise DataError(f"The models differ in length: {retrained.shape} and {unlearned.shape}.")
    size = float(np.linalg.norm(retrained.astype(np.float64)))
    if size == 0:
        raise DataError("The retrained model is zero; a relative gap has no meaning.")
    return float(np.linalg.norm(unlearned.astype(np.float64) - retrained.astype(np.float64))) / size


@dataclass(frozen=True, slots=True)
class Faithfulness:
    """Causal faithfulness: `value` is None, with the reason in `warning`, where it would mean nothing."""

    value: float | None
    warning: str = ""


def causal_faithfulness(original: float, unlearned: float, retrained: float) -> Faithfulness:
    """Compute CF = 1 − |Acc_u − Acc_r| / |Acc_o − Acc_r| of accuracies in [0, 1]: 1 is what retraining gives.

    The ratio is unstable where retraining hardly changes the accuracy: under one percentage point it is
    not given.
    """
    denominator = abs(original - retrained)
    if denominator < FAITHFULNESS_FLOOR:
        return Faithfulness(
            None,
            f"retraining changes the accuracy by {100 * denominator:.2f} points, under "
            f"{100 * FAITHFULNESS_FLOOR:g}; the ratio would say nothing",
        )
    return Faithfulness(1 - abs(unlearned - retrained) / denominator)


@dataclass(frozen=True, slots=True)
class Correlation:
    """Pearson's and Spearman's correlation of the loss changes, example by example."""

    pearson: float
    spearman: float


def loss_change_correlation(original: Array, unlearned: Array, retrained: Array) -> Correlation:
    """Return how the loss changes of unlearning follow those of retraining; each array (n,) of forgotten examples.

    Raises:
        DataError: the shapes differ, there are fewer than 2 examples, or a change is the same everywhere.
    """
    _check_pair(original, unlearned)
    _check_pair(original, retrained)
    ours, true = unlearned - original, retrained - original
    if len(ours) < 2 or np.ptp(ours) == 0 or np.ptp(true) == 0:
        raise DataError("A correlation needs two examples or more whose loss changes differ.")
    return Correlation(float(pearsonr(ours, true).statistic), float(spearmanr(ours, true).statistic))


def _check_pair(one: Array, other: Array) -> None:
    if one.shape != other.shape or one.size == 0:
        raise DataError(f"Two arrays of the same shape are needed, got {one.shape} and {other.shape}.")
