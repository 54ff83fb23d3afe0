"""Data of the user's own, from NumPy's `.npz` files.

`train.npz`, and `test.npz` where there is one, hold these keys:

- `inputs`: (n, ...). Floating-point numbers are used as they are. Bytes (uint8) are pictures, divided
  by 255, and standardised with the data set's constants where it has some. Channels come first:
  (n, channels, height, width).
- `targets`: integers from 0 to the number of classes less one: (n,) for classification,
  (n, height, width) for segmentation.
- `ids`, optional: n different names, by which single examples can be forgotten later; without it the
  position counts: "0", "1", ...
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unlearning.errors import DataError
from unlearning.requests import MAX_ID_LENGTH
from unlearning.tasks.arrays import Arrays, index_ids, read_archive
from unlearning.tasks.models import Kind, Shape

TRAIN_FILE, TEST_FILE = "train.npz", "test.npz"
KEYS = ("inputs", "targets", "ids")
LAYOUT = (
    "It must hold inputs (n, ...), targets (n,) or (n, height, width), "
    "and optionally ids (n,): see unlearning/tasks/npz.py."
)


def read_npz(path: Path, input_shape: Shape, num_classes: int, kind: Kind) -> Arrays:
    """Return the examples in `path`, checked.

    Raises:
        DataError: the file is missing or unreadable, or a key is missing or malformed; names the key.
    """
    content = read_archive(path, KEYS, LAYOUT)
    for key in ("inputs", "targets"):
        if key not in content:
            raise DataError(f"{path} has no key {key!r}, only {sorted(content)}. {LAYOUT}")
    inputs, targets = content["inputs"], content["targets"]
    _check_inputs(path, inputs, input_shape)
    _check_targets(path, targets, (len(inputs), *_target_shape(input_shape, kind)), num_classes)
    ids = index_ids(len(inputs)) if "ids" not in content else _check_ids(path, content["ids"], len(inputs))
    return Arrays(inputs=inputs, targets=targets, ids=ids)


def _target_shape(input_shape: Shape, kind: Kind) -> Shape:
    return input_shape[1:] if kind is Kind.SEGMENTATION else ()


def _check_inputs(path: Path, inputs: NDArray[Any], input_shape: Shape) -> None:
    if inputs.dtype != np.uint8 and not np.issubdtype(inputs.dtype, np.floating):
        raise DataError(
            f"{path}: the key 'inputs' must hold floating-point numbers or bytes (uint8), got {inputs.dtype}."
        )
    if inputs.ndim == 0 or inputs.shape[1:] != input_shape or not len(inputs):
        raise DataError(
            f"{path}: the key 'inputs' must have the shape (n, {', '.join(map(str, input_shape))}) with "
            f"n of 1 or more, got {inputs.shape}. Correct the file or the setting input-shape."
        )
    if not np.isfinite(inputs).all():
        raise DataError(f"{path}: the key 'inputs' holds values that are not finite. Replace them.")


def _check_targets(path: Path, targets: NDArray[Any], shape: Shape, num_classes: int) -> None:
    if not np.issubdtype(targets.dtype, np.integer):
        raise DataError(f"{path}: the key 'targets' must hold integers, got {targets.dtype}.")
    if targets.shape != shape:
        raise DataError(
            f"{path}: the key 'targets' must have the shape {shape} for these inputs and this model, "
            f"got {targets.shape}."
        )
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= num_classes:
        raise DataError(
            f"{path}: the key 'targets' must hold 0 to {num_classes - 1}, got {low} to {high}. "
            "Correct the file or the setting num-classes."
        )


def _check_ids(path: Path, values: NDArray[Any], count: int) -> NDArray[np.str_]:
    if values.shape != (count,) or values.dtype.kind not in "Uiu":
        raise DataError(
            f"{path}: the key 'ids' must hold {count} strings or integers, got {values.dtype} {values.shape}."
        )
    ids: NDArray[np.str_] = values.astype(np.str_)
    names, repeats = np.unique(ids, return_counts=True)
    if len(names) != count:
        raise DataError(f"{path}: the key 'ids' repeats {str(names[repeats.argmax()])!r}; ids must differ.")
    # A deletion request could not name these.
    for name in names.tolist():
        if not name or len(name) > MAX_ID_LENGTH or name != name.strip() or not name.isprintable():
            raise DataError(
                f"{path}: the key 'ids' holds {name[:40]!r}; an id is 1 to {MAX_ID_LENGTH} printable "
                "characters without leading or trailing blanks."
            )
    return ids
