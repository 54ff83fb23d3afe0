"""A task's mean loss over one data set, at fixed parameters: what is differentiated here.

Eval mode, no augmentation, the examples in their own order. The mean over the data set is the sum over
mini-batches of (n_b/n) times the batch's mean loss, so the last, smaller batch counts as it should.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from unlearning.embeddings import differentiable_embeddings
from unlearning.errors import DataError, NumericalError
from unlearning.parameters import Vector, check_length, outputs_with, size_of_vector, slots_by_name
from unlearning.runtime.devices import computing_device, drawing, inputs_for, targets_for
from unlearning.task_contract import (
    coupled_loss,
    couples_examples,
    draws_numbers,
    few_batch,
    writes_on_inputs,
)
from unlearning.tasks.inputs import Inputs, outputs_of
from unlearning.tasks.task import Examples, Task
from unlearning.training import model_with


@contextmanager
def twice_differentiable(task: Task) -> Iterator[None]:
    """Say of which operation PyTorch has no second derivative, and what to do, in place of its own error.

    Raises:
        NumericalError: the model has such an operation.
    """
    try:
        yield
    except RuntimeError as exc:
        if "not implemented" not in str(exc):
            raise
        raise NumericalError(
            f"The model of {task.name} has an operation without a second derivative ({exc}). Write it out in the "
            "model or its loss, or choose another method.",
            code="once-differentiable",
        ) from exc


_SAME = 1e-4
"""By which the same loss may differ from one time to the next, as a share."""


class LocalLoss:
    """The model of `task` at `parameters` (d,) and the loss of `examples` under it.

    A model or a loss that draws random numbers draws the same ones each time.

    The trainable parameters are those with `requires_grad`. Every other entry of the flat vector (a
    running mean, a frozen weight) is a constant here: zero gradient, zero row and column of curvature.

    Raises:
        DataError: there is no example.
        NumericalError: the model normalises by batch statistics even in eval mode, trains nothing, or changes its
            inputs; or the loss is no mean over examples, or another one each time.
        UpdateRefused: `parameters` does not have the model's length.
    """

    def __init__(self, task: Task, parameters: Vector, examples: Examples) -> None:
        if len(examples) == 0:
            raise DataError("A mean loss needs at least one example, got none. Leave this client out.")
        self.task, self.examples = task, examples
        self.device = computing_device()
        self.model = model_with(task, parameters).to(self.device).eval()
        self._embeddings = differentiable_embeddings(self.model)
        self._drawing: Callable[[], AbstractContextManager[None]] = nullcontext
        _refuse_batch_statistics(self.model)
        if writes_on_inputs(task, examples, self.model):
            raise NumericalError(
                f"The model of {task.name} changes its inputs in place, so its loss differs each time that it is "
                "computed. Let its forward make a new tensor (x = x - mean, not x -= mean).",
                code="writes-on-inputs",
            )
        if couples_examples(task, examples, self.model):
            raise NumericalError(f"No derivative was taken: {coupled_loss(task)}", code="coupled-loss")
        if draws_numbers(task, examples, self.model):  # and would have no curvature
            self._drawing = partial(drawing, 0, self.device)
            self.task = replace(task, loss=self._drawing()(task.loss))
        self.dimension, places = trainable_places(self.model)
        if not places:
            raise NumericalError("The model has no trainable parameter, so no gradient. Unfreeze some.")
        self.trainable: tuple[nn.Parameter, ...] = tuple(places)
        self.places: tuple[slice, ...] = tuple(places.values())
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        self.names: tuple[str, ...] = tuple(names[parameter] for parameter in self.trainable)
        self._refuse_changes()

    def _refuse_changes(self) -> None:
        """Refuse a loss that is another one the second time: a solver supposes one matrix, else it goes anywhere."""
        with torch.no_grad(), exact_kernels(self.device):
            first, again = (float(self.loss_of_few()) for _ in range(2))
        if abs(first - again) > _SAME * abs(first):  # on a GPU sums may differ in their last digits
            raise NumericalError(
                f"The loss of {self.task.name} on the same examples was {first:.6g}, then {again:.6g}. Something in "
                "the model remembers, or draws by a random generator of its own. Make its forward pass repeat itself.",
                code="changing-loss",
            )

    def __len__(self) -> int:
        return len(self.examples)

    def batches(self, size: int) -> Iterator[slice]:
        """Yield the examples in order, `size` at a time; the last batch may be smaller."""
        for start in range(0, len(self), size):
            yield slice(start, min(start + size, len(self)))

    def read(self, batch: slice) -> tuple[Inputs, Tensor]:
        """Return inputs and targets of the examples at `batch`, as model and loss take them."""
        inputs, targets = self.examples.batch(batch)
        return inputs_for(self.task, inputs, self.device), targets_for(self.task, targets, self.device)

    def outputs(self, inputs: Inputs, weights: Mapping[str, Tensor] | None = None) -> Tensor:
        """Return the model's outputs, with `weights` by `names` instead of its own."""
        with self._embeddings, self._drawing():
            if weights is None:
                return outputs_of(self.model, inputs)
            return outputs_with(self.model, weights, inputs)

    def loss_of_few(self) -> Tensor:
        """Return the mean loss of a few examples from all over the set, with its graph."""
        inputs, targets = few_batch(self.task, self.examples, self.device)
        return self.task.loss(self.outputs(inputs), targets)

    def weight(self, batch: slice) -> float:
        """Compute n_b/n, by which the batch's mean loss enters that of the data set."""
        num_examples: int = batch.stop - batch.start
        return num_examples / len(self)

    def split(self, vector: Vector) -> tuple[Tensor, ...]:
        """Return a flat vector (d,) as one tensor a trainable parameter, in the task's dtype, on the
        device.
        """
        check_length(vector, self.dimension)
        # a copy of what comes from a message, which is read-only: torch warns about it
        flat = torch.from_numpy(np.require(vector, requirements=("C", "W"))).to(self.device, self.task.dtype)
        return tuple(
            flat[place].reshape(parameter.shape)
            for parameter, place in zip(self.trainable, self.places, strict=True)
        )

    def zeros(self) -> Tensor:
        """Return a flat vector (d,) to add to."""
        return torch.zeros(self.dimension, dtype=self.task.dtype, device=self.device)

    def add(self, total: Tensor, parts: Sequence[Tensor], scale: float = 1.0) -> None:
        """Add `scale` times one tensor a trainable parameter into the flat `total` (d,), in place."""
        for part, place in zip(parts, self.places, strict=True):
            total[place].add_(part.detach().reshape(-1), alpha=scale)


def trainable_places(model: nn.Module) -> tuple[int, dict[nn.Parameter, slice]]:
    """Return d, and where in the flat vector (d,) each trainable parameter is."""
    slots = slots_by_name(model)
    places = {
        parameter: slice(slots[name].start, slots[name].stop)
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    return size_of_vector(model), places


@contextmanager
def exact_kernels(device: torch.device) -> Iterator[None]:
    """Run torch operations that have second derivatives, and repeat themselves, in full precision.

    Fused attention has no second derivative and no forward mode; the written-out kernel has. On a GPU convolutions by
    default round to TF32 and may choose other kernels from one call to the next.
    """
    with ExitStack() as stack:
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
        if device.type == "cuda":
            stack.enter_context(
                torch.backends.cudnn.flags(
                    enabled=True, benchmark=False, deterministic=True, allow_tf32=False
                )
            )
        yield


def _refuse_batch_statistics(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
            raise NumericalError(
                f"The layer {name!r} normalises by the batch's own statistics, also in eval mode, so the "
                "loss of an example depends on its batch and the curvature on the batch size. Use "
                "GroupNorm, or track_running_stats=True."
            )
