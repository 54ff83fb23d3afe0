"""The neighbours' models, how far each one's round is believed, and who is not waited for.

A neighbour may claim any round. The own one moves on by one, and further only to a round that two neighbours have
reached, so that a peer that was away catches up and one liar moves nobody. Who is silent for a whole wait is left out,
and waited for again when it sends a model of a later round than before; each time it is silent again the wait is half
as long, down to a sixty-fourth.
"""

from collections.abc import Iterable, Set
from dataclasses import dataclass, field

from client.peer.gossip import ModelOffer

OFFERS_KEPT = 2
"""In lockstep a neighbour is one round ahead at most."""
_MOST_HALVINGS = 6


@dataclass(slots=True)
class Offers:
    """The offers of models, by neighbour."""

    _by_sender: dict[str, list[ModelOffer]] = field(default_factory=dict)
    _silent: set[str] = field(default_factory=set)
    _absences: dict[str, int] = field(default_factory=dict)

    def keep(self, offer: ModelOffer) -> None:
        """Keep a model, of each sender those of the latest rounds."""
        before = self._by_sender.get(offer.sender, [])
        offers = {one.round: one for one in (*before, offer)}
        self._by_sender[offer.sender] = [offers[number] for number in sorted(offers)][-OFFERS_KEPT:]
        if all(offer.round > one.round for one in before):
            self._silent.discard(offer.sender)  # though it be behind: a peer that is waited for catches up

    def keep_only(self, senders: Iterable[str]) -> None:
        """Drop the models of all others."""
        for gone in self._by_sender.keys() - set(senders):
            del self._by_sender[gone]

    def usable_offers(
        self, neighbours: Iterable[str], own_round: int, known: Set[str]
    ) -> dict[str, ModelOffer]:
        """Return of each neighbour the earliest model that is not older than the own, if its corrections are known."""
        usable: dict[str, ModelOffer] = {}
        for sender in neighbours:
            fresh = [
                offer
                for offer in self._by_sender.get(sender, ())
                if offer.round >= own_round and offer.applied <= known
            ]
            if fresh:
                usable[sender] = min(fresh, key=lambda offer: offer.round)
        return usable

    def leave_out(self, names: Iterable[str]) -> None:
        """Wait no longer for these peers, which were silent for a whole wait."""
        for name in set(names) - self._silent:
            self._silent.add(name)
            self._absences[name] = self._absences.get(name, 0) + 1

    def is_silent(self, name: str) -> bool:
        """Return whether this peer is not waited for."""
        return name in self._silent

    def patience(self, names: Iterable[str]) -> float:
        """Return the share of the configured wait that these peers together are still waited for."""
        return max((0.5 ** min(self._absences.get(name, 0), _MOST_HALVINGS) for name in names), default=1.0)


def believed_round(usable: Iterable[ModelOffer], own_round: int) -> int:
    """Return the latest round that the own model or two neighbours' models have reached."""
    rounds = sorted((offer.round for offer in usable), reverse=True)
    return max([own_round, *rounds[1:2]])
