"""Values as JSON has them, and back: what a dataclass's annotations say is its form, so none has a pair of functions.

Where the form is another one than pydantic's, the field's annotation says so: `Sorted`, an alias.
"""

import json
from collections.abc import Callable
from functools import cache
from types import GenericAlias
from typing import Any, TypeVar

from pydantic import ConfigDict, PlainSerializer, TypeAdapter, ValidationError
from pydantic_core import to_json

from unlearning.one_line import as_line

Sorted = PlainSerializer(sorted)
"""In an annotation of a set: its form is a sorted list, so that equal values have equal text."""

_SHOWN = 5

_Kind = TypeVar("_Kind")


def to_plain(value: Any) -> Any:
    """Return a dataclass as dictionaries, lists and what JSON knows, NaN and infinity included; None for an array."""
    kind: Any = type(value)
    plain = _adapter(kind).dump_python(
        [value], mode="json", by_alias=True, warnings=False, fallback=_no_array
    )
    return plain[0]


def json_or_word(text: str) -> Any:
    """Return the value that a person typed: JSON, or a bare word."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def with_arrays(value: Any) -> Any:
    """Return the same as `to_plain`, but for arrays, which stay in their places, and tuples."""
    kind: Any = type(value)
    return _adapter(kind).dump_python([value], by_alias=True, warnings=False)[0]


def from_plain(kind: type[_Kind], value: Any, *, exactly: bool = False) -> _Kind:
    """Return the `kind` that `value`, which may be anybody's JSON, stands for. No type is turned into another.

    exactly: names that `kind` does not have are refused; else they are passed over, as of a newer version.

    Raises:
        ValueError: it stands for none; the message is one line that says where, and repeats no value.
    """
    text = to_json([value], inf_nan_mode="constants")
    found: _Kind = _checked(kind, exactly, lambda adapter: adapter.validate_json(text, strict=True))
    return found


def restore(kind: type[_Kind], value: Any) -> _Kind:
    """Return the `kind` of which this program itself kept `with_arrays`.

    Raises:
        ValueError: as for `from_plain`; also a name that `kind` does not have.
    """
    found: _Kind = _checked(kind, True, lambda adapter: adapter.validate_python([value]))
    return found


def _checked(kind: Any, exactly: bool, read: Callable[[TypeAdapter[Any]], Any]) -> Any:
    try:
        return read(_adapter(kind, exactly))[0]
    except ValidationError as exc:
        wrong = exc.errors(include_url=False, include_context=False, include_input=False)[:_SHOWN]
    places = (".".join(map(str, one["loc"][1:])) or "all of it" for one in wrong)
    text = "; ".join(f"{place}: {one['msg']}" for place, one in zip(places, wrong, strict=True))
    raise ValueError(as_line(text))


@cache
def _adapter(kind: Any, exactly: bool = False) -> TypeAdapter[Any]:
    # a configuration holds for the dataclasses in a type, but is not taken with one alone: hence the list
    config = ConfigDict(
        arbitrary_types_allowed=True,
        extra="forbid" if exactly else "ignore",
        ser_json_inf_nan="constants",
        ser_json_bytes="base64",
        val_json_bytes="base64",
    )
    kinds: Any = GenericAlias(list, (kind,))
    return TypeAdapter(kinds, config=config)


def _no_array(value: Any) -> None:
    if type(value).__name__ != "ndarray":  # NumPy's, which not every process imports
        raise TypeError(f"A {type(value).__name__} has no place in JSON.")
