"""The records of one step of a small network: inputs whose gradient is the update, found by optimisation.

    g*  what was observed, the gradient up to scale (d,)       g(x)  the gradient at inputs x and known classes
    cosine  1 − ⟨g(x), g*⟩/(‖g(x)‖‖g*‖), which needs no learning rate         l2  ‖g(x) − g*‖²

By L-BFGS from random starts, of which the one counts whose gradient fits best. Classes come from `class_shares` or
`linear_record`.

Source: cosine, Geiping et al., Inverting Gradients (NeurIPS 2020); L2 with L-BFGS, Zhu et al., Deep Leakage from
Gradients (NeurIPS 2019). Of unlearning: FUIA (arXiv 2502.14558), which inverts differences of updates.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy  # its parts are imported at their first use
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unlearning.errors import DataError
from unlearning.parameters import Vector
from unlearning.tasks.task import Task
from unlearning.training import model_with


@dataclass(frozen=True, slots=True, kw_only=True)
class Inversion:
    """How to search.

    steps: of L-BFGS at most, each start. smoothness: weight of the total variation of pictures. low, high: of inputs.
    """

    matching: Literal["cosine", "l2"] = "cosine"
    steps: int = 300
    starts: int = 1
    smoothness: float = 0.0
    low: float = -np.inf
    high: float = np.inf
    seed: int = 0


def invert(
    task: Task, model: Vector, update: Vector, labels: Tensor, shape: tuple[int, ...], how: Inversion
) -> tuple[Tensor, float]:
    """Return inputs (n, *shape) whose gradient at `model` (d,) is `update` (d,), and the value of the matching reached.

    update: a gradient of the mean loss; with the cosine any positive multiple. labels: the classes (n,).

    Raises:
        DataError: the model has buffers or frozen parameters, or the update is not of its length.
    """
    network = model_with(task, model).eval()
    weights = list(network.parameters())
    size = sum(weight.numel() for weight in weights)
    if size != update.size:
        raise DataError(
            f"An update of {update.size:,} numbers is no gradient of {size:,} parameters; inversion takes models "
            "without buffers and frozen parameters."
        )
    observed = torch.from_numpy(np.ascontiguousarray(update)).to(task.dtype)

    def mismatch(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        inputs = torch.from_numpy(flat).to(task.dtype).reshape(-1, *shape).requires_grad_()
        loss = task.loss(network(inputs), labels)
        found = torch.cat(
            [part.reshape(-1) for part in torch.autograd.grad(loss, weights, create_graph=True)]
        )
        if how.matching == "l2":
            fit = ((found - observed) ** 2).sum()
        else:
            fit = 1 - nn.functional.cosine_similarity(found, observed, dim=0)
        if how.smoothness:
            fit = fit + how.smoothness * _total_variation(inputs)
        (slope,) = torch.autograd.grad(fit, [inputs])
        return float(fit.detach()), slope.double().numpy().ravel()

    generator, tries = np.random.default_rng(how.seed), []
    for _ in range(how.starts):
        start = generator.random(len(labels) * int(np.prod(shape)))
        options = {"maxiter": how.steps, "ftol": 1e-15, "gtol": 1e-12}
        bounds = [(how.low, how.high)] * start.size
        tries.append(
            scipy.optimize.minimize(
                mismatch, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options
            )
        )
    best = min(tries, key=lambda one: float(one.fun))
    return torch.from_numpy(best.x).to(task.dtype).reshape(-1, *shape), float(best.fun)


def _total_variation(pictures: Tensor) -> Tensor:
    across = (pictures[..., :, 1:] - pictures[..., :, :-1]).abs().mean()
    return across + (pictures[..., 1:, :] - pictures[..., :-1, :]).abs().mean()
