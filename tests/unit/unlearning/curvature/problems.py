"""Every model family made small, and the dense float64 matrices of its loss by another route.

The oracles write the loss out as one function of the flat vector and differentiate it entry by entry over
the whole data set at once: no mini-batches, no weights, no products.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from tests.tasks import initial_model
from unlearning.parameters import Vector, at_home, flatten, travelling
from unlearning.tasks import convnets, losses
from unlearning.tasks.convnets import BasicBlock, ResUNet
from unlearning.tasks.task import Examples, Task
from unlearning.tasks.vit import Block

CLASSES = 3


class TinyViT(nn.Module):
    """The project's transformer block between 4x4 patches and a head on the first token."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 4, 4, stride=4)
        self.positions = nn.Parameter(0.1 * torch.randn(1, 4, 4))
        self.block = Block(4, 2)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.norm(self.block(tokens))[:, 0])


class TinyFusedAttention(nn.Module):
    """A user's own model: fused attention, which has no second derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        tokens = images.flatten(1, 2)
        mixed, _ = self.attention(tokens, tokens, tokens, need_weights=False)
        return self.head(mixed.mean(dim=1))


class TinyTied(nn.Module):
    """A weight used under two names, and a running mean: not all of θ is trainable."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 3, bias=False)
        self.inner = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.again = nn.Linear(3, 3)
        self.again.weight = self.inner.weight
        self.head = nn.Linear(3, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.tanh(self.inner(torch.tanh(self.first(images.flatten(1)))))
        return self.head(torch.tanh(self.again(self.norm(hidden))))


class TinyFrozen(nn.Module):
    """A frozen layer and running statistics, which stay at home, and a trained layer on either side."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 3, bias=False)
        self.frozen = nn.Linear(3, 4).requires_grad_(False)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.norm(torch.tanh(self.frozen(torch.tanh(self.first(images.flatten(1)))))))


def logistic() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, CLASSES))


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 4), nn.ReLU(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, CLASSES)
    )


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
        nn.Flatten(), nn.Linear(16, 6), nn.ReLU(), nn.Linear(6, CLASSES),
    )  # fmt: skip


def small_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, CLASSES),
    )  # fmt: skip


def lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 2, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(2, 3, 3), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(),
        nn.Linear(4, CLASSES),
    )  # fmt: skip


def resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1, bias=False), nn.GroupNorm(2, 2), nn.ReLU(),
        BasicBlock(2, 2, 1), BasicBlock(2, 4, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, CLASSES),
    )  # fmt: skip


def res_unet() -> nn.Module:
    with patch.object(convnets, "UNET_WIDTHS", (2, 2, 2)), patch.object(convnets, "UNET_GROUPS", 2):
        return ResUNet((1, 8, 8), CLASSES)


FAMILIES: Mapping[str, Callable[[], nn.Module]] = {
    "logistic": logistic,
    "mlp": mlp,
    "cnn": cnn,
    "small-cnn": small_cnn,
    "lenet": lenet,
    "resnet18": resnet,
    "vit-lite": TinyViT,
    "res-unet": res_unet,
    "fused-attention": TinyFusedAttention,
    "tied-buffers": TinyTied,
    "frozen": TinyFrozen,
}


@dataclass(frozen=True)
class TinyProblem:
    """A task, its parameters (d,) and five examples; `model` is the oracle's own copy."""

    task: Task
    theta: Vector
    examples: Examples
    model: nn.Module


def tiny_problem(family: str, dtype: torch.dtype = torch.float64, num_examples: int = 5) -> TinyProblem:
    """Fixed seeds: the same problem every time."""
    segmentation = family == "res-unet"
    task = Task(
        name=family,
        num_classes=CLASSES,
        score_name="dice" if segmentation else "accuracy",
        build_model=FAMILIES[family],
        loss=losses.cross_entropy_and_dice if segmentation else losses.cross_entropy,
        per_example=losses.segmentation_measures if segmentation else losses.classification_measures,
        dtype=dtype,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = FAMILIES[family]().to(dtype).eval()
        model.load_state_dict(at_home(initial_model(task, seed=0)), strict=False)
        for tensor in travelling(model).values():  # biases and norms start at 0 and 1, which hide terms
            tensor.data.add_(0.3 * torch.rand_like(tensor))
        inputs = torch.randn(num_examples, 1, 8, 8, dtype=torch.float64)
        shape = (num_examples, 8, 8) if segmentation else (num_examples,)
        targets = torch.randint(CLASSES, shape)
    ids = np.array([str(index) for index in range(num_examples)])
    return TinyProblem(task, flatten(model), Examples(inputs, targets, ids), model)


def trainable_mask(problem: TinyProblem) -> NDArray[np.bool_]:
    """Which entries of the flat vector are trained, (d,)."""
    tensors = travelling(problem.model).values()
    return np.concatenate([np.full(tensor.numel(), tensor.requires_grad) for tensor in tensors])


def _outputs_of(problem: TinyProblem) -> tuple[Callable[[Tensor], Tensor], Tensor, NDArray[np.bool_]]:
    """The outputs as a function of the trainable entries only, those entries, and where they lie."""
    tensors = travelling(problem.model)
    names = list(tensors)
    mask = trainable_mask(problem)
    theta = torch.from_numpy(problem.theta.copy())

    def outputs(trained: Tensor) -> Tensor:
        whole = theta.masked_scatter(torch.from_numpy(mask), trained)
        pieces, start = {}, 0
        for name in names:
            size = tensors[name].numel()
            piece = whole[start : start + size].reshape(tensors[name].shape)
            pieces[name] = piece if mask[start] else piece.detach()  # batch norm refuses means with a graph
            start += size
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return functional_call(problem.model, pieces, (problem.examples.inputs.to(theta.dtype),))

    return outputs, theta[torch.from_numpy(mask)], mask


def _embedded(matrix: Tensor, mask: NDArray[np.bool_]) -> NDArray[np.float64]:
    """A matrix of the trainable entries, with zero rows and columns for the others."""
    whole = np.zeros((mask.size,) * matrix.ndim)
    whole[np.ix_(*[np.flatnonzero(mask)] * matrix.ndim)] = matrix.detach().numpy()
    return whole


def dense_gradient(problem: TinyProblem) -> NDArray[np.float64]:
    """∇ of the mean loss, (d,)."""
    outputs, trained, mask = _outputs_of(problem)
    loss = lambda at: problem.task.loss(outputs(at), problem.examples.targets)  # noqa: E731 a formula
    return _embedded(torch.autograd.functional.jacobian(loss, trained), mask)


def dense_hessian(problem: TinyProblem) -> NDArray[np.float64]:
    """∇² of the mean loss, (d, d)."""
    outputs, trained, mask = _outputs_of(problem)
    loss = lambda at: problem.task.loss(outputs(at), problem.examples.targets)  # noqa: E731 a formula
    can_batch = torch.__version__ >= (2, 14)  # GroupNorm's second derivative
    return _embedded(torch.autograd.functional.hessian(loss, trained, vectorize=can_batch), mask)


def dense_gauss_newton(problem: TinyProblem) -> NDArray[np.float64]:
    """Jᵀ (∂²ℓ/∂z²) J with explicit J and output Hessian, (d, d)."""
    outputs, trained, mask = _outputs_of(problem)
    z = outputs(trained).detach()
    jacobian = torch.autograd.functional.jacobian(lambda at: outputs(at).reshape(-1), trained, vectorize=True)
    loss = lambda flat: problem.task.loss(flat.reshape(z.shape), problem.examples.targets)  # noqa: E731
    middle = torch.autograd.functional.hessian(loss, z.reshape(-1))
    return _embedded(jacobian.T @ middle @ jacobian, mask)


def per_example_gradients(problem: TinyProblem) -> NDArray[np.float64]:
    """∇ℓ_i for each example, (n, d), by one ordinary gradient each."""
    outputs, trained, mask = _outputs_of(problem)
    rows = []
    for index in range(len(problem.examples)):
        one = slice(index, index + 1)
        loss = lambda at, one=one: problem.task.loss(outputs(at)[one], problem.examples.targets[one])  # noqa: E731
        rows.append(_embedded(torch.autograd.functional.jacobian(loss, trained), mask))
    return np.stack(rows)
