"""KLoM: how far the margins of unlearned models are from those of retrained ones, example by example.

Training is random, so one retrained model says little; many say how the margin of an example is distributed. For each
example x the margins φ(x) of the unlearned models and of the retrained ones (the oracles) become two histograms
over the same bins, and

    KLoM(x) = Σ_b p_b log(p_b / max(q_b, 1e-5))        p of the unlearned models, q of the oracles

over 20 equal bins from the smallest to the largest of both, margins bounded to ±100. 0: the same histogram; log 1e5 =
11.5: no bin in common.

Two sets of oracles are not at 0 either: their distance is the floor, which falls with the number of models, and only
what lies above it says something.

In one thing this is not the code that is named below: its last bin leaves out the largest margin of all, so one model
drops out of one of the histograms. Here the last bin has it, and the shares of each side add up to 1.

Source: Georgiev et al., Attribute-to-Delete: Machine Unlearning via Datamodel Matching (ICLR 2025), and the code of the
data-unlearning benchmark (RoyRin/data-unlearning-bench) for bins, bounds and the direction of the divergence.
"""

from dataclasses import dataclass

import numpy as np
import scipy  # its parts are imported at their first use
from numpy.typing import NDArray

from unlearning.errors import DataError

Values = NDArray[np.float64]

BINS = 20
BOUND = 100.0
SMALLEST = 1e-5


@dataclass(frozen=True, slots=True)
class Klom:
    """The distances of a set of examples: their mean and 95th percentile."""

    mean: float
    p95: float


def klom(unlearned: Values, oracles: Values) -> Values:
    """Compute KLoM of each of n examples (n,) from margins φ of models, (u, n) and (o, n).

    Raises:
        DataError: there is no model on a side, the examples differ in number, or a margin is not a finite number.
    """
    _check(unlearned, oracles)
    ours, theirs = np.clip(unlearned, -BOUND, BOUND), np.clip(oracles, -BOUND, BOUND)
    low = np.minimum(ours.min(axis=0), theirs.min(axis=0))
    width = np.maximum(ours.max(axis=0), theirs.max(axis=0)) - low
    width[width == 0] = 1.0  # all alike: one bin
    p, q = (_shares(side, low, width) for side in (ours, theirs))
    distances: Values = scipy.special.rel_entr(p, np.maximum(q, SMALLEST)).sum(axis=0)
    return distances


def summary(distances: Values) -> Klom:
    """Return mean and 95th percentile of the distances of one example or more."""
    return Klom(mean=float(distances.mean()), p95=float(np.percentile(distances, 95)))


def _shares(margins: Values, low: Values, width: Values) -> Values:
    """Return the share of models in each bin (bins, n); the largest margin belongs to the last bin."""
    which = np.minimum(((margins - low) / width * BINS).astype(np.intp), BINS - 1)
    return np.stack([(which == number).mean(axis=0) for number in range(BINS)])


def _check(unlearned: Values, oracles: Values) -> None:
    shapes = unlearned.shape, oracles.shape
    if any(len(shape) != 2 or shape[0] == 0 for shape in shapes) or shapes[0][1] != shapes[1][1]:
        raise DataError(
            f"Margins of models have the shape (models, examples), got {shapes[0]} and {shapes[1]}."
        )
    if not (np.isfinite(unlearned).all() and np.isfinite(oracles).all()):
        raise DataError("A margin is not a finite number; KLoM needs models that did not blow up.")
