"""What peers tell each other: items that must reach everybody, and models for neighbours.

An item is flooded: a peer that gets it for the first time writes it down, applies it and passes it on; a repetition
is discarded by its id, which its content decides, so that an item made again after a crash is the same one.

member       a peer, its address, its neighbours and how many examples it has
request      something is to be forgotten; never says which samples
statistics   a peer's numbers, and its curvature, that a request needs
correction   what every peer adds to its model, and the end of the origin's part in the request
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

import numpy as np

from unlearning.errors import SessionError
from unlearning.parameters import Vector, check_finite, check_length
from unlearning.requests import MAX_ID_LENGTH, Granularity

_MAX_SUBJECT_LENGTH = 2 * MAX_ID_LENGTH


class Kind(StrEnum):
    """See the module's docstring."""

    MEMBER = "member"
    REQUEST = "request"
    STATISTICS = "statistics"
    CORRECTION = "correction"


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One thing that every peer must learn. subject: the request's id, empty for a member."""

    kind: Kind
    origin: str
    subject: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    vector: Vector | None = None

    @property
    def id(self) -> str:
        """Equal for items that say the same."""
        return f"{self.kind}/{self.origin}/{self.subject}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A peer's model (d,) at the start of a round, and the ids of the corrections that it includes."""

    sender: str
    round: int
    vector: Vector
    applied: frozenset[str]


@dataclass(frozen=True, slots=True)
class Greeting:
    """A connection's first word: whose it is. Answered with the ids of all items that the other side has.

    is_new: the sender's process has not been answered before, so it may have lost the models that it was sent.
    """

    sender: str
    is_new: bool = True


Parcel: TypeAlias = Item | Offer | Greeting


def checked_item(item: Item, dimension: int) -> Item:
    """The item, if it can be what it says; whatever the network brings goes through here.

    Raises:
        SessionError: a value is missing or out of range.
        UpdateRefused: a vector has a wrong length, or is not finite.
    """
    if not _is_id(item.origin) or len(item.subject) > _MAX_SUBJECT_LENGTH:
        raise SessionError(f"An item with the malformed origin {item.origin[:40]!r} came.")
    try:
        match item.kind:
            case Kind.MEMBER:
                is_right = _is_member(item.values)
            case Kind.REQUEST:
                is_right = _is_request(item.values)
            case Kind.STATISTICS:
                is_right = _is_count(item.values["num_examples"]) and _is_count(item.values["deleted"])
            case Kind.CORRECTION:
                weight = float(item.values["weight"])
                is_right = math.isfinite(weight) and 0 <= weight <= 1 and _is_count(item.values["deleted"])
    except (KeyError, TypeError, ValueError):
        is_right = False
    if not is_right:
        raise SessionError(
            f"The item {item.id!r} came with values that do not fit: {dict(item.values)!s:.200}."
        )
    if item.vector is not None:
        sizes = (dimension, dimension**2) if item.kind is Kind.STATISTICS else (dimension,)
        check_length(item.vector, item.vector.size if item.vector.size in sizes else dimension)
        check_finite(item.vector)
    return item


def checked_offer(offer: Offer, dimension: int) -> Offer:
    """The offer, if its model can be mixed.

    Raises:
        SessionError: its round is negative.
        UpdateRefused: the model has another length, or is not finite.
    """
    if offer.round < 0:
        raise SessionError(f"A model of round {offer.round} came from {offer.sender!r}.")
    check_length(offer.vector, dimension)
    check_finite(offer.vector)
    return offer


def item_values(item: Item) -> dict[str, Any]:
    """The item without its vector, for JSON; `item_from` is the inverse."""
    return {"kind": item.kind, "origin": item.origin, "subject": item.subject, "values": dict(item.values)}


def item_from(values: Mapping[str, Any], vector: Vector | None) -> Item:
    """The item of `item_values`.

    Raises:
        SessionError: the values are not those of an item.
    """
    try:
        origin, subject, own = values["origin"], values["subject"], values["values"]
        item = Item(
            kind=Kind(values["kind"]), origin=str(origin), subject=str(subject), values=own, vector=vector
        )
        dict(own)
    except (KeyError, TypeError, ValueError) as exc:
        raise SessionError(f"Malformed item: {exc}.") from exc
    return item


def _is_id(text: str) -> bool:
    return 0 < len(text) <= MAX_ID_LENGTH and text.isprintable() and text == text.strip()


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_member(values: Mapping[str, Any]) -> bool:
    ids = values["neighbours"]
    return (
        isinstance(values["address"], str)
        and isinstance(ids, list)
        and all(isinstance(one, str) and _is_id(one) for one in ids)
        and _is_count(values["num_examples"])
    )


def _is_request(values: Mapping[str, Any]) -> bool:
    granularity, label = Granularity(values["granularity"]), values["class_label"]
    fits = _is_count(label) if granularity is Granularity.CLASS else label is None
    return fits and isinstance(values["curvature"], bool)


def same_dtype(vector: Vector, like: Vector) -> Vector:
    """`vector` in the dtype of `like`."""
    return np.asarray(vector, dtype=like.dtype)
