"""The items that a peer has: each is checked before it is kept, applied or passed on; kept ones are durable.

Who may speak: peers of the configuration (`peers`) and those it lets join (`members`). A joiner's neighbours are
members, and a configured peer's those of the configuration, so the graph stays in one piece. What an item says about a
request comes after the request, from a peer that it concerns.

    n    all examples that members declared       m    examples that a correction takes out, of its origin's own
    L    bound on ‖∇ℓ‖          λ    strong convexity          w x^Δ    what a correction moves every model by

‖w x^Δ‖ is at most the limit of the configuration and, where the constants are known, 10 m L/(λ n): the length of an
exact correction is at most m L/(λ (n−m)), and the 10 lets federations shrink to a tenth (`correction_bound`). An
origin's corrections together take out no more examples than it declared and move a model by ten limits at most.

Everything here follows from the items that came before, and each link keeps their order, so peers agree on
what they accept. A declared number counts up to ten times the median of all declared ones (`PeerRules.count_factor`).
"""

from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from logging import getLogger

from client.peer.gossip import GossipMessage, Kind, validate_item
from client.peer.journal import Journal
from client.peer.record import PeerRules, Record, granularity_of, needs_statistics, owes_correction
from client.peer.signatures import Seals, content_of
from unlearning.decentralised.calibration import correction_bound
from unlearning.decentralised.graphs import Graph
from unlearning.decentralised.mixing import check_mixing, metropolis_weights
from unlearning.errors import SessionError
from unlearning.requests import Granularity

_log = getLogger(__name__)

_CORRECTIONS_TOGETHER = 10
_ROUNDING = 1 + 1e-6


class KnownItems:
    """The items of the peer `name`.

    by_id: in the order of arrival. record: what they say. seals: None where peers believe each other.
    dimension: of the model.
    """

    def __init__(
        self, name: str, graph: Graph, journal: Journal, rules: PeerRules, seals: Seals | None, dimension: int
    ) -> None:
        self.by_id: dict[str, GossipMessage] = {}
        self.record = Record(graph, self.by_id, rules)
        self._name, self._journal, self._seals, self._dimension = name, journal, seals, dimension

    def restore(self, applied: Set[str]) -> None:
        """Take what the journal has. What does not fit is moved aside: no item may keep a peer from starting."""
        for item in self._journal.items():
            try:
                self._check(item, is_applied=item.id in applied)
            except Exception as exc:  # noqa: BLE001 - whatever it is, the peer must start
                where = self._journal.quarantine(item)
                stays = " Its correction stays in the model." if item.id in applied else ""
                _log.error("%.200s was moved to %s, for it does not fit: %s%s", item.id, where, exc, stays)
                continue
            self.by_id[item.id] = item

    def take(self, item: GossipMessage, *, is_own: bool) -> GossipMessage:
        """Check an item and keep it; return what is kept under its id now. is_own: it is this peer's statement.

        Raises:
            SessionError, UpdateRefused: it cannot be what it says, does not fit, or is not its origin's.
        """
        known = self.by_id.get(item.id)
        if known is not None:
            if not is_own:
                self._check_repetition(known, item)
            return known
        if is_own and item.origin == self._name and self._seals is not None:
            item = self._seals.seal(item)
        self._check(item)
        if item.kind is Kind.STATISTICS and self._has_correction(item.subject):
            item = replace(item, vector=None)  # too late to be of use
        self._journal.put(item)
        self.by_id[item.id] = item
        return item

    def _check(self, item: GossipMessage, *, is_applied: bool = False) -> None:
        """Refuse an item that cannot be what it says, is not its origin's, or does not fit."""
        validate_item(item, self._dimension, shares_matrices=self.record.rules.shares_matrices)
        if self._seals is not None:
            self._seals.check(item)
        check_fits(item, self.record, is_applied=is_applied)

    def _check_repetition(self, known: GossipMessage, item: GossipMessage) -> None:
        """Refuse an item that differs from the one known under its id, if its origin signed both."""
        if self._seals is None or item.seal is None:
            return
        if dict(known.values) == dict(item.values) and item.seal.content in (content_of(known), ""):
            return
        validate_item(item, self._dimension)
        self._seals.check(item)
        raise SessionError(
            f"Peer {item.origin!r:.60} has said two different things as {item.id!r:.200}.",
            code="contradiction",
            item=item.id,
        )

    def is_whole(self, item: GossipMessage) -> bool:
        """Return whether others can take the item: with the vector that its seal speaks of."""
        return item.seal is None or bool(item.seal.content) == (item.vector is not None)

    def _has_correction(self, subject: str) -> bool:
        """Return whether the request has its correction, so that its curvatures are needed no more."""
        return any(
            granularity_of(request) is not Granularity.CLASS and self.record.is_corrected(request)
            for request in self.record.of(Kind.REQUEST, subject)
        )

    def drop_all_curvatures(self) -> None:
        """Drop the curvatures of each request that has its correction."""
        kept = {item.subject for item in self.record.of(Kind.STATISTICS) if item.vector is not None}
        for subject in kept:
            self.drop_curvatures(subject)

    def drop_curvatures(self, subject: str) -> None:
        """Drop the curvatures of a request that has its correction: a matrix from every peer is a lot to keep."""
        if not self._has_correction(subject):
            return
        for item in list(self.record.of(Kind.STATISTICS, subject)):
            if item.vector is not None:
                without = replace(item, vector=None)
                self._journal.put(without)
                self.by_id[item.id] = without


def check_fits(item: GossipMessage, record: Record, *, is_applied: bool = False) -> None:
    """Refuse an item that does not fit the record.

    is_applied: its correction is in the model already, as it may be in a journal; then its length is not checked.

    Raises:
        SessionError: see the module's docstring.
    """
    if not record.admits(item.origin):
        raise SessionError(
            f"Peer {item.origin!r:.60} is no member, so its item is not accepted. If it shall join, list it under "
            "`members` at every peer.",
            code="no-member",
            peer=item.origin,
        )
    if item.kind is not Kind.MEMBER and item.origin not in record.addresses():
        raise SessionError(f"An item of {item.origin!r:.60} came before it said that it is a member.")
    _FITS[item.kind](item, record)
    if item.kind is Kind.CORRECTION and item.vector is not None and not is_applied:
        largest = largest_norm(item.origin, int(item.values["deleted"]), record)
        if item.norm > largest * _ROUNDING:
            raise SessionError(
                f"The correction {item.id!r:.200} would move every model by {item.norm:.4g}, more than {largest:.4g}.",
                code="correction-too-long",
                norm=item.norm,
                largest=largest,
            )


def largest_norm(origin: str, num_deleted: int, record: Record) -> float:
    """Return the largest ‖w x^Δ‖ of a correction by which `origin` takes out this many of its examples."""
    limit, constants = record.rules.correction_norm, record.rules.constants
    spent = sum(one.norm for one in record.of(Kind.CORRECTION) if one.origin == origin)
    largest = min(limit, max(0.0, _CORRECTIONS_TOGETHER * limit - spent))
    declared = record.declared_counts()
    if constants is None or not sum(declared.values()):
        return largest
    bound = correction_bound(
        constants,
        num_examples=sum(declared.values()),
        num_deleted=min(num_deleted, declared.get(origin, 0)),
    )
    return min(largest, bound)


def _require(is_right: bool, code: str, sentence: str) -> None:
    if not is_right:
        raise SessionError(sentence, code=code)


def _check_member(item: GossipMessage, record: Record) -> None:
    origin, neighbours = item.origin, list(item.values["neighbours"])
    initial, present = record.initial, {*record.initial.nodes, *record.addresses()}
    if origin in initial.nodes:
        configured = set(initial.neighbours(origin))
        is_right = set(neighbours) <= configured and bool(neighbours) == bool(configured)
    else:
        known = present | record.rules.members
        is_right = bool(present & set(neighbours) - {origin}) and set(neighbours) <= known - {origin}
        is_right &= len(neighbours) <= record.rules.max_neighbours
    _require(
        is_right and len(set(neighbours)) == len(neighbours),
        "wrong-neighbours",
        f"Peer {origin!r:.60} names the neighbours {neighbours!r:.200}, which do not fit this federation: at least "
        "one and at most `limits.neighbours`, all of them members, and for a configured peer those of the "
        "configuration.",
    )
    graph = replace(record, items={**record.items, item.id: item}).graph()
    if len(graph.nodes) > 1 and graph != record.graph():
        check_mixing(metropolis_weights(graph))


def _check_request(item: GossipMessage, record: Record) -> None:
    rules, origin = record.rules, item.origin
    _require(
        item.subject.startswith(f"{origin}-"),
        "wrong-request-id",
        f"The request {item.subject!r:.200} is not named after its origin {origin!r:.60}.",
    )
    _require(
        sum(one.origin == origin for one in record.of(Kind.REQUEST)) < rules.max_requests,
        "too-many-requests",
        f"Peer {origin!r:.60} has issued {rules.max_requests:,} requests, which is the limit. Raise "
        "`limits.requests` at every peer.",
    )
    is_class, allowed = granularity_of(item) is Granularity.CLASS, rules.class_requests_from
    _require(
        not is_class or not allowed or origin in allowed,
        "class-not-allowed",
        f"Peer {origin!r:.60} may not request that a class is forgotten: see `limits.class-requests-from`.",
    )


def _check_statistics(item: GossipMessage, record: Record) -> None:
    request = _request(item, record)
    is_leaver = granularity_of(request) is Granularity.CLIENT and request.origin == item.origin
    has_place = item.vector is None or request.values["curvature"]
    _require(
        needs_statistics(request) and not is_leaver and has_place,
        "not-requested",
        f"No request needs {item.id!r:.200}.",
    )
    left = int(item.values["num_examples"]) + int(item.values["deleted"])
    _require_examples(item, left, record)


def _check_correction(item: GossipMessage, record: Record) -> None:
    request, deleted = _request(item, record), int(item.values["deleted"])
    may_leave = granularity_of(request) is Granularity.CLIENT or not item.values.get("leaves", False)
    _require(
        owes_correction(item.origin, request) and may_leave,
        "not-owed",
        f"The correction {item.id!r:.200} is not its origin's to make.",
    )
    _require(
        item.vector is None or deleted > 0,
        "takes-nothing-out",
        f"The correction {item.id!r:.200} takes nothing out and has a vector.",
    )
    before = [one for one in record.of(Kind.CORRECTION) if one.origin == item.origin]
    _require_examples(item, deleted + sum(int(one.values["deleted"]) for one in before), record)


def _require_examples(item: GossipMessage, count: int, record: Record) -> None:
    _require(
        count <= record.declared_counts(capped=False).get(item.origin, 0),
        "too-many-examples",
        f"The item {item.id!r:.200} speaks of more examples than its origin has.",
    )


def _request(item: GossipMessage, record: Record) -> GossipMessage:
    request = next(iter(record.of(Kind.REQUEST, item.subject)), None)
    if request is None:
        raise SessionError(
            f"The item {item.id!r:.200} is about a request that is not known.", code="unknown-request"
        )
    return request


_FITS: Mapping[Kind, Callable[[GossipMessage, Record], None]] = {
    Kind.MEMBER: _check_member,
    Kind.REQUEST: _check_request,
    Kind.STATISTICS: _check_statistics,
    Kind.CORRECTION: _check_correction,
}
