"""What is still to be sent to one neighbour; it is sent until the neighbour confirms it."""

from client.peer.gossip import GossipMessage, Greeting, ModelOffer, Payload
from client.peer.known_items import KnownItems
from client.peer.peer_models import OFFERS_KEPT, Models


class Outbox:
    """The items and models that a neighbour lacks, sent by the peer `sender`.

    pending: ids of the items that it lacks, in order; None before it has said what it has.
    offers: models, the earlier round first.
    """

    def __init__(self, sender: str, items: KnownItems, models: Models) -> None:
        self.pending: dict[str, None] | None = None
        self.offers: list[ModelOffer] = []
        self._sender, self._items, self._models = sender, items, models
        self._has_met = False

    def next_payload(self) -> Payload | None:
        """Return what is to be sent next; items come before models. None: the neighbour has everything."""
        if self.pending is None:
            return Greeting(self._sender, is_new=not self._has_met)
        while self.pending:
            item = self._items.by_id[next(iter(self.pending))]
            if self._items.is_whole(item):
                return item
            del self.pending[item.id]
        return self.offers[0] if self.offers else None

    def confirm(self, payload: Payload, known: frozenset[str] = frozenset()) -> None:
        """Note that the neighbour has confirmed the payload; for a greeting, with the ids that it knows."""
        match payload:
            case Greeting():
                self.pending = dict.fromkeys(
                    item_id
                    for item_id, item in self._items.by_id.items()
                    if item_id not in known and self._items.is_whole(item)
                )
                if not self._has_met:
                    self.queue_recent()
                self._has_met = True
            case GossipMessage():
                self.note_known(payload.id)
            case ModelOffer():
                self.offers = [one for one in self.offers if one is not payload]

    def lose_connection(self) -> None:
        """Begin with a greeting again: the neighbour could not be reached and may have restarted."""
        self.pending = None

    def add(self, item_id: str) -> None:
        """Let an item be sent, if the neighbour has said what it has."""
        if self.pending is not None:
            self.pending[item_id] = None

    def note_known(self, item_id: str) -> None:
        """Note that the neighbour has this item."""
        if self.pending is not None:
            self.pending.pop(item_id, None)

    def queue(self, offer: ModelOffer) -> None:
        """Let this model be sent, unless it waits already; the latest rounds only, the earlier one first.

        A neighbour that is a round behind needs the earlier one to keep step, and begins as soon as it has any.
        """
        if not any((one.round, one.applied) == (offer.round, offer.applied) for one in self.offers):
            self.offers = sorted([*self.offers, offer], key=lambda one: one.round)[-OFFERS_KEPT:]

    def queue_recent(self) -> None:
        """Let the newest models be sent, as a neighbour's new process needs them."""
        for offer in self._models.recent():
            self.queue(offer)
