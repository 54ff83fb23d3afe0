"""Methods that do as another one does and look at what it is given and gives, or change one thing about it."""

import copy
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

from unlearning.methods.method import (
    ClientSite,
    Instruction,
    Method,
    PreparedStore,
    Reply,
)
from unlearning.runtime.stores import MemoryStore
from unlearning.testing.deletions import Wrapped

Result = TypeVar("Result")


class Restarted(Wrapped):
    """A method that is as new for each call, as in a process of its own."""

    def __init__(self, inner: Method) -> None:
        super().__init__(inner)
        self._fresh = copy.deepcopy(inner)

    def __getattribute__(self, name: str) -> Any:
        if name == "inner":
            return copy.deepcopy(self._fresh)
        return super().__getattribute__(name)


class Watched(Wrapped):
    """A method whose calls are looked at: `seen` says which argument it changed first."""

    seen = ""

    def call(self, name: str, **given: Any) -> Any:
        """Do the call, and note what it has changed of what it was given; a site's store and memo may change."""
        site = given.get("site")
        looked_at = given if site is None else {**given, "site": (site.forget, site.retain)}
        before = copy.deepcopy(looked_at)
        result = super().call(name, **given)
        changed = [one for one in before if not are_equal(before[one], looked_at[one])]
        if changed and not self.seen:
            self.seen = f"{name}() changed its {changed[0]}"
        return result


class WithMemo(Wrapped):
    """A method whose clients keep their memos from exchange to exchange."""

    def __init__(self, inner: Method) -> None:
        super().__init__(inner)
        self._memos: dict[tuple[str, ...], dict[str, Any]] = {}

    def client_step(self, instruction: Instruction, site: ClientSite) -> Reply:
        """Give it the memo of the same examples."""
        examples = (*site.forget.ids.tolist(), "|", *site.retain.ids.tolist())
        return super().client_step(instruction, replace(site, memo=self._memos.setdefault(examples, {})))


class Short(Wrapped):
    """A method whose clients answer with half of their vectors."""

    has_cut = False

    def client_step(self, instruction: Instruction, site: ClientSite) -> Reply:
        """Cut the vector."""
        reply = super().client_step(instruction, site)
        self.has_cut = self.has_cut or reply.vector.size > 1
        return replace(reply, vector=reply.vector[: max(1, reply.vector.size // 2)])


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
            return are_equal(one.store, other.store) and bool(one.preparation == other.preparation)
        case Mapping():
            return one.keys() == other.keys() and all(are_equal(one[key], other[key]) for key in one)
        case list() | tuple():
            return len(one) == len(other) and all(map(are_equal, one, other))
    if is_dataclass(one):
        return all(are_equal(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    return bool(one == other)
