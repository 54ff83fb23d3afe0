"""The Gaussian Unlearning Score: a data owner adds noise to some of its examples, and later asks models for it.

Before training, Gaussian noise ξ of deviation σ is added to the inputs of a few examples, 1.5 % of all in the paper;
only its owner knows ξ. A model that was trained on x + ξ has a loss that falls from x towards x + ξ, so the gradient
of the loss at the clean x has to do with ξ. For a model that never saw the noise it has nothing to do with it:

    s = −⟨∇_x ℓ(θ; x, y), ξ⟩ / (σ ‖∇_x ℓ(θ; x, y)‖)        N(0, 1) of a model that never saw ξ

So no shadow models are needed and the false-positive rate is known. Over k examples mean(s)·√k is N(0, 1) as well. The
sign is ours: positive means remembered.

Source: Pawelczyk et al., Machine Unlearning Fails to Remove Data Poisoning Attacks (ICLR 2025, arXiv 2406.17216). Of
the paper only the beginning could be read; that the gradient is taken at the clean input, and the scaling, are from a
public re-implementation of its algorithm.
"""

from dataclasses import dataclass

import numpy as np
import scipy  # its parts are imported at their first use
import torch
from numpy.typing import NDArray
from torch import Tensor

from unlearning.errors import DataError
from unlearning.evaluation import EVALUATION_BATCH
from unlearning.parameters import Vector
from unlearning.tasks.task import Examples, Task
from unlearning.training import model_with
from unlearning.verification.discrimination import LOW_FPR

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Planted:
    """What the data owner keeps: k clean examples, the noise added to them (k, ...), and its deviation σ."""

    clean: Examples
    noise: Tensor
    deviation: float


@dataclass(frozen=True, slots=True)
class GaussianScore:
    """What the noise says of a model.

    mean: of the scores of k examples. z: mean·√k, N(0, 1) of a model that never saw the noise.
    p_value: how often such a model has this z or a larger one.
    tpr: the share of examples whose score such a model exceeds in 1 % of cases only.
    """

    mean: float
    z: float
    p_value: float
    tpr: float


def plant(
    examples: Examples, share: float, deviation: float, generator: np.random.Generator
) -> tuple[Examples, Planted]:
    """Return the examples with noise on a random `share` of them (one at least), and what their owner keeps.

    Raises:
        DataError: there is no example, the share lies outside 0 to 1, or the deviation is not above 0.
    """
    if not (0 < share <= 1 and deviation > 0 and len(examples)):
        raise DataError(
            f"Noise needs examples, a share above 0 up to 1 and a deviation above 0, got {len(examples)} examples, "
            f"{share} and {deviation}."
        )
    chosen = generator.permutation(len(examples))[: max(1, round(share * len(examples)))]
    clean = examples.select(chosen)
    noise = torch.from_numpy(generator.normal(0.0, deviation, tuple(clean.inputs.shape))).to(
        clean.inputs.dtype
    )
    inputs = examples.inputs.clone()
    inputs[torch.from_numpy(chosen)] += noise
    return Examples(inputs, examples.targets, examples.ids), Planted(clean, noise, deviation)


def scores(task: Task, model: Vector, planted: Planted) -> Values:
    """Compute s (k,) of the model (d,); 0 where its loss has no gradient.

    Raises:
        DataError: a gradient is not a finite number.
    """
    network = model_with(task, model).eval()
    found = []
    for start in range(0, len(planted.clean), EVALUATION_BATCH):
        stop = start + EVALUATION_BATCH
        inputs = planted.clean.inputs[start:stop].to(task.dtype).requires_grad_()
        losses, _, _ = task.per_example(network(inputs).double(), planted.clean.targets[start:stop])
        (gradient,) = torch.autograd.grad(losses.sum(), inputs)
        slope = gradient.double().flatten(1)
        along = (slope * planted.noise[start:stop].double().flatten(1)).sum(dim=1)
        lengths = slope.norm(dim=1)
        found.append(torch.where(lengths > 0, -along / (planted.deviation * lengths.clamp(min=1e-300)), 0.0))
    values: Values = torch.cat(found).numpy()
    if not np.isfinite(values).all():
        raise DataError("The gradient of the loss at a planted example is not a finite number.")
    return values


def judge(values: Values) -> GaussianScore:
    """Return what the scores (k,) of a model say; k is one or more."""
    mean = float(values.mean())
    z = mean * float(np.sqrt(len(values)))
    return GaussianScore(
        mean=mean,
        z=z,
        p_value=float(scipy.stats.norm.sf(z)),
        tpr=float((values > scipy.stats.norm.isf(LOW_FPR)).mean()),
    )
