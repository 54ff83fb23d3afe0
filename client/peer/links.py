"""What is still to be sent to one neighbour."""

from collections import deque
from dataclasses import dataclass, field

from client.peer.items import Offer
from client.peer.offers import OFFERS_KEPT


@dataclass(slots=True)
class Link:
    """The items and models that a neighbour lacks.

    pending: ids of the items that it lacks, in order; None before it has said what it has. has_met: whether it ever
    has said so to this process.
    """

    pending: dict[str, None] | None = None
    has_met: bool = False
    offers: deque[Offer] = field(default_factory=lambda: deque(maxlen=OFFERS_KEPT))

    def queue(self, offer: Offer) -> None:
        """Let this model be sent, unless it waits already."""
        if not any((one.round, one.applied) == (offer.round, offer.applied) for one in self.offers):
            self.offers.append(offer)
