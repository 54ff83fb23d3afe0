"""The margin of an example: by how much a model prefers its true class, φ = log(p_y / (1 − p_y)).

Of a model that knows its examples by heart p is 1 but for what a number can hold: in single precision φ ends at 17, in
double precision at 36, and the surest examples, which give membership away, are all alike. So it is taken from outputs:

    φ = z_y − log Σ_{j≠y} exp z_j      z outputs (logits), y true class, p = softmax(z)
"""

import numpy as np
import scipy  # its parts are imported at their first use
from numpy.typing import NDArray

from unlearning.errors import DataError

Values = NDArray[np.float64]

_EDGE = 1e-12


def margins(outputs: Values, labels: NDArray[np.int64]) -> Values:
    """Compute φ (n,) from outputs (n, classes) of two classes or more and true classes (n,)."""
    own = np.take_along_axis(outputs.astype(np.float64), labels[:, np.newaxis], axis=1)
    others = outputs.astype(np.float64)
    np.put_along_axis(others, labels[:, np.newaxis], -np.inf, axis=1)
    result: Values = own[:, 0] - scipy.special.logsumexp(others, axis=1)
    return result


def logit_confidence(confidences: Values) -> Values:
    """Compute φ where only the true class's probability p is known; p is kept 1e-12 away from 0 and 1.

    Raises:
        DataError: a confidence lies outside [0, 1].
    """
    if not np.all((confidences >= 0) & (confidences <= 1)):
        raise DataError("A confidence is a probability from 0 to 1.")
    inside = np.clip(confidences, _EDGE, 1 - _EDGE)
    result: Values = np.log(inside) - np.log1p(-inside)
    return result
