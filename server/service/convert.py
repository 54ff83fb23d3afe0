"""Between dataclasses and the messages of deletion.proto, both ways, by the names of their fields.

| dataclass   | message                                                                       |
|-------------|-------------------------------------------------------------------------------|
| None        | left out; where the message cannot leave it out, an empty text                |
| a day       | text, YYYY-MM-DD                                                              |
| a mapping   | NAME_json, a JSON object as text                                              |
| a dataclass | a message; without a field of its name, its fields are those of the outer one |

An answer with a single field is the value of that field.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import UTC, date, datetime
from enum import StrEnum
from functools import cache, partial
from operator import attrgetter
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin, get_type_hints

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from server.ledger.records import field_names
from unlearning.errors import InvalidRequest
from unlearning.gdpr import parse_day
from unlearning.one_line import as_line
from unlearning.runtime.json_codec import to_plain

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_Sent = TypeVar("_Sent", bound=Message)
_Read = TypeVar("_Read", bound="DataclassInstance")
_PLAIN = (str, int, float, bool)
_ABSENT = object()


def to_message(kind: type[_Sent], value: Any) -> _Sent:
    """Return the message of this kind that says what the value does."""
    message = kind()
    [only, *more] = message.DESCRIPTOR.fields
    if more:
        _fill(message, value)
    else:
        _set(message, only.name.removesuffix("_json"), value)
    return message


def from_message(kind: type[_Read], message: Message, **given: Any) -> _Read:
    """Return the dataclass of this kind that the message says. given: values of fields, in place of the message's.

    Raises:
        InvalidRequest: a value is not of its field's type, or the dataclass refuses it.
    """
    values = dict(given)
    for name, read in _readers(kind, message.DESCRIPTOR):
        if name not in values and (value := read(message)) is not _ABSENT:
            values[name] = value
    return kind(**values)


def arguments_of(message: Message) -> dict[str, Any]:
    """Return the fields of a message by their names, without those that are absent.

    Raises:
        InvalidRequest: a field that holds a JSON object holds something else.
    """
    found: dict[str, Any] = {}
    for known in message.DESCRIPTOR.fields:
        if known.has_presence and not message.HasField(known.name):
            continue
        name, value = known.name.removesuffix("_json"), getattr(message, known.name)
        if name != known.name:
            value = parse_object(name, value)
        found[name] = tuple(value) if known.is_repeated else value
    return found


def message_of(kind: type[_Sent], **values: Any) -> _Sent:
    """Return the message of this kind whose fields have these values."""
    message = kind()
    for name, value in values.items():
        _set(message, name, value)
    return message


def parse_object(name: str, text: str) -> Mapping[str, Any]:
    """Return a JSON object from the wire; an empty text is an empty one.

    Raises:
        InvalidRequest: it is not a JSON object.
    """
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError) as exc:
        raise InvalidRequest(f"The {name} are not JSON: {exc}.", code="not-json", field=name) from exc
    if not isinstance(value, dict):
        raise InvalidRequest(
            f"The {name} must be a JSON object, got {type(value).__name__}.", code="not-json", field=name
        )
    return value


def _fill(message: Message, value: Any) -> None:
    kind: Any = type(value)
    for name, is_inner in _names(kind, message.DESCRIPTOR):
        found = getattr(value, name)
        if not is_inner:
            _set(message, name, found)
        elif is_dataclass(found):
            _fill(message, found)


@cache
def _names(kind: Any, message: Descriptor) -> list[tuple[str, bool]]:
    """Return a dataclass's fields, and whether the message has the fields of each in its place."""
    known = message.fields_by_name
    return [(name, name not in known and f"{name}_json" not in known) for name in field_names(kind)]


def _set(message: Message, name: str, value: Any) -> None:
    if type(value) in _PLAIN:
        setattr(message, name, value)
    elif value is None:
        return
    elif _is_json(message.DESCRIPTOR, name):
        plain = to_plain(value) if is_dataclass(value) else dict(value)
        setattr(message, f"{name}_json", json.dumps(plain))
    elif isinstance(value, datetime):
        getattr(message, name).FromDatetime(value)
    elif isinstance(value, date):
        setattr(message, name, value.isoformat())
    elif is_dataclass(value):
        _fill(getattr(message, name), value)
    elif isinstance(value, tuple | list | set | frozenset):
        _extend(getattr(message, name), sorted(value) if isinstance(value, set | frozenset) else value)
    else:
        setattr(message, name, value)


@cache
def _is_json(message: Descriptor, name: str) -> bool:
    return f"{name}_json" in message.fields_by_name


def _extend(repeated: Any, values: Any) -> None:
    for value in values:
        if is_dataclass(value):
            _fill(repeated.add(), value)
        else:
            repeated.append(value)


@cache
def _readers(kind: Any, message: Descriptor) -> list[tuple[str, Callable[[Message], Any]]]:
    """Return what reads each field of a dataclass from a message; `_ABSENT` where the message leaves it out."""
    known, hints = message.fields_by_name, get_type_hints(kind)
    found = ((item.name, _reader(item, hints[item.name], known)) for item in fields(kind))
    return [(name, read) for name, read in found if read is not None]


def _reader(item: Field[Any], hint: Any, known: Mapping[str, Any]) -> Callable[[Message], Any] | None:
    name, as_json = item.name, f"{item.name}_json"
    if as_json in known:
        return lambda message: parse_object(name, getattr(message, as_json))
    if name not in known:
        inner: Any = hint
        return partial(from_message, inner) if is_dataclass(hint) else None
    if not known[name].has_presence:
        return (
            attrgetter(name) if hint in _PLAIN else lambda message: _value(name, hint, getattr(message, name))
        )
    is_required, may_be_none = item.default is MISSING and item.default_factory is MISSING, _parts(hint)[1]
    if is_required and not may_be_none:
        return lambda message: _value(name, hint, getattr(message, name))
    absent = None if is_required else _ABSENT
    return lambda message: _value(name, hint, getattr(message, name)) if message.HasField(name) else absent


def _value(name: str, hint: Any, raw: Any) -> Any:
    """Return what a field of this type holds, from what the message's field does."""
    kind, may_be_none, several, of = _parts(hint)
    if raw == "" and may_be_none:
        return None
    if isinstance(raw, Timestamp):
        return raw.ToDatetime(tzinfo=UTC)
    if isinstance(raw, Message):
        return from_message(kind, raw)
    if kind is date:
        return parse_day(name, raw)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return parse_choice(kind, name, raw)
    if several is not None:
        return _several(name, several, of, raw)
    return raw


@cache
def _parts(hint: Any) -> tuple[Any, bool, type | None, Any]:
    """Return a type without None, whether it had it, and of a tuple or set which of them and what it holds."""
    members = get_args(hint)
    may_be_none = NoneType in members
    kind = next(one for one in members if one is not NoneType) if may_be_none else hint
    origin = get_origin(kind)
    return (
        (kind, may_be_none, origin, get_args(kind)[0])
        if origin in (tuple, frozenset)
        else (kind, may_be_none, None, None)
    )


def parse_choice(kind: type[StrEnum], name: str, raw: str) -> StrEnum:
    """Return the member of an enumeration that a text names.

    Raises:
        InvalidRequest: it names none.
    """
    try:
        return kind(raw)
    except ValueError:
        raise InvalidRequest(
            f"Unknown {name} {as_line(raw, 40)!r}; it is one of: {', '.join(kind)}.",
            code="unknown-choice",
            field=name,
        ) from None


def _several(name: str, origin: type, kind: Any, raw: Any) -> Any:
    is_nested = is_dataclass(kind)
    values = [
        from_message(kind, one) if is_nested else _value(kind.__name__.lower(), kind, one) for one in raw
    ]
    found = origin(values)
    if len(found) != len(values):
        raise InvalidRequest(
            f"The list of {name.replace('_', ' ')} has {len(values) - len(found):,} repetition(s); name each once.",
            code="repeated",
            field=name,
        )
    return found
