"""What an item or a model may be by itself, whoever sent it and whatever is known already.

Values are an item's own and no others, of their types, within bounds; vectors have the model's length and are finite.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

from client.peer.gossip import RELEASE, GossipMessage, Kind, ModelOffer
from unlearning.certified.privacy_accountant import AccountedRelease
from unlearning.errors import FlowerUnlearningError, SessionError
from unlearning.parameters import Vector, check_finite, check_length
from unlearning.requests import MAX_ID_LENGTH, Granularity
from unlearning.runtime.json_codec import from_plain

_MAX_SUBJECT_LENGTH = 2 * MAX_ID_LENGTH
_MAX_ADDRESS_LENGTH = 300
_MAX_VALUES_BYTES = 2**16
_MAX_COUNT = 2**40

_FIELDS: Mapping[Kind, tuple[frozenset[str], frozenset[str]]] = {
    Kind.MEMBER: (frozenset({"address", "neighbours", "num_examples"}), frozenset()),
    Kind.REQUEST: (frozenset({"granularity", "class_label", "curvature"}), frozenset()),
    Kind.STATISTICS: (frozenset({"num_examples", "deleted"}), frozenset({"reason"})),
    Kind.CORRECTION: (frozenset({"weight", "deleted"}), frozenset({"leaves", "reason", "account"})),
}
"""What an item says, and what it may say besides."""


_WRONG = (
    ArithmeticError,
    AttributeError,
    FlowerUnlearningError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What looking at a value of another type or shape can raise."""


def validate_item(item: GossipMessage, dimension: int, *, shares_matrices: bool = True) -> None:
    """Refuse an item that cannot be what it says; whatever the network brings goes through here.

    shares_matrices: whether statistics may have d² numbers.

    Raises:
        SessionError: a value is missing, unknown or out of range.
        UpdateRefused: a vector has a wrong length, or is not finite.
    """
    if (
        not _is_id(item.origin)
        or not isinstance(item.subject, str)
        or len(item.subject) > _MAX_SUBJECT_LENGTH
    ):
        raise SessionError(f"An item with the malformed origin {item.origin!r:.60} came.")
    try:
        is_right = _has_fields(item) and _CHECKS[item.kind](item.values)
    except _WRONG:
        is_right = False
    if not is_right:
        raise SessionError(
            f"The item {item.id!r:.200} came with values that do not fit: {item.values!r:.200}."
        )
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


def _has_fields(item: GossipMessage) -> bool:
    needed, allowed = _FIELDS[item.kind]
    fits = needed <= item.values.keys() <= needed | allowed
    return fits and len(json.dumps(dict(item.values))) <= _MAX_VALUES_BYTES


def _check_vector(vector: Vector, expected: int) -> None:
    check_length(vector, expected)
    if vector.dtype.kind != "f":
        raise SessionError(f"A vector of {vector.dtype} came where real numbers are expected.")
    check_finite(vector)


def _is_id(text: object) -> bool:
    return (
        isinstance(text, str)
        and 0 < len(text) <= MAX_ID_LENGTH
        and text.isprintable()
        and text == text.strip()
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_COUNT


def _is_member(values: Mapping[str, Any]) -> bool:
    ids, address = values["neighbours"], values["address"]
    return (
        isinstance(address, str)
        and len(address) <= _MAX_ADDRESS_LENGTH
        and isinstance(ids, list)
        and all(map(_is_id, ids))
        and _is_count(values["num_examples"])
    )


def _is_request(values: Mapping[str, Any]) -> bool:
    granularity, label = Granularity(values["granularity"]), values["class_label"]
    fits = _is_count(label) if granularity is Granularity.CLASS else label is None
    return fits and isinstance(values["curvature"], bool)


def _is_statistics(values: Mapping[str, Any]) -> bool:
    return (
        _is_count(values["num_examples"])
        and _is_count(values["deleted"])
        and isinstance(values.get("reason", ""), str)
    )


def _is_correction(values: Mapping[str, Any]) -> bool:
    weight, account = values["weight"], values.get("account", {})
    return (
        isinstance(weight, int | float)
        and not isinstance(weight, bool)
        and 0 <= weight <= 1
        and _is_count(values["deleted"])
        and isinstance(values.get("leaves", False), bool)
        and isinstance(values.get("reason", ""), str)
        and isinstance(account, dict)
        and (RELEASE not in account or _is_release(account[RELEASE]))
    )


def _is_release(values: Any) -> bool:
    release = from_plain(AccountedRelease, values, exactly=True)
    delta = 0.0 if release.sensitivity is None else release.sensitivity.value
    return math.isfinite(release.sigma) and release.sigma >= 0 and math.isfinite(delta) and delta >= 0


_CHECKS = {
    Kind.MEMBER: _is_member,
    Kind.REQUEST: _is_request,
    Kind.STATISTICS: _is_statistics,
    Kind.CORRECTION: _is_correction,
}
