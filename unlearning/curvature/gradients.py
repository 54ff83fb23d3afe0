"""The gradient of the mean loss, and the diagonal of the empirical Fisher matrix."""

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from unlearning.curvature.local_loss import LocalLoss, exact_kernels
from unlearning.parameters import Vector
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
    device: torch.device | None = None,
) -> Vector:
    """∇ of the mean loss over `examples` plus l2/2 ‖θ‖², at θ = `parameters` (d,): shape (d,), task's dtype.

    `l2` is what training calls weight decay: it adds l2·θ. Constants of the model (buffers, frozen
    weights) have gradient zero, with `l2` too.

    Raises:
        DataError: there is no example.
        NumericalError: the model has no gradient that fits its examples; see `LocalLoss`.
        UpdateRefused: `parameters` does not have the model's length.
    """
    local = LocalLoss(task, parameters, examples, device)
    total = local.zeros()
    with exact_kernels(local.device):
        for batch in local.batches(micro_batch_size):
            loss = task.loss(local.outputs(batch), local.targets(batch))
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
    device: torch.device | None = None,
) -> Vector:
    """(1/n) Σ_i (∇ℓ_i)², squared entry by entry: shape (d,), task's dtype, zero for constants.

    ℓ_i is the loss of one example, without an L2 term. As many per-example gradients are held at once
    as fit `memory_budget_bytes`, one at least.

    Raises:
        DataError: there is no example.
        NumericalError: the model has no gradient that fits its examples; see `LocalLoss`.
        UpdateRefused: `parameters` does not have the model's length.
    """
    local = LocalLoss(task, parameters, examples, device)
    names = {parameter: name for name, parameter in local.model.named_parameters()}
    weights = {names[parameter]: parameter.detach() for parameter in local.trainable}

    def loss_of_one(weights: dict[str, Tensor], one_input: Tensor, one_target: Tensor) -> Tensor:
        outputs = functional_call(local.model, weights, (one_input.unsqueeze(0),))
        return task.loss(outputs, one_target.unsqueeze(0))

    per_example = vmap(grad(loss_of_one), in_dims=(None, 0, 0))
    gradient_bytes = local.dimension * local.zeros().element_size()
    total = local.zeros()
    with exact_kernels(local.device):
        for batch in local.batches(max(1, memory_budget_bytes // gradient_bytes)):
            inputs = examples.inputs[batch].to(local.device, task.dtype)
            gradients = per_example(weights, inputs, local.targets(batch))
            squares = [gradients[name].square().sum(dim=0) for name in weights]
            local.add(total, squares, 1 / len(local))
    return total.cpu().numpy()
