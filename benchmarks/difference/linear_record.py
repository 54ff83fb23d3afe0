"""The record itself, from the change of a linear layer: closed form, and exact where the change is of one record.

    x̃  a record's inputs to the layer and a 1 for its bias (D,)     e_y  its class, one-hot (C,)
    Θ, Θ'  the layer before and after (D, C), the last row its bias  X̃, Y  inputs (n, D) and classes (n, C) of all

**Ridge.** Θ solves AΘ = B with A = X̃ᵀX̃ + λI, B = X̃ᵀY; without the record (A − x̃x̃ᵀ)Θ' = B − x̃e_yᵀ. Subtracted,

    A (Θ' − Θ) = x̃ rᵀ,    r = Θ'ᵀx̃ − e_y                                                       (1)

a matrix of rank one. Its left singular vector is x̃ up to scale, and x̃_D = 1 gives the scale; e_y = Θ'ᵀx̃ − r. Who
holds A (a server that kept the sums) has the record exactly; who knows similar data has A ≈ (N/m) X̃ₘᵀX̃ₘ + λI.
Source: Bertran et al., Reconstruction Attacks on Machine Unlearning (NeurIPS 2024), for one output; C outputs as here.

**Steps of gradient descent or ascent.** A dense layer's gradient by one record is x̃ δᵀ. A record that alone makes the
steps is x̃ in all of them, if the layer is the first: Θ' − Θ = x̃ (Σ ±η δ)ᵀ, of rank one again, whatever the number of
steps. There A is the identity, and δ is lowest at y for the last layer.

**Several records.** Of k records the matrix is Σ x̃ rᵀ, of rank min(k, C) at most: the span of the records, not the
records. `share` says how near to rank one it is.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from unlearning.errors import NumericalError

Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRecord:
    """What a change tells of a record.

    features (D − 1,): inputs of the layer. residual (C,): r of Eq. (1), or the sum of ±η δ.
    label: the class; of a step where the residual is lowest.
    share: of the matrix's squared norm that the rank-one part has; 1 where it is one record's alone.
    """

    features: Matrix
    residual: Matrix
    label: int
    share: float


def record_of_ridge(before: Matrix, after: Matrix, gram: Matrix) -> FoundRecord:
    """Return the record that a ridge head was solved without, by Eq. (1).

    before, after: Θ and Θ' (D, C). gram: A (D, D), its λI included, or an estimate of it.

    Raises:
        NumericalError: the head has not changed, or the change names no record.
    """
    found = record_of_change(gram @ (after - before))
    one_hot = after.T @ np.append(found.features, 1.0) - found.residual
    return replace(found, label=int(one_hot.argmax()))


def record_of_change(change: Matrix) -> FoundRecord:
    """Return the record of a matrix x̃ rᵀ (D, C), such as the change of a first dense layer, the last row its bias.

    Raises:
        NumericalError: it is zero, or its last row is, which gives the scale.
    """
    left, values, right = np.linalg.svd(change, full_matrices=False)
    scale = left[-1, 0]
    if values[0] == 0 or abs(scale) < np.finfo(np.float64).eps:
        raise NumericalError(
            "The change of the layer names no record: it is zero, or its bias has not moved."
        )
    residual = values[0] * scale * right[0]
    return FoundRecord(
        features=left[:-1, 0] / scale,
        residual=residual,
        label=int(residual.argmin()),
        share=float(values[0] ** 2 / np.sum(values**2)),
    )


def estimated_gram(similar: Matrix, num_examples: int, l2: float) -> Matrix:
    """Return A (D, D) as an outsider estimates it, from m similar records (m, D − 1) and the number N of examples."""
    inputs = np.column_stack([similar, np.ones(len(similar))])
    return num_examples / len(similar) * inputs.T @ inputs + l2 * np.eye(inputs.shape[1])
