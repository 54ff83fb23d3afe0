"""What peers tell each other: items that must reach everybody, and models for neighbours.

An item is flooded: a peer that gets it for the first time writes it down, applies it and passes it on; a repetition
is discarded by its id, which its content decides, so that an item made again after a crash is the same one.

member       a peer, its address, its neighbours and how many examples it has
request      something is to be forgotten; never says which samples
statistics   a peer's numbers, and its curvature, that a request needs
correction   what every peer adds to its model, and the end of the origin's part in the request

`checks` says what an item or a model may be by itself, `admission` whether it fits what is known already, and
`seals` whether its origin said it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeAlias

import numpy as np
from pydantic import ConfigDict, with_config

from unlearning.errors import SessionError
from unlearning.parameters import Vector
from unlearning.runtime.json_codec import from_plain, to_plain

RELEASE = "release"
"""Under this key a correction's account has `AccountedRelease.values()`."""


class Kind(StrEnum):
    """The kinds of items; see the module's docstring."""

    MEMBER = "member"
    REQUEST = "request"
    STATISTICS = "statistics"
    CORRECTION = "correction"


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, slots=True)
class Seal:
    """A proof that an item's origin said this: see `seals`.

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
        return float(self.values["weight"]) * length(self.vector)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOffer:
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


Payload: TypeAlias = GossipMessage | ModelOffer | Greeting


def length(vector: Vector) -> float:
    """Compute the Euclidean norm of `vector` (d,) in float64, infinite where that overflows."""
    with np.errstate(over="ignore"):
        return float(np.linalg.norm(vector.astype(np.float64)))


def item_values(item: GossipMessage) -> dict[str, Any]:
    """Return the item without its vector, for JSON; `item_from` is the inverse."""
    plain = to_plain(replace(item, vector=None))
    return {name: value for name, value in plain.items() if value is not None}


def item_from(values: Mapping[str, Any], vector: Vector | None) -> GossipMessage:
    """Return the item of `item_values`.

    Raises:
        SessionError: the values are not those of an item.
    """
    try:
        return replace(from_plain(GossipMessage, {**values, "vector": None}), vector=vector)
    except (TypeError, ValueError) as exc:
        raise SessionError(f"Malformed item: {exc!s:.200}.") from exc
