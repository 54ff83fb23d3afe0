"""LiRA, the likelihood-ratio attack: is an example's confidence that of models trained with or without it?

Shadow models are trained on random halves of the examples. For each example, the margins φ of the
shadows that trained on it and of those that did not are fitted by one Gaussian each, for they look
Gaussian; the attacked model's margin is then judged by these two.

Legend: z outputs, p = softmax(z), y true class, s shadow models, n examples.

    margin      φ = log(p_y / (1 − p_y)) = z_y − log Σ_{j≠y} exp z_j, taken from outputs: of a model that knows its
                examples by heart p is 1 but for what a number can hold, and the surest examples, which give membership
                away, would all be alike (in single precision φ would end at 17, in double precision at 36)

    score       Λ = log N(φ; μ_in, σ_in²) − log N(φ; μ_out, σ_out²)

μ are means, as in Algorithm 1; the authors' code takes medians. On networks that know their examples by heart, with
8 to 64 shadow models, the AUCs of the two were 0.00 to 0.02 apart, to either side.

Source: Carlini et al., Membership Inference Attacks From First Principles (S&P 2022), Algorithm 1 and §V-B.
"""

from dataclasses import dataclass

import numpy as np
import scipy  # its parts are imported at their first use
from numpy.typing import NDArray

from unlearning.errors import DataError

Values = NDArray[np.float64]
Mask = NDArray[np.bool_]

_SMALLEST_DEVIATION = 1e-6


@dataclass(frozen=True, slots=True)
class Shadows:
    """Shadow models' margins φ (s, n), and who trained on what, (s, n).

    Raises:
        DataError: the two do not fit, or a margin is not a finite number.
    """

    margins: Values
    trained_on: Mask

    def __post_init__(self) -> None:
        if self.margins.ndim != 2 or self.margins.shape != self.trained_on.shape:
            raise DataError(
                "Shadow models' margins and who trained on what have the shape (shadows, examples), got "
                f"{self.margins.shape} and {self.trained_on.shape}."
            )
        _check_finite(self.margins)


@dataclass(frozen=True, slots=True)
class Gaussians:
    """One Gaussian an example, fitted to its φ under the shadow models of one side, all arrays (n,).

    variances: divided by the number of values, `counts`, which is two or more.
    """

    means: Values
    variances: Values
    counts: Values

    def deviations(self, *, global_variance: bool) -> Values:
        """Return standard deviations (n,), one and the same for all examples if `global_variance`."""
        variances = self.variances
        if global_variance and len(variances):
            variances = np.full(len(variances), (variances * self.counts).sum() / self.counts.sum())
        return np.maximum(np.sqrt(variances), _SMALLEST_DEVIATION)


def fit(shadows: Shadows) -> tuple[Gaussians, Gaussians]:
    """Return what models look like that were trained on an example, and what those that were not: φ of each example.

    A side of an example with fewer than two shadow models has a count of 0 or 1, which the scores refuse.
    """
    return _side(shadows.margins, shadows.trained_on), _side(shadows.margins, ~shadows.trained_on)


def online_scores(
    target: Values, inside: Gaussians, outside: Gaussians, *, global_variance: bool = False
) -> Values:
    """Return the log likelihood ratio Λ of "trained on" for the attacked model's margins φ (n,): higher, more so.

    global_variance: one variance a side for all examples, better where shadows are few. It is that of the
        values about their own example's mean; the authors' code takes it about the mean of all examples,
        which adds the examples' differences to it.

    Raises:
        DataError: the shapes do not fit, or an example lacks two shadows on a side.
    """
    _check(target, inside, "with")
    _check(target, outside, "without")
    result: Values = scipy.stats.norm.logpdf(
        target, inside.means, inside.deviations(global_variance=global_variance)
    ) - scipy.stats.norm.logpdf(target, outside.means, outside.deviations(global_variance=global_variance))
    return result


def _side(values: Values, mask: Mask) -> Gaussians:
    """Return the Gaussians of the masked values (s, n); where there is none, of mean and variance 0."""
    counts = mask.sum(axis=0).astype(np.float64)
    divisors = np.maximum(counts, 1)
    means = np.where(mask, values, 0.0).sum(axis=0) / divisors
    variances = np.where(mask, (values - means) ** 2, 0.0).sum(axis=0) / divisors
    return Gaussians(means, variances, counts)


def _check(target: Values, fitted: Gaussians, side: str) -> None:
    if target.shape != fitted.means.shape:
        raise DataError(
            f"The attacked model needs a margin for each of {len(fitted.means)} examples, got shape "
            f"{target.shape}."
        )
    if np.any(fitted.counts < 2):
        raise DataError(
            f"{int(np.sum(fitted.counts < 2)):,} examples have fewer than two shadow models {side} them; "
            "train more shadow models."
        )
    _check_finite(target)


def _check_finite(values: Values) -> None:
    if not np.isfinite(values).all():
        raise DataError("A margin is not a finite number; the model's outputs have left the finite numbers.")
