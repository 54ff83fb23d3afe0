"""Peers in one process: a network that can lose, repeat and cut, for tests and for simulation.

Every peer takes its turn in the order of names, so a run repeats itself bit by bit.
"""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from client.peer.gossip import GossipMessage, Greeting, ModelOffer, Payload
from client.peer.node import Peer
from client.peer.work import carry_out, next_work
from unlearning.errors import FlowerUnlearningError, SessionError

_MOST_TURNS = 100_000


def hand_over(peer: Peer, sender: str, payload: Payload) -> frozenset[str]:
    """Let `peer` take a payload, as every transport does; return the answer to a greeting, else nothing.

    Raises:
        SessionError, UpdateRefused: the sender is no member, or the payload cannot be what it says.
    """
    if not peer.admits(sender):
        raise SessionError(f"Peer {sender!r:.60} is no member of this federation.")
    match payload:
        case Greeting():
            return peer.greet(replace(payload, sender=sender))
        case GossipMessage():
            peer.receive(payload, sender)
        case ModelOffer():
            peer.accept(replace(payload, sender=sender))
    return frozenset()


def train_round(peers: Iterable[Peer], *, patient: bool = True) -> bool:
    """Do one round at every peer that can; return whether there was one. Impatient: without silent peers."""
    begun = [(peer, step) for peer in peers if (step := peer.next_round(patient=patient)) is not None]
    for peer, step in begun:
        peer.finish_round(step, peer.learner.move(step))
    return bool(begun)


class InProcessNetwork:
    """Links between peers.

    loss: how probable it is that a payload, or its confirmation, is lost. down: peers that cannot be reached
    and do nothing. refusals: what was refused: sender, receiver, reason.
    """

    def __init__(
        self, peers: Iterable[Peer], *, loss: float = 0.0, generator: np.random.Generator | None = None
    ) -> None:
        self.peers = {peer.name: peer for peer in peers}
        self.down: set[str] = set()
        self.refusals: list[tuple[str, str, str]] = []
        self.num_items = 0
        self._loss = loss
        self._generator = generator or np.random.default_rng(0)

    def settle(self) -> None:
        """Deliver, and do what requests need, until nothing is left to do among the peers that are up.

        Raises:
            SessionError: it does not come to an end.
        """
        for _ in range(_MOST_TURNS):
            is_busy = False
            for peer in self._peers_up():
                is_busy |= self._work(peer) | self._deliver(peer)
            if not is_busy:
                return
        raise SessionError(f"The peers do not come to rest after {_MOST_TURNS:,} turns.")

    def train(self, *, patient: bool = True) -> bool:
        """Do one round at every peer that can; return whether there was one. Impatient: without silent peers."""
        self.settle()
        has_trained = train_round(self._peers_up(), patient=patient)
        self.settle()
        return has_trained

    def _peers_up(self) -> list[Peer]:
        return [self.peers[name] for name in sorted(self.peers.keys() - self.down)]

    def _work(self, peer: Peer) -> bool:
        work = next_work(peer)
        if work is not None:
            peer.receive(carry_out(work, peer.learner))
        return work is not None

    def _deliver(self, peer: Peer) -> bool:
        """Try the next payload of each of the peer's links; return whether there was one that may yet arrive."""
        is_busy = False
        for to in peer.contacts:
            if to in self.down or to not in self.peers:
                peer.lose_connection(to)
                continue
            payload = peer.next_payload(to)
            if payload is None:
                continue
            is_busy = True
            if self._is_lost():
                peer.lose_connection(to)
                continue
            try:
                known = hand_over(self.peers[to], peer.name, payload)
            except FlowerUnlearningError as exc:
                self.refusals.append((peer.name, to, str(exc)))
                known = frozenset()  # as between machines: it is not sent again
            self.num_items += isinstance(payload, GossipMessage)
            if self._is_lost():  # it came, and the confirmation did not
                peer.lose_connection(to)
            else:
                peer.confirm_delivery(to, payload, known)
        return is_busy

    def _is_lost(self) -> bool:
        return self._loss > 0 and self._generator.random() < self._loss
