"""What peers send each other: items that must reach every peer, models for neighbours, and what each may contain.

An item (`GossipMessage`) is flooded: a peer that receives it for the first time writes it down, applies it and passes
it on; a repetition is discarded by its id, which its content decides, so an item made again after a crash is the same.

member       a peer, its address, its neighbours and how many examples it has
request      something is to be forgotten; never names samples
statistics   a peer's numbers, and its curvature, that a request needs
correction   what every peer adds to its model, and the end of the origin's part in the request

`validate_item` checks an item by itself, `known_items` whether it fits what is known already, and `signatures` whether
its origin said it.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, ConfigDict, Field, with_config

from unlearning.certified.privacy_accountant import AccountedRelease
from unlearning.errors import SessionError
from unlearning.parameters import Vector, check_finite, check_length, norm
from unlearning.requests import MAX_ID_LENGTH, Granularity, is_id
from unlearning.runtime.json_codec import from_plain

RELEASE = "release"
"""Under this key a correction's account has `AccountedRelease.values()`."""
_MAX_SUBJECT_LENGTH = 2 * MAX_ID_LENGTH
_MAX_VALUES_BYTES = 2**16
_MAX_COUNT = 2**40


class Kind(StrEnum):
    """The kinds of items; see the module's docstring."""

    MEMBER = "member"
    REQUEST = "request"
    STATISTICS = "statistics"
    CORRECTION = "correction"


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, slots=True)
class Seal:
    """A proof that an item's origin said this: see `signatures`.

    content: hash of the item's vector (`content_hash`), empty where it has none; it outlives the vector.
    """

    certificate: str
    signature: str
    content: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GossipMessage:
    """One thing that every peer must learn. subject: the request's id, empty for a member."""

    kind: Kind
    origin: str
    subject: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    vector: Vector | None = None
    seal: Seal | None = None

    @property
    def id(self) -> str:
        """Equal for items that say the same."""
        return f"{self.kind}/{self.origin}/{self.subject}"

    @property
    def norm(self) -> float:
        """How far a correction moves a model: its weight times the length of its vector."""
        if self.vector is None:
            return 0.0
        return float(self.values["weight"]) * norm(self.vector)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOffer:
    """A peer's model (d,) at the start of a round, and the ids of the corrections that it includes."""

    sender: str
    round: int
    vector: Vector
    applied: frozenset[str]


@dataclass(frozen=True, slots=True)
class Greeting:
    """The first payload of a connection. It is answered with the ids of all items that the receiver has.

    is_new: the sender's process has not been answered before, so it may have lost the models that it was sent.
    """

    sender: str
    is_new: bool = True


Payload: TypeAlias = GossipMessage | ModelOffer | Greeting


def _peer_id(text: str) -> str:
    if not is_id(text):
        raise ValueError("no id of a peer")
    return text


_Id = Annotated[str, AfterValidator(_peer_id)]
_Count = Annotated[int, Field(ge=0, le=_MAX_COUNT)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    address: Annotated[str, Field(max_length=300)]
    neighbours: list[_Id]
    num_examples: _Count


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    granularity: Granularity
    class_label: _Count | None
    curvature: bool

    def __post_init__(self) -> None:
        if (self.class_label is not None) != (self.granularity is Granularity.CLASS):
            raise ValueError("a class has a label, and nothing else has one")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Statistics:
    num_examples: _Count
    deleted: _Count
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Correction:
    weight: Annotated[float, Field(ge=0, le=1)]
    deleted: _Count
    leaves: bool = False
    reason: str = ""
    account: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if RELEASE in self.account:
            release = from_plain(AccountedRelease, self.account[RELEASE], exactly=True)
            delta = 0.0 if release.sensitivity is None else release.sensitivity.value
            if not (0 <= release.sigma < math.inf and 0 <= delta < math.inf):
                raise ValueError("a release with a noise or a sensitivity that cannot be")


_VALUES: Mapping[Kind, type[Any]] = {
    Kind.MEMBER: _Member,
    Kind.REQUEST: _Request,
    Kind.STATISTICS: _Statistics,
    Kind.CORRECTION: _Correction,
}
"""What an item says: these values and no others, of these types, within these bounds."""


def validate_item(item: GossipMessage, dimension: int, *, shares_matrices: bool = True) -> None:
    """Refuse an item that cannot be what it says; every item from the network is checked here.

    shares_matrices: whether statistics may have d² numbers.

    Raises:
        SessionError: a value is missing, unknown or out of range.
        UpdateRefused: a vector has a wrong length, or is not finite.
    """
    try:
        _peer_id(item.origin)
        if len(item.subject) > _MAX_SUBJECT_LENGTH:
            raise ValueError("a subject that is too long")
        if len(json.dumps(dict(item.values))) > _MAX_VALUES_BYTES:
            raise ValueError("values that are too long")
        from_plain(_VALUES[item.kind], item.values, exactly=True)
    except (RecursionError, TypeError, ValueError) as exc:
        raise SessionError(
            f"The item {item.id!r:.200} came with values that do not fit: {exc!s:.200}.",
            code="malformed-item",
            item=item.id,
        ) from exc
    if item.vector is not None:
        is_matrix = shares_matrices and item.kind is Kind.STATISTICS and item.vector.size == dimension**2
        _check_vector(item.vector, dimension**2 if is_matrix else dimension)


def validate_offer(offer: ModelOffer, dimension: int) -> None:
    """Refuse an offer whose model cannot be mixed.

    Raises:
        SessionError: its round is negative.
        UpdateRefused: the model has another length, or is not finite.
    """
    if not 0 <= offer.round <= _MAX_COUNT:
        raise SessionError(f"A model of round {offer.round!r:.40} came from {offer.sender!r:.60}.")
    _check_vector(offer.vector, dimension)


def _check_vector(vector: Vector, expected: int) -> None:
    check_length(vector, expected)
    if vector.dtype.kind != "f":
        raise SessionError(f"A vector of {vector.dtype} came where real numbers are expected.")
    check_finite(vector)
