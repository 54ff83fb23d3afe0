"""The settings that say what is learnt, and what can be wrong with them.

The sentence below a field is its row in docs/reference-settings.md (`make docs`).
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from unlearning.errors import ConfigurationError
from unlearning.tasks.datasets import DATASETS, DatasetInfo
from unlearning.tasks.models import (
    MODELS,
    Kind,
    Shape,
    import_factory,
    is_installed,
    unfit_input,
)
from unlearning.tasks.partitions import PARTITIONS

DTYPES = ("float32", "float64")


@dataclass(frozen=True, kw_only=True)
class LearntTask:
    """What is learnt, wherever that is."""

    dataset: str = "digits"
    """`digits` (embedded), `fashion-mnist`, `mnist`, `cifar10`, `cifar100`, `cifar10-features`, `nuclei`,
    `heart-disease`, `breast-cancer` (embedded), `covertype`, `reuters-r8`, `npz`, `npy`"""
    model: str = "logistic"
    """`logistic`, `mlp`, `mlp-head`, `cnn`, `small-cnn`, `lenet`, `resnet18`, `vit-lite`, `mit-b0`, `res-unet`, or your
    own `package.module:factory`"""
    partition: str = "iid"
    """how a shared data set is dealt to clients: `iid`, `dirichlet` (label skew), `natural` (the data's own sites)"""
    alpha: float = 0.5
    """Dirichlet concentration; smaller is more skewed"""
    data_dir: str = ""
    """where data sets lie (else `FLOWER_UNLEARNING_DATA`); a client's own data is its node config `data-dir`"""
    dtype: str = "float32"
    """`float32` or `float64`"""
    num_classes: int = 0
    """for `npz` and `npy` only: the number of classes"""
    input_shape: str = ""
    """for `npz` and `npy` only: one input's shape, such as `1x28x28`"""
    max_examples: int = 0
    """deal out a random subset of this number of training examples; `0` for all"""
    image_side: int = 0
    """for `mit-b0` only: pixels a side that it resizes pictures to; `0` means 224"""
    pretrained: str = ""
    """for `mit-b0` only: the checkpoint that the server starts from, a directory or a model id; empty: random weights
    ([tasks](reference-tasks.md))"""
    seed: int = 0
    """decides initial weights, the partition, sampling, the order of examples"""


@dataclass(frozen=True, kw_only=True)
class TaskSettings(LearntTask):
    """What is learnt."""

    num_clients: int = 10
    """how many clients the data is dealt to, and how many are waited for at the start"""
    max_test_examples: int = 0
    """the server measures on a random subset of this number of test examples; `0` for all"""


def problems(settings: TaskSettings) -> list[str]:
    """Return everything that is wrong with the settings, one sentence each; no data is read."""
    return [*_wrong_values(settings), *_wrong_dataset(settings), *_wrong_model(settings)]


def parse_shape(text: str) -> Shape | None:
    """Return "1x28x28" as (1, 28, 28); None where the text is no shape of numbers of 1 or more."""
    if not re.fullmatch(r"[1-9][0-9]*(x[1-9][0-9]*)*", text):
        return None
    return tuple(int(side) for side in text.split("x"))


def _wrong_values(settings: TaskSettings) -> Iterator[str]:
    """Yield what is wrong with single values."""
    if settings.partition not in PARTITIONS:
        yield f"Unknown partition {settings.partition!r}. The partitions are: {', '.join(PARTITIONS)}."
    if not (math.isfinite(settings.alpha) and settings.alpha > 0):
        yield f"alpha must be above 0, got {settings.alpha}."
    if settings.num_clients < 1:
        yield f"num-clients must be 1 or more, got {settings.num_clients}."
    if settings.max_examples < 0:
        yield f"max-examples must be 0 (all) or more, got {settings.max_examples}."
    if settings.max_test_examples < 0:
        yield f"max-test-examples must be 0 (all) or more, got {settings.max_test_examples}."
    if not 0 <= settings.seed < 2**31:
        yield f"seed must be 0 to {2**31 - 1}, got {settings.seed}."
    if settings.dtype not in DTYPES:
        yield f"Unknown dtype {settings.dtype!r}. The dtypes are: {', '.join(DTYPES)}."


def _wrong_dataset(settings: TaskSettings) -> Iterator[str]:
    """Yield what is wrong with the data set and the settings that must fit it."""
    if settings.dataset not in DATASETS:
        yield f"dataset: unknown dataset {settings.dataset!r}. The datasets are: {', '.join(DATASETS)}."
        return
    info = DATASETS[settings.dataset]
    if info is None:
        yield from _wrong_user_dataset(settings)
        return
    shape = "x".join(map(str, info.input_shape))
    if settings.num_classes not in (0, info.num_classes):
        yield (
            f"num-classes of {settings.dataset} is {info.num_classes}, got {settings.num_classes}; "
            "leave it at 0."
        )
    if settings.input_shape not in ("", shape):
        yield f"input-shape of {settings.dataset} is {shape}, got {settings.input_shape!r}; leave it empty."
    if settings.partition == "dirichlet" and info.kind is Kind.SEGMENTATION:
        yield (
            f"The partition dirichlet deals out classes, and {settings.dataset} is a segmentation data set "
            f"without classes; use iid{' or natural' if info.num_sites else ''}."
        )
    if settings.partition == "natural":
        yield from _wrong_natural_partition(settings, info)


def _wrong_natural_partition(settings: TaskSettings, info: DatasetInfo) -> Iterator[str]:
    with_sites = [name for name, other in DATASETS.items() if other is not None and other.num_sites]
    if not info.num_sites:
        yield (
            f"The data set {settings.dataset} has no natural sites; use the partition iid or dirichlet, "
            f"or a data set that has some: {', '.join(with_sites)}."
        )
    elif settings.num_clients > info.num_sites:
        yield (
            f"{settings.dataset} has {info.num_sites} natural sites; num-clients must be 1 to "
            f"{info.num_sites} with the partition natural, got {settings.num_clients}."
        )


def _wrong_user_dataset(settings: TaskSettings) -> Iterator[str]:
    if settings.num_classes < 2:
        yield f"num-classes must be 2 or more with the data set {settings.dataset}, got {settings.num_classes}."
    if parse_shape(settings.input_shape) is None:
        yield (
            f"input-shape must be the shape of one input, such as 1x28x28 or 22, with the data set "
            f"{settings.dataset}, got {settings.input_shape!r}."
        )
    if settings.partition == "natural":
        yield (
            f"The data set {settings.dataset} has no natural sites: use the partition iid or dirichlet, or give "
            "each client its own data directory, which then replaces any partition."
        )


def _wrong_model(settings: TaskSettings) -> Iterator[str]:
    """Yield what is wrong with the model, on its own and for this data set."""
    if settings.model not in MODELS:
        try:
            import_factory(settings.model)
        except ConfigurationError as exc:
            yield from exc.problems
        else:
            yield from _wrong_model_options(settings, None)
        return
    if not is_installed(settings.model):
        package = MODELS[settings.model].package
        yield (
            f"The model {settings.model} needs the package {package}, which is not installed here. Install it on "
            f"every machine: pip install 'flower-unlearning[{package}]'."
        )
    info = DATASETS.get(settings.dataset)
    shape = info.input_shape if info else parse_shape(settings.input_shape)
    if shape is not None:
        unfit = unfit_input(settings.model, shape)
        if unfit is not None:
            yield f"The data set {settings.dataset} does not fit: {unfit}."
    yield from _wrong_model_options(settings, shape)
    kind = MODELS[settings.model].kind
    if info is not None and kind is not info.kind:
        fitting = [name for name, model in MODELS.items() if model.kind is info.kind]
        yield (
            f"{settings.dataset} is a {info.kind} data set and {settings.model} a {kind} model; "
            f"models for it are: {', '.join(fitting)}, or your own as package.module:factory."
        )


def _wrong_model_options(settings: TaskSettings, shape: Shape | None) -> Iterator[str]:
    """Yield what is wrong with the settings that only some models have."""
    info = MODELS.get(settings.model)
    smallest = info.smallest_image_side if info is not None else 0
    if settings.image_side and not smallest:
        resizing = ", ".join(name for name, other in MODELS.items() if other.smallest_image_side)
        yield f"image-side is for models that resize pictures ({resizing}), not for {settings.model}; leave it at 0."
    elif settings.image_side and settings.image_side < smallest:
        yield (
            f"image-side must be 0 (the model's own) or at least {smallest} with the model {settings.model}, got "
            f"{settings.image_side}."
        )
    if not settings.pretrained:
        return
    if info is None or info.load_pretrained is None:
        having = ", ".join(name for name, other in MODELS.items() if other.load_pretrained is not None)
        yield f"pretrained is for models with checkpoints ({having}), not for {settings.model}; leave it empty."
    elif shape is not None and shape[0] != 3:
        yield f"pretrained: the checkpoints of {settings.model} are of colour pictures, {settings.dataset} has none."
