"""What is learnt: a model, a loss and its measures, with no word about which data.

This is the seam that keeps unlearning methods task-agnostic: a method sees a `Task`, flat vectors and
`Examples`, never an image or a label as such.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unlearning.errors import DataError
from unlearning.requests import Forget


@dataclass(frozen=True, slots=True)
class Examples:
    """A set of examples: inputs (n, ...), targets (n, ...) and n opaque ids, unique within a client.

    For classification targets have shape (n,), for segmentation (n, height, width); both are int64.

    Raises:
        DataError: the three differ in length.
    """

    inputs: Tensor
    targets: Tensor
    ids: NDArray[np.str_]

    def __post_init__(self) -> None:
        if not len(self.inputs) == len(self.targets) == len(self.ids):
            raise DataError(
                "A data set needs as many inputs as targets and ids, got "
                f"{len(self.inputs)}, {len(self.targets)} and {len(self.ids)}."
            )

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, which: NDArray[np.intp] | NDArray[np.bool_]) -> "Examples":
        """Return the examples at `which`, an array of positions or a mask."""
        positions = np.flatnonzero(which) if which.dtype == np.bool_ else which
        index = torch.from_numpy(np.ascontiguousarray(positions, dtype=np.int64))
        return Examples(self.inputs[index], self.targets[index], self.ids[positions])


def join(first: Examples, second: Examples) -> Examples:
    """Return the examples of both, in this order."""
    return Examples(
        torch.cat([first.inputs, second.inputs]),
        torch.cat([first.targets, second.targets]),
        np.concatenate([first.ids, second.ids]),
    )


def forgotten_mask(examples: Examples, forget: Forget) -> NDArray[np.bool_]:
    """Return which of `examples` `forget` speaks of, shape (n,).

    A class is matched by the example's label; where targets are masks (segmentation), by none.
    """
    if forget.everything:
        return np.ones(len(examples), dtype=np.bool_)
    mask = np.zeros(len(examples), dtype=np.bool_)
    if forget.sample_ids:
        mask |= np.isin(examples.ids, np.asarray(sorted(forget.sample_ids)))
    if forget.classes and examples.targets.ndim == 1:
        mask |= np.isin(examples.targets.numpy(), np.asarray(sorted(forget.classes)))
    return mask


def unknown_ids(examples: Examples, sample_ids: Iterable[str]) -> list[str]:
    """Return the ids among `sample_ids` that no example carries, sorted."""
    return sorted(set(sample_ids) - set(examples.ids.tolist()))


@dataclass(frozen=True, slots=True)
class Site:
    """One data owner's data: what it trains on, and what it holds out (possibly nothing)."""

    train: Examples
    test: Examples


@dataclass(frozen=True, slots=True)
class PerExample:
    """A model's measures, one value an example: each array has shape (n,), float64.

    `score` is 0 or 1 for classification (correct or not) and the Dice coefficient for segmentation;
    `confidence` is the probability of the true class (its mean over pixels for segmentation).
    """

    loss: NDArray[np.float64]
    score: NDArray[np.float64]
    confidence: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.loss)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is learnt.

    build_model: makes the untrained model; its initial weights depend on torch's global seed only.
    loss: mean loss over a batch of (outputs, targets).
    per_example: the measures of a batch, tensors of shape (n,): loss, score, confidence.
    augment: random change of a batch of inputs, or None; used in ordinary training only.
    score_name: `accuracy` or `dice`.
    load_pretrained: puts pre-trained weights into an untrained model, in place; None to start from the untrained.
    shard: where the model is an ensemble of shard models (`ensemble`), the task of one of them.
    """

    name: str
    num_classes: int
    score_name: str
    build_model: Callable[[], nn.Module]
    loss: Callable[[Tensor, Tensor], Tensor]
    per_example: Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
    augment: Callable[[Tensor, torch.Generator], Tensor] | None = None
    dtype: torch.dtype = torch.float32
    load_pretrained: Callable[[nn.Module], None] | None = None
    shard: "Task | None" = None
