"""What is learnt: a model, a loss and its measures, with no word about which data.

This is the seam that keeps unlearning methods task-agnostic: a method sees a `Task`, flat vectors and
`Examples`, never an image or a label as such.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    default_collate,
    default_convert,
)

from unlearning.errors import AppError, DataError
from unlearning.requests import Forget
from unlearning.runtime.display import new_axes, table
from unlearning.tasks.batches import Batches, BatchOrder, batches
from unlearning.tasks.inputs import Inputs, count_of, each, one_tensor
from unlearning.tasks.losses import classification_measures, cross_entropy
from unlearning.tasks.sources import (
    ArraySource,
    DatasetSource,
    JoinedSource,
    Loading,
    MapDataset,
    Positions,
    RelabelledSource,
    Scaling,
    Source,
    TensorSource,
    Which,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True, init=False, eq=False)
class Examples:
    """A set of examples: inputs (n, ...), targets (n, ...) and n opaque ids, unique within a client.

    Inputs may be several tensors (n, ...) in a mapping, which the model gets as keyword arguments.

    For classification targets have shape (n,), for segmentation (n, height, width), both int64; for regression any
    shape and a floating-point type. Examples may lie in memory, in memory-mapped files or behind a Dataset: what is
    kept here are the positions in their source, so selecting and joining copy nothing, and `batch` and `batches`
    read as many as are asked for. `inputs` and `targets` read all.

    positions (n,): in the source, in order; None for all of it.

    Raises:
        DataError: the three differ in length.
    """

    source: Source
    ids: NDArray[np.str_]
    positions: Positions | None

    def __init__(self, inputs: Inputs, targets: Tensor, ids: NDArray[np.str_] | Sequence[str]) -> None:
        _check_lengths(count_of(inputs), len(targets), len(ids))
        self._set(TensorSource(inputs, targets), ids, None)

    @classmethod
    def from_arrays(
        cls,
        inputs: NDArray[Any],
        targets: NDArray[Any],
        ids: NDArray[np.str_] | Sequence[str] | None = None,
        scaling: Scaling | None = None,
    ) -> "Examples":
        """Return examples in NumPy arrays that stay where they are, such as memory-mapped files; see `ArraySource`.

        ids: None for the positions, "0", "1", ...

        Raises:
            DataError: the three differ in length.
        """
        ids = numbered(len(inputs)) if ids is None else ids
        _check_lengths(len(inputs), len(targets), len(ids))
        # not as `np.memmap`, of which every part is one too, at the price of a Python call
        return cls._of(ArraySource(np.asarray(inputs), np.asarray(targets), scaling or Scaling()), ids, None)

    @classmethod
    def from_dataset(
        cls,
        dataset: MapDataset,
        ids: NDArray[np.str_] | Sequence[str] | None = None,
        *,
        targets: Tensor | None = None,
        loading: Loading | None = None,
        columns: Sequence[str] = (),
    ) -> "Examples":
        """Return the examples of a map-style Dataset of (input, target); it must give the same ones each time.

        ids: None for the positions, "0", "1", ...
        targets: all of them (n, ...), where they are known; else forgetting a class reads the data set once.
        columns: of a Dataset of mappings, such as one of Hugging Face: the names of the inputs, and the target's last.

        Raises:
            DataError: there are not as many ids or targets as examples.
            AppError: the data set has no length, or `columns` are too few.
        """
        source = DatasetSource(dataset, targets, loading or Loading(), columns)
        ids = numbered(len(source)) if ids is None else ids
        _check_lengths(len(source), len(source) if targets is None else len(targets), len(ids))
        return cls._of(source, ids, None)

    @classmethod
    def _of(
        cls, source: Source, ids: NDArray[np.str_] | Sequence[str], positions: Positions | None
    ) -> "Examples":
        made = object.__new__(cls)
        made._set(source, ids, positions)
        return made

    def _set(
        self, source: Source, ids: NDArray[np.str_] | Sequence[str], positions: Positions | None
    ) -> None:
        for name, value in (("source", source), ("ids", _as_texts(ids)), ("positions", positions)):
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def inputs(self) -> Tensor:
        """Read all inputs (n, ...): for sets that fit into memory.

        Raises:
            DataError: they are several tensors, which `batch` reads.
        """
        return one_tensor(self.batch(slice(None))[0], "what was asked for works on one")

    @property
    def targets(self) -> Tensor:
        """Read all targets (n, ...)."""
        return self.source.targets(self._where(slice(None)))

    @property
    def has_labels(self) -> bool:
        """Whether each target is one whole number, as a class is."""
        target = self.source.targets(slice(0, 0))
        return target.ndim == 1 and not target.is_floating_point() and not target.is_complex()

    def select(self, which: Positions | NDArray[np.bool_]) -> "Examples":
        """Return the examples at `which`, an array of positions or a mask."""
        chosen: Positions = (
            np.flatnonzero(which) if which.dtype == np.bool_ else which.astype(np.intp, copy=False)
        )
        where = chosen if self.positions is None else self.positions[chosen]
        return Examples._of(self.source, self.ids[chosen], where)

    def batch(self, which: Which) -> tuple[Inputs, Tensor]:
        """Return inputs (k, ...) and targets (k, ...) of the examples at `which`.

        Raises:
            AppError: a Dataset does not give what it promises.
        """
        return self.source.read(self._where(which))

    def batches(self, order: BatchOrder, *, pin: bool = False) -> Batches:
        """Return the examples batch by batch in `order`, each time that it is iterated over; see `batches`."""
        return batches(self, order, self.source.loading, pin=pin)

    def with_targets(self, targets: Tensor) -> "Examples":
        """Return the same inputs and ids with other targets (n, ...)."""
        where = np.arange(len(self)) if self.positions is None else self.positions
        return Examples._of(RelabelledSource(self.source, where, targets), self.ids, None)

    def compacted(self) -> "Examples":
        """Return the same examples; where they lie in memory, a copy, so that the others of their source can go."""
        if self.positions is None or not isinstance(self.source, TensorSource):
            return self
        inputs, targets = self.batch(slice(None))
        return Examples(
            each(Tensor.clone, inputs), targets.clone(), self.ids
        )  # a range of positions reads views

    def _where(self, which: Which) -> Which:
        return which if self.positions is None else self.positions[which]


def _as_texts(ids: NDArray[np.str_] | Sequence[str]) -> NDArray[np.str_]:
    """Return ids as an array of texts, where they are texts in another form: a list, or objects as pandas has them."""
    if isinstance(ids, np.ndarray) and ids.dtype.kind == "U":
        return ids
    return np.array([*ids], np.str_) if all(isinstance(one, str) for one in ids) else np.asarray(ids)


def _check_lengths(inputs: int, targets: int, ids: int) -> None:
    if not inputs == targets == ids:
        raise DataError(
            f"A data set needs as many inputs as targets and ids, got {inputs:,}, {targets:,} and {ids:,}."
        )


def numbered(count: int, prefix: str = "") -> NDArray[np.str_]:
    """Return the ids "0", "1", ... with a prefix: an example's position in the original set."""
    numbers = np.arange(count).astype(f"<U{len(str(max(count - 1, 0)))}")
    return np.char.add(prefix, numbers) if prefix else numbers


def join(first: Examples, second: Examples) -> Examples:
    """Return the examples of both, in this order."""
    ids = np.concatenate([first.ids, second.ids])
    if isinstance(first.source, TensorSource) and isinstance(second.source, TensorSource):
        one, other = first.batch(slice(None)), second.batch(slice(None))
        inputs = each(lambda *both: torch.cat(both), one[0], other[0])
        return Examples(inputs, torch.cat([one[1], other[1]]), ids)
    parts = [np.arange(len(part)) if part.positions is None else part.positions for part in (first, second)]
    if first.source is second.source:
        return Examples._of(first.source, ids, np.concatenate(parts))
    parts[1] = parts[1] + len(first.source)
    return Examples._of(JoinedSource(first.source, second.source), ids, np.concatenate(parts))


def forgotten_mask(examples: Examples, forget: Forget) -> NDArray[np.bool_]:
    """Return which of `examples` `forget` speaks of, shape (n,).

    A class is matched by the example's label; where targets are no labels (segmentation, regression), by none.
    """
    if forget.everything:
        return np.ones(len(examples), dtype=np.bool_)
    mask = np.zeros(len(examples), dtype=np.bool_)
    if forget.sample_ids:
        mask |= np.isin(examples.ids, np.asarray(sorted(forget.sample_ids)))
    if forget.classes and examples.has_labels:
        mask |= np.isin(examples.targets.numpy(), np.asarray(sorted(forget.classes)))
    return mask


def unknown_ids(examples: Examples, sample_ids: Iterable[str]) -> list[str]:
    """Return the ids among `sample_ids` that no example carries, sorted."""
    wanted = np.asarray(sorted(set(sample_ids)), dtype=np.str_)
    return [str(item) for item in wanted[~np.isin(wanted, examples.ids)]]


@dataclass(frozen=True, slots=True)
class Site:
    """One data owner's data: what it trains on, and what it holds out (possibly nothing)."""

    train: Examples
    test: Examples

    @classmethod
    def of(
        cls,
        train: MapDataset | DataLoader[Any],
        test: MapDataset | DataLoader[Any] | None = None,
        columns: Sequence[str] = (),
    ) -> "Site":
        """Return the site of map-style Datasets of (input, target), or of the DataLoaders that read them.

        An example's id is its position in its Dataset: "0", "1", ... The federation's settings decide on batches.
        columns: as in `Examples.from_dataset`.

        Raises:
            AppError: a Dataset has no length, `columns` are too few, or a DataLoader does more than shuffle.
        """
        examples = _loaded(train, columns)
        none = examples.select(np.zeros(0, dtype=np.intp))
        return cls(examples, none if test is None else _loaded(test, columns))


def _loaded(given: MapDataset | DataLoader[Any], columns: Sequence[str]) -> Examples:
    """Return the examples of a Dataset, or those of its Dataset that a DataLoader reads.

    Raises:
        AppError: the DataLoader makes batches in a way of its own.
    """
    if not isinstance(given, DataLoader):
        return Examples.from_dataset(given, columns=columns)
    examples = Examples.from_dataset(cast(MapDataset, given.dataset), columns=columns)
    own = [
        name
        for name, value, usual in (
            ("collate_fn", given.collate_fn, (default_collate, default_convert)),
            ("sampler", type(given.sampler), (RandomSampler, SequentialSampler, SubsetRandomSampler)),
            ("batch_sampler", type(given.batch_sampler), (BatchSampler, type(None))),
        )
        if value not in usual
    ]
    if own:
        raise AppError(
            f"The DataLoader has a {own[0]} of its own, and batches are the federation's here. Give its Dataset, with "
            "examples of one shape (texts padded to one length, say), each counted once.",
            code=own[0],
        )
    if isinstance(given.sampler, SubsetRandomSampler):  # as sites share one Dataset
        return examples.select(np.asarray(given.sampler.indices, dtype=np.intp))
    return examples


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

    def _repr_html_(self) -> str:
        rows = [
            (name, f"{values.mean():.4g}", f"{values.min():.4g}", f"{values.max():.4g}")
            for name, values in (("loss", self.loss), ("score", self.score), ("confidence", self.confidence))
            if len(self)
        ]
        return table(f"{len(self):,} examples", ("", "mean", "least", "most"), rows)

    def plot(self, axes: "Axes | None" = None, label: str = "") -> "Axes":
        """Draw the distribution of the losses; `axes` of an earlier plot sets two of them side by side.

        Raises:
            ConfigurationError: matplotlib is not installed.
        """
        axes = axes or new_axes()[0]
        axes.ecdf(self.loss, label=label)
        axes.set(xlabel="loss of an example", ylabel="share of examples at or below")
        if label:
            axes.legend()
        return axes


def _where_outputs_are(loss: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    def placed(outputs: Tensor, targets: Tensor) -> Tensor:
        found: Tensor = loss.to(outputs.device)(outputs, targets)
        return found

    placed.__module__, placed.__qualname__ = type(loss).__module__, type(loss).__qualname__
    return placed


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is learnt.

    num_classes: 0 where there are none (regression).
    build_model: makes the untrained model; its initial weights depend on the global seeds only (torch's,
        NumPy's, Python's).
    loss: mean loss over a batch of (outputs, targets), a scalar. A module (with class weights) is moved to the
        outputs' device.
    per_example: the measures of a batch, tensors of shape (n,): loss, score, confidence.
    augment: random change of a batch of inputs, or None; used in ordinary training by the built-in loop only.
    score_name: `accuracy`, `dice` or another; a score is 0 to 1, more is better. `accuracy` says that classes are told
        apart, so that one can be forgotten.
    load_pretrained: puts pre-trained weights into an untrained model, in place; None to start from the untrained.
    shard: where the model is an ensemble of shard models (`ensemble`), the task of one of them.
    train: own training in place of the built-in loop (`unlearning.own_training`); None for the loop.
    local_layers: how the names of parameters begin that each site trains for itself and never sends, such as "head."
        (`unlearning.local_layers`).
    set_metrics: functions of all outputs and targets of a set, such as those of `unlearning.tasks.set_metrics`; they
        are measured where the score is, under their names.
    dtype: of the model and its vectors, float32 or float64; own training may compute in another one, by autocast.
    channels_last: whether models are measured with the channels last in memory, which takes a processor half of the
        time. Only for networks that never `view` a picture's features: a view needs the usual order.

    Raises:
        AppError: `dtype` is another one, `build_model` or one of `set_metrics` is no function, or these share a name;
            or `loss` has parameters of its own to train.
    """

    name: str
    num_classes: int
    score_name: str
    build_model: Callable[[], nn.Module]
    loss: Callable[[Tensor, Tensor], Tensor]
    per_example: Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
    augment: Callable[[Any, torch.Generator], Inputs] | None = None
    dtype: torch.dtype = torch.float32
    load_pretrained: Callable[[nn.Module], None] | None = None
    shard: "Task | None" = None
    train: Callable[..., float] | None = None
    channels_last: bool = False
    set_metrics: tuple[Callable[[NDArray[Any], NDArray[Any]], float], ...] = ()
    local_layers: tuple[str, ...] = ()

    @classmethod
    def classifier(
        cls, name: str, build_model: Callable[[], nn.Module], *, num_classes: int, **changes: Any
    ) -> "Task":
        """Return the task of telling classes apart: cross-entropy, and accuracy as the score.

        changes: of other fields, by name.
        """
        values = {
            "score_name": "accuracy",
            "loss": cross_entropy,
            "per_example": classification_measures,
            **changes,
        }
        return cls(name=name, build_model=build_model, num_classes=num_classes, **values)

    def __post_init__(self) -> None:
        own = {
            "local_layers": (self.local_layers,) if isinstance(self.local_layers, str) else self.local_layers,
            "set_metrics": (self.set_metrics,) if callable(self.set_metrics) else self.set_metrics,
        }
        for name, several in own.items():
            object.__setattr__(self, name, tuple(several or ()))
        if not all(map(callable, self.set_metrics)) or len({*self.metric_names}) < len(self.set_metrics):
            raise AppError(
                f"Task.set_metrics must be functions, each of another __name__, got {', '.join(self.metric_names)}.",
                code="set-metrics",
            )
        if isinstance(self.build_model, nn.Module) or not callable(self.build_model):
            got = type(self.build_model).__name__
            said = f"Task.build_model must be a function that makes a new model, such as lambda: Net(), got {got}."
            raise AppError(said, code="build-model")
        if self.dtype not in (torch.float32, torch.float64):
            raise AppError(
                f"Task.dtype must be torch.float32 or torch.float64, got {self.dtype}. To compute in bfloat16, give "
                "the task a training loop of your own that uses torch.autocast.",
                code="dtype",
            )
        if isinstance(self.loss, nn.Module):
            if self.train is None and any(one.requires_grad for one in self.loss.parameters()):
                raise AppError(
                    f"Task.loss, {type(self.loss).__name__}, has parameters to train, and only those of the model are "
                    "trained and travel. Make it a part of the model, whose forward returns what a loss needs.",
                    code="loss-parameters",
                )
            object.__setattr__(self, "loss", _where_outputs_are(self.loss))

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The names of the metrics of whole sets, in their order."""
        return tuple(str(getattr(one, "__name__", type(one).__name__)) for one in self.set_metrics)
