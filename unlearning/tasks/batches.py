"""Examples batch by batch, in an order that a seed decides: directly, or through torch's `DataLoader` for a Dataset.

Whatever the way, the order is the same for the same seed: what draws it draws it in this process, and nothing else
draws from torch's global random state.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from unlearning.errors import AppError
from unlearning.tasks.inputs import Inputs, each
from unlearning.tasks.sources import Loading, Which

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

Batches: TypeAlias = Iterable[tuple[Inputs, Tensor]]
BatchOrder: TypeAlias = Iterable[Which]
"""Which examples come in which batch; iterating again may give another order."""


class Readable(Protocol):
    """What batches are read of."""

    def __len__(self) -> int:
        """Return the number of examples."""

    def batch(self, which: Which) -> tuple[Inputs, Tensor]:
        """Return the inputs and targets at `which`."""


@dataclass(frozen=True, slots=True)
class InOrder:
    """The examples as they come, `size` a batch; the last may be smaller."""

    num_examples: int
    size: int

    def __iter__(self) -> Iterator[Which]:
        for start in range(0, self.num_examples, self.size):
            yield slice(start, min(start + self.size, self.num_examples))


@dataclass(frozen=True, slots=True)
class Shuffled:
    """The examples in an order that is drawn again each time it is iterated over; the last batch may be smaller."""

    num_examples: int
    size: int
    generator: torch.Generator

    def __iter__(self) -> Iterator[Which]:
        for batch in torch.split(torch.randperm(self.num_examples, generator=self.generator), self.size):
            yield batch.numpy()


def batches(examples: Readable, order: BatchOrder, loading: Loading | None, *, pin: bool) -> Batches:
    """Return an iterable over batches that gives the examples again each time it is iterated over.

    loading: through a `DataLoader`, with its workers; None: read here. pin: where the `DataLoader` shall put
    batches into page-locked memory, from which a GPU fetches them while it computes.
    """
    if loading is None:
        return _Direct(examples, order)
    return _Loaded(_data_loader(examples, loading, batch_sampler=order, pin_memory=pin))


def data_loader(
    examples: Readable, size: int, generator: torch.Generator, loading: Loading | None, *, pin: bool
) -> "DataLoader[Any]":
    """Return a `DataLoader` of `size` examples a batch, in the orders that `Shuffled` draws: for own training."""
    order = _EachShuffled(len(examples), generator)
    return _data_loader(examples, loading or Loading(), batch_size=size, sampler=order, pin_memory=pin)


class AsDataset:
    """Examples as a map-style Dataset, of which a batch is read at once."""

    def __init__(self, examples: Readable) -> None:
        self._examples = examples

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, index: int) -> tuple[Inputs, Tensor]:
        inputs, targets = self._examples.batch(np.array([index]))
        return each(lambda one: one[0], inputs), targets[0]

    def __getitems__(self, which: Which | list[int]) -> "ReadAtOnce":
        chosen = np.asarray(which, dtype=np.intp) if isinstance(which, list) else which
        return ReadAtOnce(*self._examples.batch(chosen))


@dataclass(frozen=True, slots=True)
class ReadAtOnce(Sequence[tuple[Inputs, Tensor]]):
    """A batch, which to another `DataLoader` or collator is a list of examples, as PyTorch wants it."""

    inputs: Inputs
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: Any) -> Any:
        number = range(len(self))[index]
        return each(lambda one: one[number], self.inputs), self.targets[number]


@dataclass(frozen=True, slots=True)
class _Direct:
    """Batches that are read where they are used."""

    examples: Readable
    order: BatchOrder

    def __iter__(self) -> Iterator[tuple[Inputs, Tensor]]:
        return map(self.examples.batch, self.order)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """Batches that a `DataLoader` brings."""

    loader: "DataLoader[Any]"

    def __iter__(self) -> Iterator[tuple[Inputs, Tensor]]:
        """Yield the batches.

        Raises:
            AppError: a Dataset does not give what it promises, or a worker has died.
        """
        try:
            yield from self.loader
        except AppError as exc:  # of a worker: its sentence stands below a traceback
            raise AppError(str(exc).strip().rsplit("AppError: ", 1)[-1]) from exc
        except RuntimeError as exc:
            if "DataLoader worker" not in str(exc):
                raise
            raise AppError(
                f"A process that reads examples ahead has ended: {str(exc).splitlines()[0]}"
            ) from exc


@dataclass(frozen=True, slots=True)
class _EachShuffled:
    """The order of `Shuffled`, an example at a time."""

    num_examples: int
    generator: torch.Generator

    def __len__(self) -> int:
        return self.num_examples

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(self.num_examples, generator=self.generator).tolist()


def _data_loader(examples: Readable, loading: Loading, **options: Any) -> "DataLoader[Any]":
    """Return a `DataLoader` with its workers; its generator is its own, so that no other's moves."""
    from torch.utils.data import DataLoader

    dataset: Any = AsDataset(examples)
    return DataLoader(
        dataset,
        collate_fn=_whole,
        generator=torch.Generator(),
        num_workers=loading.workers,
        persistent_workers=loading.workers > 0,
        prefetch_factor=loading.prefetch if loading.workers else None,
        **options,
    )


def _whole(batch: Any) -> tuple[Inputs, Tensor]:
    return batch.inputs, batch.targets
