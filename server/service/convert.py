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
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import UTC, date, datetime
from enum import StrEnum
from functools import cache
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin, get_type_hints

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
    known, hints = message.DESCRIPTOR.fields_by_name, _hints(kind)
    values = dict(given)
    for item in fields(kind):
        hint = hints[item.name]
        if item.name in values:
            continue
        if f"{item.name}_json" in known:
            values[item.name] = parse_object(item.name, getattr(message, f"{item.name}_json"))
        elif item.name in known:
            if known[item.name].has_presence and not message.HasField(item.name):
                if not _is_required(item):
                    continue
                if _parts(hint)[1]:
                    values[item.name] = None
                    continue
            values[item.name] = _value(item.name, hint, getattr(message, item.name))
        elif is_dataclass(hint):
            inner: Any = hint
            values[item.name] = from_message(inner, message)
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
    known = message.DESCRIPTOR.fields_by_name
    kind: Any = type(value)
    for name in field_names(kind):
        found = getattr(value, name)
        if name in known or f"{name}_json" in known:
            _set(message, name, found)
        elif is_dataclass(found):
            _fill(message, found)


def _set(message: Message, name: str, value: Any) -> None:
    if value is None:
        return
    if f"{name}_json" in message.DESCRIPTOR.fields_by_name:
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


def _extend(repeated: Any, values: Any) -> None:
    for value in values:
        if is_dataclass(value):
            _fill(repeated.add(), value)
        else:
            repeated.append(value)


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


def _is_required(item: Field[Any]) -> bool:
    return item.default is MISSING and item.default_factory is MISSING


@cache
def _hints(kind: type) -> Mapping[str, Any]:
    return get_type_hints(kind)
