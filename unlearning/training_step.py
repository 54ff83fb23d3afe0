"""A step of training, and steps repeated from a recording.

A step of a small network is a hundred kernels of a few microseconds, and starting them takes Python twenty times as
long as they run: an accelerator repeats them from a recording (a CUDA graph).
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from unlearning.optimizers import Optimizer, Sgd
from unlearning.tasks import losses
from unlearning.tasks.inputs import Inputs, outputs_of
from unlearning.tasks.task import Task

_log = logging.getLogger(__name__)

_EAGER_STEPS = 2
"""Before the recording, so that libraries are loaded and what steps keep (momentum) is there."""

_newest: list[torch.cuda.CUDAGraph] = []
"""The last recording of this process: its memory is what the next one takes."""

_failed: list[Exception] = []
"""Why a step could not be recorded in this process, which does not try again."""


_WITHOUT_MEMORY = (losses.cross_entropy, losses.cross_entropy_and_dice)
"""Losses that do nothing but return: what others note in passing, a recording would not repeat."""


class Step:
    """One step of the optimiser; `loss` sums the losses of all examples, and no step waits for it."""

    def __init__(
        self,
        task: Task,
        model: nn.Module,
        optimizer: Optimizer,
        clip_norm: float,
        proximal_mu: float = 0.0,
    ) -> None:
        self._proximal_mu = proximal_mu
        trained = [weight for weight in model.parameters() if weight.requires_grad] if proximal_mu else []
        self._starts = [(weight, weight.detach().clone()) for weight in trained]
        self._task, self._model, self._optimizer, self._clip_norm = task, model, optimizer, clip_norm
        # What else is done with a gradient, torch has for dense ones only.
        self._takes_sparse = (
            isinstance(optimizer, Sgd) and optimizer.is_plain and not (clip_norm or proximal_mu)
        )
        device = next(model.parameters()).device
        self.loss = torch.zeros((), dtype=torch.float64, device=device)
        is_plain = isinstance(optimizer, Sgd) and task.loss in _WITHOUT_MEMORY
        self.can_be_recorded = device.type == "cuda" and is_plain

    def __call__(self, inputs: Inputs, targets: Tensor) -> None:
        """Do the step for a batch."""
        self._model.zero_grad()
        loss = self._task.loss(self._outputs(inputs, len(targets)), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        if not self._takes_sparse:
            _make_dense(self._optimizer.weights)
        for weight, start in self._starts:
            if weight.grad is not None:
                weight.grad.add_(weight.detach() - start, alpha=self._proximal_mu)
        if self._clip_norm:
            nn.utils.clip_grad_norm_(self._model.parameters(), self._clip_norm)
        self._optimizer.step()
        self.loss += loss.detach().double() * len(targets)

    def _outputs(self, inputs: Inputs, count: int) -> Tensor:
        """Return the model's outputs; of one example, which has no statistics of its own, by the running ones.

        After a deletion any site may have one example more than full batches, or be asked to climb on a single one.
        """
        try:
            return outputs_of(self._model, inputs)
        except ValueError:
            layers = [one for one in self._model.modules() if isinstance(one, _NormBase) and one.training]
            if count > 1 or not layers:
                raise
        for layer in layers:
            layer.eval()
        try:
            return outputs_of(self._model, inputs)
        finally:
            for layer in layers:
                layer.train()


def _make_dense(weights: Iterable[Tensor]) -> None:
    """Make the sparse gradients of embeddings dense, in place."""
    for weight in weights:
        if weight.grad is not None and weight.grad.is_sparse:
            weight.grad = weight.grad.to_dense()


@contextmanager
def where_steps_can_be_recorded(device: torch.device) -> Iterator[None]:
    """Work on a stream of its own on an accelerator, as a recording needs; on a processor nothing changes."""
    if device.type != "cuda":
        yield
        return
    before, own = torch.cuda.current_stream(), _stream()
    own.wait_stream(before)
    with torch.cuda.stream(own):
        yield
    before.wait_stream(own)


class RecordedStep:
    """`step`, called with a batch's inputs and targets; from the third full batch on by a recording.

    step: changes only tensors that stay where they are from one call to the next, and waits for nothing.
    size: of a full batch; smaller ones, and inputs of several tensors, are done without the recording.
    """

    def __init__(self, step: Callable[[Inputs, Tensor], None], size: int) -> None:
        self._step, self._size = step, size
        self._done = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs = self._targets = torch.empty(0)

    def __call__(self, inputs: Inputs, targets: Tensor) -> None:
        """Do the step for a batch that lies on the accelerator."""
        if not isinstance(inputs, Tensor):
            self._step(inputs, targets)
            return
        is_full = len(targets) == self._size
        if is_full and self._done == _EAGER_STEPS and not _failed:
            self._graph = self._record(inputs, targets)
        self._done += is_full
        if self._graph is None or not is_full:
            self._step(inputs, targets)
            return
        self._inputs.copy_(inputs)
        self._targets.copy_(targets)
        self._graph.replay()

    def _record(self, inputs: Tensor, targets: Tensor) -> torch.cuda.CUDAGraph | None:
        """Return the recording of a step, which is not done by it; None where it cannot be recorded."""
        self._inputs, self._targets = inputs.clone(), targets.clone()
        graph = torch.cuda.CUDAGraph()
        torch.cuda.current_stream().synchronize()
        # torch.cuda.graph would collect garbage and empty the cache, which takes longer than an epoch.
        graph.capture_begin(pool=_newest[0].pool() if _newest else None, capture_error_mode="thread_local")
        try:
            self._step(self._inputs, self._targets)
        except RuntimeError as exc:  # a model of the user's own may wait for a result within a step
            _log.info("The training step cannot be recorded (%s); it goes on without.", exc)
            _failed.append(exc)
            _newest.clear()
            with suppress(RuntimeError):
                graph.capture_end()
            return None
        graph.capture_end()
        _newest[:] = [graph]
        return graph


@cache
def _stream() -> torch.cuda.Stream:
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch does not type it
