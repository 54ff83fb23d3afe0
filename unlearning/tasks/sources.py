"""Where examples lie, and how a few of them are read at a time.

Tensors in memory, arrays that may be memory-mapped, and any map-style `torch.utils.data.Dataset` of pairs
(input, target). A source is never copied: who selects examples keeps their positions in it. What is read is a batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unlearning.errors import AppError, FlowerUnlearningError
from unlearning.tasks.inputs import Inputs, each

Positions: TypeAlias = NDArray[np.intp]
Which: TypeAlias = slice | Positions
"""Positions in a source: a range of them, or an array (k,)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """How a Dataset's examples are brought to the model.

    workers: processes that read ahead; 0 reads in the training process. prefetch: batches that each reads ahead.
    """

    workers: int = 0
    prefetch: int = 2


class MapDataset(Protocol):
    """What is asked of a Dataset: a length, and a pair (input, target) or a mapping at each position below it."""

    def __len__(self) -> int:
        """Return the number of examples."""

    def __getitem__(self, index: int, /) -> Any:
        """Return one input and its target, or a mapping that has both; the same ones whenever it is asked."""


class Source(Protocol):
    """Examples that lie somewhere, by position.

    loading: how batches are to be brought; None where reading them is as good as having them.
    """

    @property
    def loading(self) -> Loading | None:
        """Say how batches are to be brought."""

    def __len__(self) -> int:
        """Return the number of examples."""

    def read(self, which: Which) -> tuple[Inputs, Tensor]:
        """Return inputs (k, ...) and targets (k, ...) of k examples."""

    def targets(self, which: Which) -> Tensor:
        """Return the targets of k examples, without their inputs where that is possible.

        Of none they tell the dtype and the shape of all, for which a Dataset may be read once.
        """


@dataclass(frozen=True, slots=True)
class Scaling:
    """Per-channel mean and standard deviation of pixel values in 0..1; none leaves them in 0..1."""

    mean: Sequence[float] = ()
    std: Sequence[float] = ()

    def apply(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return bytes (n, channels, height, width), or (n, features), as standardised floats of the same shape."""
        scaled = pixels.astype(np.float32)
        scaled /= np.float32(255)
        if self.mean:
            each = (-1, *[1] * (pixels.ndim - 2))
            scaled -= np.asarray(self.mean, np.float32).reshape(each)
            scaled /= np.asarray(self.std, np.float32).reshape(each)
        return scaled


@dataclass(frozen=True, slots=True, eq=False)
class TensorSource:
    """Examples in memory: inputs (n, ...) and targets (n, ...), of which whole numbers are read as int64."""

    inputs: Inputs
    all_targets: Tensor

    @property
    def loading(self) -> None:
        """Say that nothing has to be brought."""

    def __len__(self) -> int:
        return len(self.all_targets)

    def read(self, which: Which) -> tuple[Inputs, Tensor]:
        """Return the examples; views where `which` is a range."""
        index = _index(which)
        return each(lambda one: one[index], self.inputs), _labels(self.all_targets[index])

    def targets(self, which: Which) -> Tensor:
        """Return the targets."""
        return _labels(self.all_targets[_index(which)])


@dataclass(frozen=True, slots=True, eq=False)
class ArraySource:
    """Examples in NumPy arrays, as a rule memory-mapped files: inputs (n, ...) and targets (n, ...).

    Bytes become standardised float32, other numbers but float64 float32; targets that are whole numbers, or true and
    false, int64.
    """

    inputs: NDArray[Any]
    all_targets: NDArray[Any]
    scaling: Scaling

    @property
    def loading(self) -> None:
        """Say that reading is as good as having: the operating system reads ahead."""

    def __len__(self) -> int:
        return len(self.all_targets)

    def read(self, which: Which) -> tuple[Tensor, Tensor]:
        """Return the examples, which share no memory with the arrays."""
        inputs = np.asarray(self.inputs[which])
        if inputs.dtype == np.uint8:
            inputs = self.scaling.apply(inputs)
        elif inputs.dtype != np.float64:
            inputs = inputs.astype(np.float32)
        return torch.from_numpy(_own(inputs)), self.targets(which)

    def targets(self, which: Which) -> Tensor:
        """Return the targets."""
        targets = np.asarray(self.all_targets[which])
        return torch.from_numpy(targets.astype(np.int64) if targets.dtype.kind in "biu" else _own(targets))


class DatasetSource:
    """Any map-style Dataset of pairs (input, target), or of mappings.

    targets: all of them (n, ...), where they are known; else they are read, once, when a class is asked for.
    columns: of mappings, the names of the inputs and at last that of the target.

    Raises:
        AppError: it has no length; or `columns` are too few.
    """

    def __init__(
        self, dataset: MapDataset, targets: Tensor | None, loading: Loading, columns: Sequence[str] = ()
    ) -> None:
        self.dataset, self.loading, self._columns = dataset, loading, tuple(columns)
        if isinstance(columns, str) or len(self._columns) == 1:
            raise AppError(
                f"columns: name an input and, at last, the target; got {columns!r}.", code="columns"
            )
        self._name = f"{type(dataset).__module__}.{type(dataset).__qualname__}"
        self._targets = targets
        try:
            self._length = len(dataset)
        except Exception as exc:
            raise AppError(
                f"The data set {self._name} has no length ({_said(exc)}); give a map-style Dataset."
            ) from exc

    def __len__(self) -> int:
        return self._length

    def read(self, which: Which) -> tuple[Inputs, Tensor]:
        """Return the examples as one batch.

        Raises:
            AppError: the Dataset raises, gives no pairs, or examples that make no batch.
        """
        from torch.utils.data import default_collate

        items = [self._item(index) for index in self._indices(which)]
        if not items:
            one: tuple[Inputs, Tensor] = (torch.zeros(0), torch.zeros(0))
            inputs, targets = self.read(slice(0, 1)) if len(self) else one
            return each(lambda one: one[:0], inputs), targets[:0]
        try:
            inputs, targets = default_collate(items)
            if isinstance(inputs, Mapping):
                named = {str(name): torch.as_tensor(one) for name, one in inputs.items()}
                return named, _labels(torch.as_tensor(targets))
            return torch.as_tensor(inputs), _labels(torch.as_tensor(targets))
        except Exception as exc:
            raise AppError(
                f"The examples of the data set {self._name} make no batch of one input and one target: {_said(exc)}."
            ) from exc

    def targets(self, which: Which) -> Tensor:
        """Return the targets; where they are not known, all are read when the first one is asked for."""
        if self._targets is None and not len(self._indices(which)):
            return self.read(which)[1]
        if self._targets is None:
            parts = [
                self.read(slice(start, start + _TARGETS_AT_ONCE))[1]
                for start in range(0, len(self), _TARGETS_AT_ONCE)
            ]
            self._targets = torch.cat(parts)
        return _labels(self._targets[_index(which)])

    def _indices(self, which: Which) -> Sequence[int]:
        return range(*which.indices(len(self))) if isinstance(which, slice) else which.tolist()

    def _item(self, index: int) -> tuple[Any, Any]:
        said = f"The data set {self._name} says that it holds {len(self):,} examples"
        try:
            item = self.dataset[index]
        except FlowerUnlearningError:
            raise
        except Exception as exc:
            raise AppError(f"{said}, and number {index} cannot be read: {_said(exc)}.") from exc
        if isinstance(item, Mapping):
            return self._named(item, said, index)
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise AppError(f"{said}, and number {index} is no pair (input, target): {type(item).__name__}.")
        return item[0], item[1]

    def _named(self, item: Mapping[str, Any], said: str, index: int) -> tuple[Any, Any]:
        if not self._columns or not set(self._columns) <= set(item):
            raise AppError(
                f"{said}, and number {index} is a mapping of {', '.join(map(repr, item))}. Name its inputs and, at "
                f'last, its target, such as columns=("image", "label"); got columns={self._columns!r}.',
                code="columns",
            )
        *names, target = self._columns
        inputs = {name: item[name] for name in names}
        return inputs if len(names) > 1 else inputs[names[0]], item[target]


@dataclass(frozen=True, slots=True, eq=False)
class JoinedSource:
    """The examples of two sources, one after the other."""

    first: Source
    second: Source

    @property
    def loading(self) -> Loading | None:
        """Say how the one that has to be brought is to be brought."""
        return self.first.loading or self.second.loading

    def __len__(self) -> int:
        return len(self.first) + len(self.second)

    def read(self, which: Which) -> tuple[Inputs, Tensor]:
        """Return the examples, of either source what lies there."""
        front, back, order = self._split(which)
        one, other = self.first.read(front), self.second.read(back)
        inputs = each(lambda *both: torch.cat(both)[order], one[0], other[0])
        return inputs, torch.cat([one[1], other[1]])[order]

    def targets(self, which: Which) -> Tensor:
        """Return the targets, of either source what lies there."""
        front, back, order = self._split(which)
        return torch.cat([self.first.targets(front), self.second.targets(back)])[order]

    def _split(self, which: Which) -> tuple[Positions, Positions, Tensor]:
        """Return the positions in either source, and the order that puts what is read of both back in its places."""
        positions = np.arange(len(self))[which]
        is_front = positions < len(self.first)
        places = np.concatenate([np.flatnonzero(is_front), np.flatnonzero(~is_front)])
        return (
            positions[is_front],
            positions[~is_front] - len(self.first),
            torch.from_numpy(np.argsort(places)),
        )


@dataclass(frozen=True, slots=True, eq=False)
class RelabelledSource:
    """The inputs at `positions` of a source, with other targets (n, ...)."""

    source: Source
    positions: Positions
    all_targets: Tensor

    @property
    def loading(self) -> Loading | None:
        """Say how the inputs are to be brought."""
        return self.source.loading

    def __len__(self) -> int:
        return len(self.positions)

    def read(self, which: Which) -> tuple[Inputs, Tensor]:
        """Return the source's inputs and the other targets."""
        return self.source.read(self.positions[which])[0], self.targets(which)

    def targets(self, which: Which) -> Tensor:
        """Return the other targets."""
        return self.all_targets[_index(which)]


_TARGETS_AT_ONCE = 256


def _index(which: Which) -> slice | Tensor:
    return (
        which if isinstance(which, slice) else torch.from_numpy(np.ascontiguousarray(which, dtype=np.int64))
    )


def _labels(targets: Tensor) -> Tensor:
    """Return whole numbers and truth values as int64, which PyTorch's losses and indices take; others as they are."""
    return targets if targets.is_floating_point() or targets.is_complex() else targets.long()


def _own(array: NDArray[Any]) -> NDArray[Any]:
    """Return `array` itself where it is its own and may be written to, else a copy."""
    return array if array.base is None and array.flags.writeable else np.array(array)


def _said(error: Exception) -> str:
    """Return an error as a part of a sentence."""
    text = " ".join(str(error).split())[:200].rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
