"""The gradient of the mean loss, and the diagonal of the empirical Fisher matrix."""

import torch
from torch import Tensor
from torch.func import grad, vmap

from unlearning.curvature.local_loss import LocalLoss, exact_kernels
from unlearning.parameters import Vector
from unlearning.tasks.inputs import Inputs, each
from unlearning.tasks.task import Examples, Task

DEFAULT_BATCH_SIZE = 64
DEFAULT_PER_EXAMPLE_BUDGET_BYTES = 256 * 2**20


def gradient(
    task: Task,
    parameters: Vector,
    examples: Examples,
    *,
    l2: float = 0.0,
    micro_batch_size: int = DEFAULT_BATCH_SIZE,
) -> Vector:
    """Compute ∇ of the mean loss over `examples` plus l2/2 ‖θ‖², at θ = `parameters` (d,): shape (d,),
    task's dtype.

    `l2` is what training calls weight decay: it adds l2·θ. Constants of the model (buffers, frozen
    weights) have gradient zero, with `l2` too.

    Raises:
        DataError: there is no example.
        NumericalError: the model has no gradient that fits its examples; see `LocalLoss`.
        UpdateRefused: `parameters` does not have the model's length.
    """
    local = LocalLoss(task, parameters, examples)
    total = local.zeros()
    with exact_kernels(local.device):
        for batch in local.batches(micro_batch_size):
            inputs, targets = local.read(batch)
            loss = local.task.loss(local.outputs(inputs), targets)
            parts = torch.autograd.grad(loss, local.trainable, allow_unused=True, materialize_grads=True)
            local.add(total, parts, local.weight(batch))
    if l2:
        local.add(total, local.trainable, l2)
    return total.cpu().numpy()


def fisher_diagonal(
    task: Task,
    parameters: Vector,
    examples: Examples,
    *,
    memory_budget_bytes: int = DEFAULT_PER_EXAMPLE_BUDGET_BYTES,
) -> Vector:
    """Compute (1/n) Σ_i (∇ℓ_i)², squared entry by entry: shape (d,), task's dtype, zero for constants.

    ℓ_i is the loss of one example, without an L2 term. As many per-example gradients are held at once
    as fit `memory_budget_bytes`, one at least.

    Raises:
        DataError: there is no example.
        NumericalError: the model has no gradient that fits its examples; see `LocalLoss`.
        UpdateRefused: `parameters` does not have the model's length.
    """
    local = LocalLoss(task, parameters, examples)
    gradient_bytes = local.dimension * local.zeros().element_size()
    total = local.zeros()
    with exact_kernels(local.device):
        for batch in local.batches(max(1, memory_budget_bytes // gradient_bytes)):
            local.add(total, _sums_of_squares(local, batch), 1 / len(local))
    return total.cpu().numpy()


def _sums_of_squares(local: LocalLoss, batch: slice) -> list[Tensor]:
    """Compute Σ_i (∇ℓ_i)² over the examples at `batch`, one tensor a trainable parameter."""
    try:
        return [gradients.square().sum(dim=0) for gradients in _batched_gradients(local, batch)]
    except RuntimeError as exc:
        # torch's word for a model that branches on values or changes a tensor in place
        if "vmap" not in str(exc):
            raise
    squares = [torch.zeros_like(parameter) for parameter in local.trainable]
    for start in range(batch.start, batch.stop):
        one = slice(start, start + 1)
        inputs, targets = local.read(one)
        loss = local.task.loss(local.outputs(inputs), targets)
        parts = torch.autograd.grad(loss, local.trainable, allow_unused=True, materialize_grads=True)
        squares = [square + part.square() for square, part in zip(squares, parts, strict=True)]
    return squares


def _batched_gradients(local: LocalLoss, batch: slice) -> list[Tensor]:
    """Compute ∇ℓ_i of each example at `batch`, a tensor (n_b, ...) for each trainable parameter.

    Only the model runs under vmap. The loss enters by its gradient with respect to the outputs, taken for
    the whole batch: losses use operations, such as one-hot masks, that vmap cannot see through.
    """
    weights = {name: parameter.detach() for name, parameter in zip(local.names, local.trainable, strict=True)}
    inputs, targets = local.read(batch)
    with torch.no_grad():
        outputs = local.outputs(inputs)
    outputs.requires_grad_()
    loss = local.task.loss(outputs, targets) * (batch.stop - batch.start)
    (slopes,) = torch.autograd.grad(loss, (outputs,))

    def along_slope(weights: dict[str, Tensor], one_input: Inputs, slope: Tensor) -> Tensor:
        output = local.outputs(each(lambda one: one.unsqueeze(0), one_input), weights)
        return (output.squeeze(0) * slope).sum()

    gradients: dict[str, Tensor] = vmap(grad(along_slope), in_dims=(None, 0, 0))(weights, inputs, slopes)
    return [gradients[name] for name in weights]
