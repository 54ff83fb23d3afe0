"""What a strategy remembers, as a checkpoint holds it: values encoded as JSON with arrays in it, and back."""

import hashlib
import pickle
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord


@dataclass(frozen=True, slots=True, eq=False)
class Opaque:
    """A value that no checkpoint can hold, and a mark by which a change of it is seen."""

    kind: str
    mark: object

    @classmethod
    def of(cls, value: Any) -> "Opaque":
        """Return what is known of a value; a function is taken to be the same as long as it is that very one."""
        mark: object = id(value)
        if not callable(value):
            with suppress(Exception):  # locks, connections: whatever refuses to be pickled
                mark = hashlib.sha256(pickle.dumps(value)).digest()
        return cls(type(value).__name__, mark)


NEVER = object()
"""The same as no value."""
_KINDS: Mapping[str, type] = {"list": list, "tuple": tuple, "dict": dict, "record": ArrayRecord}


def encoded(value: Any) -> Any:
    """Return a value as `unlearning.runtime.archive` keeps it: JSON with arrays in it."""
    if (
        value is None
        or type(value) in (bool, int, float, str)
        or (isinstance(value, np.ndarray) and not value.dtype.hasobject)
    ):
        return value
    if isinstance(value, np.generic):
        return {"scalar": np.asarray(value)}
    kind = next((name for name, one in _KINDS.items() if type(value) is one), None)
    if kind is None:
        return Opaque.of(value)
    if kind == "record":
        value = {name: array.numpy() for name, array in value.items()}
    inner = [encoded(item) for item in (value.items() if isinstance(value, dict) else value)]
    return Opaque.of(value) if _has_opaque(inner) else {kind: {str(n): one for n, one in enumerate(inner)}}


def _has_opaque(inner: list[Any]) -> bool:
    return any(isinstance(one, Opaque) for one in inner)


def decoded(value: Any) -> Any:
    """Return a value of its own, the inverse of `encoded`."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if not isinstance(value, dict):
        return value
    ((kind, inside),) = value.items()
    if kind == "scalar":
        return inside[()]
    items = [decoded(one) for one in inside.values()]
    if kind == "record":
        return ArrayRecord({name: Array(array) for name, array in items})
    return _KINDS[kind](items)


def same(one: Any, other: Any) -> bool:
    """Return whether two encoded values are the same, bit by bit."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    if isinstance(one, np.ndarray):
        return bool(
            one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
        )
    return bool(one.mark == other.mark if isinstance(one, Opaque) else one == other)
