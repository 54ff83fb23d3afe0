"""Hundreds of peers on a few Ray actors: the same peers as between machines, with the driver as the network.

Each actor holds a part of the peers. In each turn it returns what its peers have to send, the driver sorts that by
receiver, and confirmations go back. Peers take turns in the order of names within an actor; with lockstep rounds the
models are the same whatever the number of actors.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import ray

from client.peer.gossip import Payload
from client.peer.in_process import hand_over, train_round
from client.peer.journal import PeerModel
from client.peer.node import Peer
from client.peer.work import carry_out, next_work
from unlearning.errors import ConfigurationError, SessionError
from unlearning.requests import Target

MakePeer: TypeAlias = Callable[[str], Peer]
Posted: TypeAlias = tuple[str, str, Payload]
"""Sender, receiver, payload."""

_MOST_TURNS = 100_000


class Shard:
    """The peers of one actor."""

    def __init__(self, names: Sequence[str], make_peer: MakePeer) -> None:
        self._peers = {name: make_peer(name) for name in names}
        self._posted: dict[tuple[str, str], Payload] = {}

    def outgoing(self) -> list[Posted]:
        """Do what requests need, and return each link's next payload."""
        posted: list[Posted] = []
        for name, peer in self._peers.items():
            while (work := next_work(peer)) is not None:
                peer.receive(carry_out(work, peer.learner))
            for to in peer.contacts:
                payload = peer.next_payload(to)
                if payload is not None:
                    posted.append((name, to, payload))
                    self._posted[name, to] = payload
        return posted

    def take(self, posted: Sequence[Posted]) -> list[frozenset[str]]:
        """Let receivers here take payloads; the answers in the same order."""
        return [hand_over(self._peers[to], sender, payload) for sender, to, payload in posted]

    def confirm(self, answered: Sequence[tuple[str, str, frozenset[str]]]) -> None:
        """Note that what was to be sent for each sender and receiver has arrived."""
        for sender, to, known in answered:
            self._peers[sender].confirm_delivery(to, self._posted.pop((sender, to)), known)

    def train(self) -> bool:
        """Do one round at every peer here that can; return whether there was one."""
        return train_round(self._peers.values())

    def file(self, name: str, target: Target, key: str) -> str:
        """Issue a request at a peer here; return its id."""
        return self._peers[name].file(target, key)

    def models(self) -> dict[str, PeerModel]:
        """Return every peer's model."""
        return {name: peer.model for name, peer in self._peers.items()}


class RaySimulation:
    """Peers spread over `num_actors` Ray actors; Ray must be running (`ray.init`).

    make_peer: makes the peer of a name, in the actor's process, so it must be possible to pickle it.

    Raises:
        ConfigurationError: there are fewer peers than actors, or no actor.
    """

    def __init__(self, names: Sequence[str], make_peer: MakePeer, *, num_actors: int) -> None:
        if not 1 <= num_actors <= len(names):
            raise ConfigurationError(
                [f"num_actors must be 1 to the number of peers, {len(names)}; got {num_actors}."]
            )
        parts = [sorted(names)[at::num_actors] for at in range(num_actors)]
        actor: Any = ray.remote(Shard)
        self._actors: list[Any] = [actor.options(num_cpus=0).remote(part, make_peer) for part in parts]
        self._home = {name: at for at, part in enumerate(parts) for name in part}

    def __enter__(self) -> "RaySimulation":
        return self

    def __exit__(self, *_error: object) -> None:
        for one in self._actors:
            ray.kill(one)

    def file(self, name: str, target: Target, key: str) -> str:
        """Issue a deletion request at a peer; return its id.

        Raises:
            RequestError: the peer refuses it.
        """
        try:
            return str(ray.get(self._actors[self._home[name]].file.remote(name, target, key)))
        except ray.exceptions.RayTaskError as exc:
            raise exc.cause from exc

    def settle(self) -> None:
        """Deliver, and do what requests need, until nothing is left to do.

        Raises:
            SessionError: it does not come to an end.
        """
        for _ in range(_MOST_TURNS):
            posted = [one for part in self._each("outgoing") for one in part]
            if not posted:
                return
            by_receiver, answered = defaultdict(list), defaultdict(list)
            for one in posted:
                by_receiver[self._home[one[1]]].append(one)
            calls = {at: self._actors[at].take.remote(part) for at, part in sorted(by_receiver.items())}
            for at, call in calls.items():
                for (sender, to, _), known in zip(by_receiver[at], ray.get(call), strict=True):
                    answered[self._home[sender]].append((sender, to, known))
            ray.get([self._actors[at].confirm.remote(part) for at, part in answered.items()])
        raise SessionError(f"The peers do not come to rest after {_MOST_TURNS:,} turns.")

    def train(self) -> bool:
        """Do one round at every peer that can; return whether there was one."""
        self.settle()
        has_trained = any(self._each("train"))
        self.settle()
        return has_trained

    def models(self) -> Mapping[str, PeerModel]:
        """Return every peer's model."""
        return {name: model for part in self._each("models") for name, model in part.items()}

    def _each(self, method: str) -> list[Any]:
        found: list[Any] = ray.get([getattr(one, method).remote() for one in self._actors])
        return found
