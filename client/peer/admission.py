"""Whether an item fits what is known already: checked before it is written down, applied or passed on.

Who may speak: peers of the configuration (`peers`) and those it lets join (`members`). A joiner's neighbours are
members, and a configured peer's those of the configuration, so the graph stays in one piece. Whatever is said about a
request comes after the request, from whom it concerns.

    n    all examples that members declared       m    examples that a correction takes out, of its origin's own
    L    bound on ‖∇ℓ‖          λ    strong convexity          w x^Δ    what a correction moves every model by

‖w x^Δ‖ is at most the limit of the configuration and, where the constants are known, 10 m L/(λ n): the length of an
exact correction is at most m L/(λ (n−m)), and the 10 lets federations shrink to a tenth (`correction_bound`). An
origin's corrections together take out no more examples than it declared and move a model by ten limits at most.

Everything here follows from the items that came before, and each link keeps their order, so peers agree on
what they take. A declared number counts up to ten times the median of all declared ones (`Record.counts`).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from client.peer.gossip import GossipMessage, Kind
from client.peer.record import Record, granularity_of, needs_statistics, owes_correction
from unlearning.certified.sensitivity import Constants
from unlearning.decentralised import check_mixing, correction_bound, metropolis_weights
from unlearning.errors import SessionError
from unlearning.requests import Granularity

_CORRECTIONS_TOGETHER = 10
_ROUNDING = 1 + 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on what one peer may bring to the others; the same at all peers.

    members: who may join beside the configured peers. neighbours: of one joiner. requests: of one peer, ever.
    class_requests_from: who may ask for a class to be forgotten; empty for everybody.
    correction_norm: ‖w x^Δ‖ of one correction. constants: L and λ, None where they are not known.
    shares_matrices: whether curvatures are d² numbers instead of d.
    """

    members: frozenset[str] = frozenset()
    neighbours: int = 32
    requests: int = 1_000
    class_requests_from: frozenset[str] = frozenset()
    correction_norm: float = math.inf
    constants: Constants | None = None
    shares_matrices: bool = True


def may_speak(name: str, record: Record, limits: Limits) -> bool:
    """Return whether the peer of this name belongs to the federation, or may join it."""
    return name in record.initial.nodes or name in limits.members


def check_fits(item: GossipMessage, record: Record, limits: Limits, *, is_applied: bool = False) -> None:
    """Refuse an item that does not fit the record.

    is_applied: its correction is in the model already, as it may be in a journal; then its length is not looked at.

    Raises:
        SessionError: see the module's docstring.
    """
    if not may_speak(item.origin, record, limits):
        raise SessionError(
            f"Peer {item.origin!r:.60} is no member, so its item is not taken. If it shall join, list it under "
            "`members` at every peer."
        )
    if item.kind is not Kind.MEMBER and item.origin not in record.addresses():
        raise SessionError(f"An item of {item.origin!r:.60} came before it said that it is a member.")
    _FITS[item.kind](item, record, limits)
    if item.kind is Kind.CORRECTION and item.vector is not None and not is_applied:
        largest = largest_norm(item.origin, int(item.values["deleted"]), record, limits)
        if item.norm > largest * _ROUNDING:
            raise SessionError(
                f"The correction {item.id!r:.200} would move every model by {item.norm:.4g}, more than {largest:.4g}."
            )


def largest_norm(origin: str, num_deleted: int, record: Record, limits: Limits) -> float:
    """Return the largest ‖w x^Δ‖ of a correction by which `origin` takes out so many of its examples."""
    spent = sum(one.norm for one in record.of(Kind.CORRECTION) if one.origin == origin)
    largest = min(limits.correction_norm, max(0.0, _CORRECTIONS_TOGETHER * limits.correction_norm - spent))
    declared = record.declared_counts()
    if limits.constants is None or not sum(declared.values()):
        return largest
    bound = correction_bound(
        limits.constants,
        num_examples=sum(declared.values()),
        num_deleted=min(num_deleted, declared.get(origin, 0)),
    )
    return min(largest, bound)


def _fits_graph(item: GossipMessage, record: Record, limits: Limits) -> None:
    origin, neighbours = item.origin, list(item.values["neighbours"])
    initial, present = record.initial, {*record.initial.nodes, *record.addresses()}
    if origin in initial.nodes:
        configured = set(initial.neighbours(origin))
        is_right = set(neighbours) <= configured and bool(neighbours) == bool(configured)
    else:
        known = present | limits.members
        is_right = bool(present & set(neighbours) - {origin}) and set(neighbours) <= known - {origin}
        is_right &= len(neighbours) <= limits.neighbours
    if not is_right or len(set(neighbours)) < len(neighbours):
        raise SessionError(
            f"Peer {origin!r:.60} names the neighbours {neighbours!r:.200}, which do not fit this federation: at least "
            "one and not too many, all of them members, and for a configured peer those of the configuration."
        )
    graph = replace(record, items={**record.items, item.id: item}).graph()
    if len(graph.nodes) > 1 and graph != record.graph():
        check_mixing(metropolis_weights(graph))


def _fits_requests(item: GossipMessage, record: Record, limits: Limits) -> None:
    if not item.subject.startswith(f"{item.origin}-"):
        raise SessionError(
            f"The request {item.subject!r:.200} is not named after its origin {item.origin!r:.60}."
        )
    if sum(one.origin == item.origin for one in record.of(Kind.REQUEST)) >= limits.requests:
        raise SessionError(
            f"Peer {item.origin!r:.60} has issued {limits.requests:,} requests, which is the limit. Raise "
            "`limits.requests` at every peer."
        )
    is_class, allowed = granularity_of(item) is Granularity.CLASS, limits.class_requests_from
    if is_class and allowed and item.origin not in allowed:
        raise SessionError(
            f"Peer {item.origin!r:.60} may not ask for a class: see `limits.class-requests-from`."
        )


def _fits_statistics(item: GossipMessage, record: Record, _: Limits) -> None:
    request = _request(item, record)
    is_leaver = granularity_of(request) is Granularity.CLIENT and request.origin == item.origin
    if (
        not needs_statistics(request)
        or is_leaver
        or (item.vector is not None and not request.values["curvature"])
    ):
        raise SessionError(f"Nobody asked for {item.id!r:.200}.")
    left = int(item.values["num_examples"]) + int(item.values["deleted"])
    if left > record.declared_counts(capped=False).get(item.origin, 0):
        raise SessionError(f"The item {item.id!r:.200} speaks of more examples than its origin has.")


def _fits_corrections(item: GossipMessage, record: Record, _: Limits) -> None:
    request, deleted = _request(item, record), int(item.values["deleted"])
    leaves = granularity_of(request) is Granularity.CLIENT
    if not owes_correction(item.origin, request) or bool(item.values.get("leaves", False)) > leaves:
        raise SessionError(f"The correction {item.id!r:.200} is not its origin's to make.")
    if item.vector is not None and not deleted:
        raise SessionError(f"The correction {item.id!r:.200} takes nothing out and has a vector.")
    before = sum(
        int(one.values["deleted"]) for one in record.of(Kind.CORRECTION) if one.origin == item.origin
    )
    if before + deleted > record.declared_counts(capped=False).get(item.origin, 0):
        raise SessionError(f"The correction {item.id!r:.200} takes out more examples than its origin has.")


def _request(item: GossipMessage, record: Record) -> GossipMessage:
    for request in record.of(Kind.REQUEST, item.subject):
        return request
    raise SessionError(f"The item {item.id!r:.200} is about a request that is not known.")


_FITS: Mapping[Kind, Callable[[GossipMessage, Record, Limits], None]] = {
    Kind.MEMBER: _fits_graph,
    Kind.REQUEST: _fits_requests,
    Kind.STATISTICS: _fits_statistics,
    Kind.CORRECTION: _fits_corrections,
}
