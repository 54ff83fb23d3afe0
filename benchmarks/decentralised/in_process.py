"""Peers in one process: a network that can lose, repeat and cut, for tests and for simulation.

Every peer takes its turn in the order of names, so a run repeats itself bit by bit.
"""

from collections.abc import Iterable

import numpy as np

from client.peer.gossip import GossipMessage
from client.peer.owed_items import carry_out, next_work
from client.peer.peer import Peer
from unlearning.errors import FlowerUnlearningError, SessionError

_MOST_TURNS = 100_000


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
        peers = self._peers_up()
        begun = [(peer, step) for peer in peers if (step := peer.next_round(patient=patient)) is not None]
        for peer, step in begun:
            peer.finish_round(step, peer.learner.move(step))
        self.settle()
        return bool(begun)

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
            outbox = peer.outbox(to)
            if to in self.down or to not in self.peers:
                outbox.lose_connection()
                continue
            payload = outbox.next_payload()
            if payload is None:
                continue
            is_busy = True
            if self._is_lost():
                outbox.lose_connection()
                continue
            try:
                known = self.peers[to].take_payload(peer.name, payload)
            except FlowerUnlearningError as exc:
                self.refusals.append((peer.name, to, str(exc)))
                known = frozenset()  # as between machines: it is not sent again
            self.num_items += isinstance(payload, GossipMessage)
            if self._is_lost():  # it came, and the confirmation did not
                outbox.lose_connection()
            else:
                outbox.confirm(payload, known)
        return is_busy

    def _is_lost(self) -> bool:
        return self._loss > 0 and self._generator.random() < self._loss
