"""Data of the user's own, from NumPy's files: `.npz` is read into memory, directories of `.npy` are memory-mapped.

`train.npz`, and `test.npz` where there is one, hold these keys; for data larger than memory directories `train` and
`test` hold a file of each name instead, `inputs.npy` and so on:

- `inputs`: (n, ...). Floating-point numbers are used as they are. Bytes (uint8) are pictures, divided
  by 255, and standardised with the data set's constants where it has some. Channels come first:
  (n, channels, height, width).
- `targets`: integers from 0 to the number of classes less one: (n,) for classification,
  (n, height, width) for segmentation.
- `ids`, optional: n different names, by which single examples can be forgotten later; without it the
  position counts: "0", "1", ...

Memory-mapped inputs are not looked through for values that are not finite, nor masks for their range: that would read
all of them at every start.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unlearning.errors import DataError
from unlearning.requests import ID_RULE, is_id
from unlearning.tasks.arrays import Arrays, read_archive
from unlearning.tasks.models import Kind, Shape
from unlearning.tasks.task import numbered

TRAIN, TEST = "train", "test"
KEYS = ("inputs", "targets", "ids")
LAYOUT = (
    "It must hold inputs (n, ...), targets (n,) or (n, height, width), "
    "and optionally ids (n,): see unlearning/tasks/npz.py."
)
FILES = (
    "A directory of memory-mapped data holds inputs.npy (n, ...), targets.npy (n,) or (n, height, width), "
    "and optionally ids.npy (n,): see unlearning/tasks/npz.py."
)


def read_npz(path: Path, input_shape: Shape, num_classes: int, kind: Kind) -> Arrays:
    """Return the examples in `path`, checked.

    Raises:
        DataError: the file is missing or unreadable, or a key is missing or malformed; names the key.
    """
    return _checked(path, read_archive(path, KEYS, LAYOUT), input_shape, num_classes, kind)


def read_npy(directory: Path, input_shape: Shape, num_classes: int, kind: Kind) -> Arrays:
    """Return the examples in a directory's `.npy` files, memory-mapped, checked.

    Raises:
        DataError: a file is missing or unreadable, or malformed; names it.
    """
    content: dict[str, NDArray[Any]] = {}
    for key in KEYS:
        path = directory / f"{key}.npy"
        try:
            # Pickled objects could run code and are refused.
            content[key] = np.load(path, mmap_mode="r", allow_pickle=False)
        except FileNotFoundError as exc:
            if key == "ids" and directory.is_dir():
                continue
            raise DataError(f"There is no file {path}. {FILES}") from exc
        except (OSError, ValueError, EOFError) as exc:
            raise DataError(f"{path} is no .npy file of a plain array ({exc}). {FILES}") from exc
    return _checked(directory, content, input_shape, num_classes, kind)


def _checked(
    path: Path, content: Mapping[str, NDArray[Any]], input_shape: Shape, num_classes: int, kind: Kind
) -> Arrays:
    for key in ("inputs", "targets"):
        if key not in content:
            raise DataError(f"{path} has no key {key!r}, only {sorted(content)}. {LAYOUT}", key=key)
    inputs, targets = content["inputs"], content["targets"]
    _check_inputs(path, inputs, input_shape)
    _check_targets(path, targets, (len(inputs), *target_shape(input_shape, kind)), num_classes)
    ids = numbered(len(inputs)) if "ids" not in content else _check_ids(path, content["ids"], len(inputs))
    return Arrays(inputs=inputs, targets=targets, ids=ids)


def target_shape(input_shape: Shape, kind: Kind) -> Shape:
    """Return the shape of one input's target."""
    return input_shape[1:] if kind is Kind.SEGMENTATION else ()


def _check_inputs(path: Path, inputs: NDArray[Any], input_shape: Shape) -> None:
    if inputs.dtype != np.uint8 and not np.issubdtype(inputs.dtype, np.floating):
        raise DataError(
            f"{path}: the key 'inputs' must hold floating-point numbers or bytes (uint8), got {inputs.dtype}.",
            key="inputs",
        )
    if inputs.ndim == 0 or inputs.shape[1:] != input_shape or not len(inputs):
        raise DataError(
            f"{path}: the key 'inputs' must have the shape (n, {', '.join(map(str, input_shape))}) with "
            f"n of 1 or more, got {inputs.shape}. Correct the file or the setting input-shape.",
            key="inputs",
        )
    if not isinstance(inputs, np.memmap) and not np.isfinite(inputs).all():
        raise DataError(
            f"{path}: the key 'inputs' holds values that are not finite. Replace them.", key="inputs"
        )


def _check_targets(path: Path, targets: NDArray[Any], shape: Shape, num_classes: int) -> None:
    if not np.issubdtype(targets.dtype, np.integer):
        raise DataError(f"{path}: the key 'targets' must hold integers, got {targets.dtype}.", key="targets")
    if targets.shape != shape:
        raise DataError(
            f"{path}: the key 'targets' must have the shape {shape} for these inputs and this model, "
            f"got {targets.shape}.",
            key="targets",
        )
    if isinstance(targets, np.memmap) and targets.ndim > 1:
        return
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= num_classes:
        raise DataError(
            f"{path}: the key 'targets' must hold 0 to {num_classes - 1}, got {low} to {high}. "
            "Correct the file or the setting num-classes.",
            key="targets",
        )


def _check_ids(path: Path, values: NDArray[Any], count: int) -> NDArray[np.str_]:
    if values.shape != (count,) or values.dtype.kind not in "Uiu":
        raise DataError(
            f"{path}: the key 'ids' must hold {count} strings or integers, got {values.dtype} {values.shape}.",
            key="ids",
        )
    ids: NDArray[np.str_] = values.astype(np.str_)
    names, repeats = np.unique(ids, return_counts=True)
    if len(names) != count:
        raise DataError(
            f"{path}: the key 'ids' repeats {str(names[repeats.argmax()])!r}; ids must differ.", key="ids"
        )
    # A deletion request could not name these.
    for name in names.tolist():
        if not is_id(name):
            raise DataError(f"{path}: the key 'ids' holds {name[:40]!r}; {ID_RULE}.", key="ids")
    return ids
