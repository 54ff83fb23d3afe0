"""What examples must be whatever the task: a federation's clients check an app's, and the library those of every site.

What must fit the task is in `unlearning.task_contract`.
"""

from collections import Counter
from collections.abc import Mapping
from typing import NoReturn

import torch
from torch import Tensor

from unlearning.errors import DataError
from unlearning.requests import ID_RULE, is_id
from unlearning.tasks.sources import TensorSource
from unlearning.tasks.task import Examples

FEW = 4
"""Examples that are looked at where all would be too many."""


def check_examples(examples: Examples, where: str) -> None:
    """Refuse examples that cannot be named or learnt from, whatever the task; `where` begins the sentence.

    Inputs behind a Dataset or in memory-mapped files are not read, but for the first few.

    Raises:
        DataError: an id is no text or is shared, or inputs are no tensors, not finite, or others when read again.
    """
    if len(examples):
        _check_ids(examples, where)
        _check_inputs(examples, where)


def _check_ids(examples: Examples, where: str) -> None:
    ids = examples.ids
    if ids.ndim != 1 or ids.dtype.kind != "U":
        _refuse(
            "malformed-id",
            f"{where} must give ids as one list or array of texts (n,), got {ids.dtype} {ids.shape}: use "
            "numpy.asarray(ids).astype(str).",
        )
    if wrong := [name for name in ids.tolist() if not is_id(name)]:
        _refuse("malformed-id", f"{where} has the id {wrong[0][:40]!r}; {ID_RULE}.")
    if len(set(ids.tolist())) < len(ids):
        repeated, count = Counter(ids.tolist()).most_common(1)[0]
        _refuse(
            "repeated-id", f"{where} must give each example an id of its own, got {repeated!r} {count} times."
        )


def _check_inputs(examples: Examples, where: str) -> None:
    in_memory = isinstance(examples.source, TensorSource)
    read = slice(None) if in_memory else slice(0, FEW)
    inputs, targets = parts = _parts_of(examples, read)
    if not all(isinstance(part, Tensor) for part in [*inputs, targets]):
        _refuse("no-tensors", f"{where} must give tensors; Examples.from_arrays takes NumPy's arrays.")
    if not all(_is_finite(part) for part in inputs):
        _refuse("not-finite", f"{where} has inputs that are not finite. Replace them.")
    if not in_memory and not _are_equal(parts, _parts_of(examples, read)):
        _refuse(
            "changing-examples",
            f"{where} gives other values when the same examples are read again. Put random changes into Task.augment: "
            "what was learnt of an example can be measured and unlearnt of that example only.",
        )


def _parts_of(examples: Examples, which: slice) -> tuple[list[Tensor], Tensor]:
    inputs, targets = examples.batch(which)
    return [*inputs.values()] if isinstance(inputs, Mapping) else [inputs], targets


def _are_equal(first: tuple[list[Tensor], Tensor], again: tuple[list[Tensor], Tensor]) -> bool:
    pairs = zip([*first[0], first[1]], [*again[0], again[1]], strict=True)
    return all(torch.equal(one.nan_to_num(), other.nan_to_num()) for one, other in pairs)


def _is_finite(values: Tensor) -> bool:
    if not values.is_floating_point():
        return True
    return bool(
        torch.isfinite(values.sum()) or torch.isfinite(values).all()
    )  # a sum is quick and may overflow


def _refuse(code: str, sentence: str) -> NoReturn:
    raise DataError(sentence, code=code)
