"""What is still to be sent to one neighbour."""

from dataclasses import dataclass, field

from client.peer.gossip import ModelOffer
from client.peer.offers import OFFERS_KEPT


@dataclass(slots=True)
class Outbox:
    """The items and models that a neighbour lacks.

    pending: ids of the items that it lacks, in order; None before it has said what it has. has_met: whether it ever
    has said so to this process.
    """

    pending: dict[str, None] | None = None
    has_met: bool = False
    offers: list[ModelOffer] = field(default_factory=list)

    def add(self, item_id: str) -> None:
        """Let an item be sent, if the neighbour has said what it has."""
        if self.pending is not None:
            self.pending[item_id] = None

    def confirm(self, item_id: str) -> None:
        """Note that the neighbour has this item."""
        if self.pending is not None:
            self.pending.pop(item_id, None)

    def queue(self, offer: ModelOffer) -> None:
        """Let this model be sent, unless it waits already; the latest rounds only, the earlier one first.

        A neighbour that is a round behind needs the earlier one to keep step, and begins as soon as it has any.
        """
        if not any((one.round, one.applied) == (offer.round, offer.applied) for one in self.offers):
            self.offers = sorted([*self.offers, offer], key=lambda one: one.round)[-OFFERS_KEPT:]

    def mark_sent(self, offer: ModelOffer) -> None:
        """Note that the neighbour has this model."""
        self.offers = [one for one in self.offers if one is not offer]
