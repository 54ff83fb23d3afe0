"""Equality to the bit of what methods are given and give, which holds arrays and tensors."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from unlearning.methods.method import PreparedStore
from unlearning.runtime.stores import MemoryStore


def are_equal(one: Any, other: Any) -> bool:
    """Return whether two values are the same, whatever dataclasses, mappings and sequences they are made of.

    The next store of what is kept does not count: it is there to be written to.
    """
    if type(one) is not type(other) and not isinstance(one, Mapping):
        return False
    match one:
        case np.ndarray():
            return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
        case torch.Tensor():
            return torch.equal(one, other)
        case MemoryStore():
            return are_equal(vars(one), vars(other))
        case partial():
            return (one.func, one.args, one.keywords) == (other.func, other.args, other.keywords)
        case PreparedStore():
            return are_equal(one.store, other.store) and bool(one.options == other.options)
        case Mapping():
            return one.keys() == other.keys() and all(are_equal(one[key], other[key]) for key in one)
        case list() | tuple():
            return len(one) == len(other) and all(map(are_equal, one, other))
    if is_dataclass(one):
        return all(are_equal(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    return bool(one == other)
