"""From settings to a task, to one site's data, and to the server's test set."""

import os
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch

from unlearning.errors import ConfigurationError, DataError
from unlearning.tasks import losses, partitions
from unlearning.tasks.arrays import Arrays, examples
from unlearning.tasks.datasets import DATASETS, MAPPED_FILES, DatasetInfo
from unlearning.tasks.models import MODELS, Kind, Shape, model_builder
from unlearning.tasks.npz import TEST, TRAIN, read_npy, read_npz, target_shape
from unlearning.tasks.partitions import Indices
from unlearning.tasks.settings import TaskSettings, parse_shape, problems
from unlearning.tasks.sources import Scaling
from unlearning.tasks.task import Examples, Site, Task, numbered

DATA_VARIABLE = "FLOWER_UNLEARNING_DATA"
HELD_OUT_SHARE = 0.2
"""What part of its data a site tests on where the server has no test set."""


def make_task(settings: TaskSettings) -> Task:
    """Return the task that the settings name; no data is read.

    Raises:
        ConfigurationError: settings are wrong; lists all.
        DataError: the user's own model does not fit the data set.
    """
    return _task(settings)


@lru_cache(maxsize=16)
def _task(settings: TaskSettings) -> Task:
    wrong = problems(settings)
    if wrong:
        raise ConfigurationError(wrong)
    info = DATASETS[settings.dataset]
    shape, num_classes = _input_shape(settings), _num_classes(settings)
    builder, kind = model_builder(settings.model, shape, num_classes, settings.image_side)
    if info is not None and kind is not info.kind:
        raise DataError(
            f"{settings.dataset} is a {info.kind} data set, and the outputs of {settings.model!r} have the "
            f"shape of {kind}."
        )
    segments = kind is Kind.SEGMENTATION
    load_pretrained = MODELS[settings.model].load_pretrained if settings.pretrained else None
    return Task(
        name=f"{settings.dataset}/{settings.model}",
        num_classes=num_classes,
        score_name="dice" if segments else "accuracy",
        build_model=builder,
        loss=losses.cross_entropy_and_dice if segments else losses.cross_entropy,
        per_example=losses.segmentation_measures if segments else losses.classification_measures,
        augment=info.augment if info is not None else None,
        dtype=getattr(torch, settings.dtype),
        load_pretrained=partial(load_pretrained, settings.pretrained) if load_pretrained else None,
        channels_last=settings.model in MODELS,
    )


def drop_own_data() -> None:
    """Drop what was read of data owners' own files; the examples that were made of it are others'."""
    _read_own.cache_clear()


def load_site(settings: TaskSettings, partition: int, own_data_dir: Path | None = None) -> Site:
    """Return the data of client number `partition`, or that in its own directory, which replaces any partition.

    Its own directory holds `train.npz` and perhaps `test.npz`, or for npy directories `train` and `test`
    (see `npz`); for heart-disease one file `*.data`. Where neither the server nor the directory's layout has a
    test set (heart-disease, nuclei), the site holds out a fifth of its data, the same fifth at every start.

    Raises:
        ConfigurationError: settings are wrong; lists all.
        DataError: the data is missing or malformed, or there is no such partition.
    """
    info, scaling = _info_and_scaling(settings)
    if own_data_dir is not None:
        if info is None or info.train_own is None:
            return Site(
                _own_examples(settings, own_data_dir / _named(settings, TRAIN)),
                _own_examples(settings, own_data_dir / _named(settings, TEST), optional=True),
            )
        arrays = info.train_own(own_data_dir)
        which: Indices = np.arange(len(arrays))
    else:
        parts = _parts(settings)
        if not 0 <= partition < len(parts):
            raise DataError(
                f"There are the partitions 0 to {len(parts) - 1}, got {partition}. Set num-clients to the "
                "number of clients and give each one a partition-id below it."
            )
        arrays, which = _shared_examples(settings), parts[partition]
    test = np.zeros(len(which), dtype=np.bool_)
    if info is not None and info.test is None:
        groups = which if arrays.groups is None else arrays.groups[which]
        test = partitions.hold_out(groups, HELD_OUT_SHARE, settings.seed)
    return Site(examples(arrays, which[~test], scaling), examples(arrays, which[test], scaling))


def load_server_test(settings: TaskSettings) -> Examples | None:
    """Return the test set that the server itself has, or None.

    For npz it is `test.npz` in the data directory, for npy the directory `test`, where there is one.

    Raises:
        ConfigurationError: settings are wrong; lists all.
        DataError: the data is missing or malformed.
    """
    info, scaling = _info_and_scaling(settings)
    if info is None:
        directory = _directory(settings)
        if directory is None or not (directory / _named(settings, TEST)).exists():
            return None
        return _own_examples(settings, directory / _named(settings, TEST))
    if info.test is None:
        return None
    arrays = info.test(_needed_directory(settings, info))
    kept = partitions.subset(len(arrays), settings.max_test_examples, settings.seed)
    return examples(arrays, kept, scaling)


def _info_and_scaling(settings: TaskSettings) -> tuple[DatasetInfo | None, Scaling]:
    make_task(settings)  # refuses wrong settings
    info = DATASETS[settings.dataset]
    return info, info.scaling if info is not None else Scaling()


def _directory(settings: TaskSettings) -> Path | None:
    name = settings.data_dir or os.environ.get(DATA_VARIABLE, "")
    return Path(name).expanduser() if name else None


def _needed_directory(settings: TaskSettings, info: DatasetInfo | None) -> Path:
    directory = _directory(settings)
    if directory is not None:
        return directory
    if info is not None and not info.needs_directory:
        return Path()
    raise DataError(
        f"The data set {settings.dataset} is read from a directory and none is named. Set data-dir, or the "
        f"environment variable {DATA_VARIABLE} on this machine, or give the client its own data directory."
    )


def _shared_examples(settings: TaskSettings) -> Arrays:
    """Return the examples that the clients share."""
    info = DATASETS[settings.dataset]
    directory = _needed_directory(settings, info)
    return _read_own(settings, directory / _named(settings, TRAIN)) if info is None else info.train(directory)


@lru_cache(maxsize=4)
def _parts(settings: TaskSettings) -> list[Indices]:
    """Return each client's positions in the shared examples."""
    arrays = _shared_examples(settings)
    kept = partitions.subset(len(arrays), settings.max_examples, settings.seed)
    return [kept[part] for part in _partition(settings, arrays, kept)]


def _partition(settings: TaskSettings, arrays: Arrays, kept: Indices) -> list[Indices]:
    """Return the examples at `kept` dealt out, as positions in `kept`."""
    match settings.partition:
        case "natural":
            assert arrays.sites is not None  # `problems` refuses natural for the others
            return partitions.natural(arrays.sites[kept], settings.num_clients)
        case "dirichlet":
            if arrays.targets.ndim != 1:
                raise DataError(
                    "The partition dirichlet deals out classes, but the targets are masks. Use iid."
                )
            targets = arrays.targets[kept]
            return partitions.dirichlet(targets, settings.num_clients, settings.alpha, settings.seed)
        case _ if arrays.groups is not None:
            return partitions.iid_groups(arrays.groups[kept], settings.num_clients, settings.seed)
        case _:
            return partitions.iid(len(kept), settings.num_clients, settings.seed)


def _own_examples(settings: TaskSettings, path: Path, *, optional: bool = False) -> Examples:
    """Return all examples in a `.npz` file or a directory of `.npy`; none where it is optional and missing."""
    shape = _input_shape(settings)
    if optional and not path.exists():
        targets = torch.zeros(0, *target_shape(shape, _kind(settings)), dtype=torch.int64)
        return Examples(torch.zeros(0, *shape), targets, numbered(0))
    arrays = _read_own(settings, path)
    _, scaling = _info_and_scaling(settings)
    return examples(arrays, np.arange(len(arrays)), scaling)


@lru_cache(maxsize=4)
def _read_own(settings: TaskSettings, path: Path) -> Arrays:
    read = read_npy if path.suffix != ".npz" else read_npz
    return read(path, _input_shape(settings), _num_classes(settings), _kind(settings))


def _named(settings: TaskSettings, part: str) -> str:
    """Return the name of the file, or of the directory, of the training or the test examples."""
    return f"{part}.npz" if settings.dataset != MAPPED_FILES else part


def _kind(settings: TaskSettings) -> Kind:
    return Kind.SEGMENTATION if make_task(settings).score_name == "dice" else Kind.CLASSIFICATION


def _input_shape(settings: TaskSettings) -> Shape:
    info = DATASETS[settings.dataset]
    shape = info.input_shape if info is not None else parse_shape(settings.input_shape)
    assert shape is not None  # `problems` refuses such settings
    return shape


def _num_classes(settings: TaskSettings) -> int:
    info = DATASETS[settings.dataset]
    return info.num_classes if info is not None else settings.num_classes
