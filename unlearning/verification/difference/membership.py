"""Was this record deleted? Its loss and its confidence under the model before and the model after.

    p, q  posteriors of a record before and after (classes,)      y  its class
    rise of the loss         (−log q_y) − (−log p_y)              fall of the confidence    p_y − q_y

Both are higher where the model has lost the record. They are ranked against test records, which no model was trained on
(`attack_result.rank_against`).

Source: Chen et al., When Machine Unlearning Jeopardizes Privacy (CCS 2021), whose attacker holds both models; the two
scores are the differences of Yeom's and of the confidence attack's.
"""

import numpy as np

from unlearning.errors import DataError
from unlearning.verification.thresholds import Labels, Values

_FLOOR = 1e-300


def losses_of(posteriors: Values, labels: Labels) -> Values:
    """Compute −log p_y (n,) in nats of posteriors (n, classes), to full precision also where p_y is next to 1.

    Raises:
        DataError: a label is no class of theirs.
    """
    count, classes = posteriors.shape
    if labels.shape != (count,) or np.any((labels < 0) | (labels >= classes)):
        raise DataError(f"{count} posteriors need as many labels from 0 to {classes - 1}.")
    rows = np.arange(count)
    own = posteriors[rows, labels].astype(np.float64)
    others = posteriors.astype(np.float64)
    others[rows, labels] = 0.0
    rest = others.sum(axis=1)  # 1 − p_y, which the subtraction would round to 0
    losses: Values = np.where(rest < 0.5, -np.log1p(-np.minimum(rest, 0.5)), -np.log(np.maximum(own, _FLOOR)))
    return losses


def rise_of_loss(before: Values, after: Values, labels: Labels) -> Values:
    """Compute by how much the loss has risen (n,), of posteriors (n, classes) of both models.

    Raises:
        DataError: as for `losses_of`.
    """
    return losses_of(after, labels) - losses_of(before, labels)


def fall_of_confidence(before: Values, after: Values, labels: Labels) -> Values:
    """Compute by how much the true class's probability has fallen (n,)."""
    rows = np.arange(len(labels))
    fall: Values = before[rows, labels].astype(np.float64) - after[rows, labels]
    return fall
