"""Arrays in Flower's records that keep their numbers as they are.

Flower's own `Array` is the bytes of numpy's file, so an array is copied twice to make one and twice to read it. Over
sessions numbers travel as they are, and the bytes are made only where somebody asks for them, as Flower's messages do.
"""

from io import BytesIO
from typing import Any

import numpy as np
from flwr.app import Array
from flwr.common.constant import SType
from numpy.typing import NDArray

from unlearning.errors import UpdateRefused
from unlearning.one_line import as_line
from unlearning.parameters import parts
from unlearning.untrusted import check_size, npy_array


class HeldArray(Array):
    """An `Array` of numbers that are not changed while it is in use; `numpy` returns a copy, as Flower's does.

    fingerprint: that of the numbers (`unlearning.parameters`), where it is known.
    """

    __qualname__ = "Array"  # Flower writes the name of the class into what it sends

    def __init__(self, numbers: NDArray[Any], fingerprint: str = "") -> None:
        self.dtype, self.shape, self.stype = str(numbers.dtype), tuple(numbers.shape), SType.NUMPY
        self.numbers = numbers.view()
        self.numbers.flags.writeable = False
        self.fingerprint = fingerprint

    @property
    def data(self) -> bytes:  # type: ignore[override]  # a field of Flower's, made here when it is asked for
        """The bytes of numpy's file."""
        if "_data" not in self.__dict__:
            self.__dict__["_data"] = Array(np.array(self.numbers)).data
        return self.__dict__["_data"]  # type: ignore[no-any-return]  # set above

    def numpy(self) -> NDArray[Any]:
        """Return a copy of the numbers."""
        return np.array(self.numbers)

    def __reduce__(self) -> tuple[Any, ...]:
        return Array, (self.dtype, self.shape, self.stype, self.data)


def num_bytes(array: Array) -> int:
    """Return how many bytes an array takes in one of Flower's messages."""
    if not isinstance(array, HeldArray):
        return len(array.data)
    head = BytesIO()
    np.lib.format.write_array_header_1_0(head, np.lib.format.header_data_from_array_1_0(array.numbers))
    return head.tell() + array.numbers.nbytes


def is_same(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Return whether two arrays have the same bits, dtype and shape; at once where they are one and the same."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    if one.ctypes.data == other.ctypes.data and one.strides == other.strides:
        return True
    flat, others = one.reshape(-1), other.reshape(-1)
    return all(flat[part].tobytes() == others[part].tobytes() for part in parts(flat.size))


def numbers_of(name: str, array: Array, max_size: int | None = None) -> NDArray[Any]:
    """Return the numbers of an array that its sender calls `name`; its bytes are the sender's and may be anything.

    max_size: how many numbers it may hold, where that is known. Those of a held array cannot be written to.

    Raises:
        UpdateRefused: they cannot be read, or are too many.
    """
    if array.stype != SType.NUMPY:
        raise UpdateRefused(
            f"The array {as_line(name, 60)!r} is not one of numpy's but {as_line(array.stype, 60)!r}.",
            code="unreadable-array",
        )
    try:
        if isinstance(array, HeldArray):
            check_size(array.shape, array.numbers.dtype, max_size=max_size)
            return array.numbers
        return npy_array(array.data, max_size=max_size)
    except UpdateRefused as exc:
        raise UpdateRefused(
            f"The array {as_line(name, 60)!r} cannot be read: {exc}", code="unreadable-array"
        ) from exc
