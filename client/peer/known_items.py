"""The items that a peer has: checked before they are kept, sealed, and durable."""

from collections.abc import Set
from dataclasses import replace
from logging import getLogger

from client.peer.admission import check_fits
from client.peer.checks import validate_item
from client.peer.gossip import GossipMessage, Kind
from client.peer.journal import Journal
from client.peer.record import Record, granularity_of
from client.peer.rules import PeerRules
from client.peer.seals import Seals, content_of
from unlearning.decentralised import Graph
from unlearning.errors import SessionError
from unlearning.requests import Granularity

_log = getLogger(__name__)


class KnownItems:
    """The items of the peer `name`.

    by_id: in the order of arrival. record: what they say. dimension: of the model.
    """

    def __init__(
        self, name: str, graph: Graph, journal: Journal, rules: PeerRules, seals: Seals, dimension: int
    ) -> None:
        self.by_id: dict[str, GossipMessage] = {}
        self.record = Record(graph, self.by_id, rules.count_factor)
        self._name, self._journal = name, journal
        self._limits, self._seals, self._dimension = rules.limits, seals, dimension

    def restore(self, applied: Set[str]) -> None:
        """Take what the journal has. What does not fit is moved aside: nothing that came may keep a peer down."""
        for item in self._journal.items():
            try:
                self._check(item, applied, is_kept=True)
            except Exception as exc:  # noqa: BLE001 - whatever it is, the peer must start
                where = self._journal.quarantine(item)
                stays = " Its correction stays in the model." if item.id in applied else ""
                _log.error("%.200s was moved to %s, for it does not fit: %s%s", item.id, where, exc, stays)
                continue
            if item.origin == self._name and item.seal is None and self.lacks_seal(item):
                item = self._seals.seal(item)
                self._journal.put(item)
            self.by_id[item.id] = item

    def take(self, item: GossipMessage, *, is_own: bool, applied: Set[str]) -> GossipMessage:
        """Check an item and keep it; return what is kept under its id now.

        is_own: this peer says it itself. applied: the corrections in the model.

        Raises:
            SessionError, UpdateRefused: it cannot be what it says, does not fit, or is not its origin's.
        """
        known = self.by_id.get(item.id)
        if known is None:
            if is_own and item.origin == self._name:
                item = self._seals.seal(item)
            self._check(item, applied)
            if item.kind is Kind.STATISTICS and self._is_over(item.subject):
                item = replace(item, vector=None)  # too late to be of use
        else:
            item = known if is_own else self._prove(known, item)
        if item is not known:
            self._journal.put(item)
            self.by_id[item.id] = item
        return item

    def _check(self, item: GossipMessage, applied: Set[str], *, is_kept: bool = False) -> None:
        """Refuse what cannot be, is not its origin's, or does not fit. is_kept: it was in the journal."""
        limits = self._limits
        validate_item(item, self._dimension, shares_matrices=limits.shares_matrices)
        if item.seal is not None or not is_kept:  # journals of version 0.1 have no seals
            self._seals.check(item)
        check_fits(item, self.record, limits, is_applied=is_kept and item.id in applied)

    def _prove(self, known: GossipMessage, item: GossipMessage) -> GossipMessage:
        """Return what is known already, or the same with the seal that it lacks.

        Raises:
            SessionError: the origin signed something else under this id.
        """
        old, new, seals = known.seal, item.seal, self._seals
        if not seals.is_required or new is None:
            return known
        is_same = dict(known.values) == dict(item.values) and new.content in (content_of(known), "")
        if is_same and (old is not None or not self.lacks_seal(known)):
            return known
        validate_item(item, self._dimension)
        seals.check(item)
        if not is_same:
            raise SessionError(f"Peer {item.origin!r:.60} has said two different things as {item.id!r:.200}.")
        return item

    def lacks_seal(self, item: GossipMessage) -> bool:
        """Return whether the item came before items were signed, and others may still need it."""
        is_past = item.kind is Kind.STATISTICS and self._is_over(item.subject)
        return item.seal is None and self._seals.is_required and not is_past

    def is_whole(self, item: GossipMessage) -> bool:
        """Return whether others can take the item: with its seal, and with the vector that the seal speaks of."""
        if not self._seals.is_required:
            return True
        return item.seal is not None and bool(item.seal.content) == (item.vector is not None)

    def _is_over(self, subject: str) -> bool:
        """Return whether the request has its correction, so that nobody needs curvatures any more."""
        return any(
            granularity_of(request) is not Granularity.CLASS and self.record.is_corrected(request)
            for request in self.record.of(Kind.REQUEST, subject)
        )

    def slim(self, subject: str) -> None:
        """Drop the curvatures of a request that has all it needs: a matrix from every peer is a lot to keep."""
        request = next(iter(self.record.of(Kind.REQUEST, subject)), None)
        if request is None or request.values["granularity"] == Granularity.CLASS:
            return
        for item in list(self.record.of(Kind.STATISTICS, subject)):
            if item.vector is not None:
                self.by_id[item.id] = replace(item, vector=None)
                self._journal.put(self.by_id[item.id])
