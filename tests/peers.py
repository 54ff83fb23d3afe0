"""Peers for tests: with data of their own, or with a learner that only counts."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.decentralised.in_process import InProcessNetwork
from client.peer.config import PeerConfig, validate_config
from client.peer.gossip import GossipMessage, Kind, Payload
from client.peer.grpc_transport import Handling, PeerServer, Reception
from client.peer.journal import Journal, Refusals
from client.peer.learner import Round, SiteLearner, Work
from client.peer.peer import Peer, Place
from client.peer.peer_pb2_grpc import PeerServiceStub
from client.peer.record import PeerRules
from client.peer.signatures import Seals
from strategies.sessions.endpoint import open_channel
from strategies.tls_files import TlsFiles
from tests.certificates import Authority
from tests.deletion_service import free_port
from tests.unit.unlearning.certified.problems import LOGISTIC, blobs
from unlearning.decentralised.corrections import Correction, CorrectionSettings
from unlearning.decentralised.graphs import Graph, ring
from unlearning.parameters import Vector
from unlearning.requests import Forget, Granularity, Target
from unlearning.solvers.solution import Outcome
from unlearning.training import TrainingSettings, initial_parameters

FOUR = ring("0123")


@dataclass
class CountingLearner:
    """Ten examples "0" to "9" of a class each; its corrections and moves are known beforehand."""

    peer: str
    step: float = 1.0
    orders: list[Work] = field(default_factory=list)

    def _ids(self, forget: Forget) -> set[str]:
        if forget.everything:
            return {str(index) for index in range(10)}
        return set(forget.sample_ids) | {str(label) for label in forget.classes}

    def count(self, forget: Forget, *, outside: Forget) -> int:
        return len(self._ids(forget) - self._ids(outside))

    def check(self, forget: Forget) -> None:
        pass

    def move(self, step: Round) -> Vector:
        return np.full_like(step.parameters, self.step)

    def curvature(self, parameters: Vector, *, without: Forget) -> Vector:
        return np.full(parameters.size, 1.0 + int(self.peer))

    def correction(self, work: Work) -> tuple[Correction, dict[str, Any]]:
        self.orders.append(work)
        vector = np.full(work.parameters.size, 8.0)
        return Correction(vector=vector, weight=0.25, outcome=Outcome.CONVERGED, relative_residual=0.0), {}


def process_config(directory: Path, name: str, addresses: Mapping[str, str]) -> PeerConfig:
    """The configuration of a process of this peer, in a ring."""
    return validate_config(
        {
            "peer": name,
            "peers": addresses,
            "state-dir": str(directory / name),
            "graph": {"kind": "ring"},
            "partition-id": int(name),
            "task": {"dataset": "digits"},
        }
    )


def counting_peers(graph: Graph, rules: PeerRules | None = None) -> list[Peer]:
    """A peer for each node, with a model of three numbers that begins at zero."""
    return [counting_peer(name, graph, Journal(), rules) for name in graph.nodes]


def counting_peer(
    name: str, graph: Graph, journal: Journal, rules: PeerRules | None = None, seals: Seals | None = None
) -> Peer:
    place = Place("", seals)
    return Peer(name, graph, CountingLearner(name), journal, rules or PeerRules(), np.zeros(3), place)


def member_item(origin: str, *neighbours: str, num_examples: int = 10) -> GossipMessage:
    """What a peer says of itself."""
    values = {"address": "", "neighbours": list(neighbours), "num_examples": num_examples}
    return GossipMessage(kind=Kind.MEMBER, origin=origin, values=values)


def request_item(origin: str, key: str = "key", **values: object) -> GossipMessage:
    """A request for some of the origin's samples, or with other `values`."""
    wanted = {"granularity": "sample", "class_label": None, "curvature": False, **values}
    return GossipMessage(kind=Kind.REQUEST, origin=origin, subject=f"{origin}-{key}", values=wanted)


def correction_item(origin: str, norm: float = 1.0, *, key: str = "key", **values: object) -> GossipMessage:
    """A correction to `request_item`, which moves a model's first number by `norm`: half of a vector of twice that."""
    return GossipMessage(
        kind=Kind.CORRECTION,
        origin=origin,
        subject=f"{origin}-{key}",
        values={"weight": 0.5, "deleted": 1, **values},
        vector=np.array([2.0 * norm, 0.0, 0.0]),
    )


def samples(peer: str, *ids: str) -> Target:
    """The target "these samples of a peer"."""
    return Target(Granularity.SAMPLE, peer, frozenset(ids))


def trained_network(graph: Graph, rules: PeerRules | None = None) -> InProcessNetwork:
    """Counting peers that have trained for one round, so that there is something to take out."""
    network = InProcessNetwork(counting_peers(graph, rules))
    network.train()
    return network


def forget(network: InProcessNetwork, at: str, target: Target, key: str = "key") -> None:
    """File a request at a peer, and do what it needs."""
    network.peers[at].file(target, key)
    network.settle()


def do_round(peer: Peer, move: float = 0.0, *, patient: bool = True) -> None:
    """Do a round of one peer, whose training moves each of the three numbers by `move`."""
    begun = peer.next_round(patient=patient)
    assert begun is not None
    peer.finish_round(begun, np.full(3, move))


def tls_of(authority: Authority, name: str) -> TlsFiles:
    """A certificate of this name, and the authority that issued it."""
    files = authority.certify(name)
    assert files.certificate is not None
    assert files.key is not None
    return TlsFiles(authority.file, files.certificate, files.key)


@contextmanager
def silent_calls(
    address: str, tls: TlsFiles | None, count: int, frames: Sequence[Any] = ()
) -> Iterator[list[Any]]:
    """So many calls of a peer's server that say these frames, and then nothing until the block ends."""
    is_over = threading.Event()

    def silence() -> Iterator[Any]:
        yield from frames
        is_over.wait()

    with open_channel(address, tls) as channel:
        stub: Any = PeerServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
        try:
            yield [stub.Deliver.future(silence()) for _ in range(count)]
        finally:
            is_over.set()


class Receiver:
    """Keeps what it is handed, and knows two ids."""

    def __init__(self) -> None:
        self.got: list[tuple[str, Payload]] = []

    def __call__(self, sender: str, payload: Payload) -> frozenset[str]:
        self.got.append((sender, payload))
        return frozenset({"x", "y"})

    @property
    def senders(self) -> list[str]:
        """Whom it has heard from."""
        return [sender for sender, _ in self.got]


def reception(
    state_dir: Path, handle: Handling, *, max_numbers: int = 300_000, timeout_s: float = 10.0
) -> Reception:
    """What a server in a test does with calls: everybody's are taken but those of the stranger x."""
    return Reception(
        handle=handle,
        admits=lambda name: name != "x",
        refusals=Refusals(state_dir),
        max_numbers=max_numbers,
        timeout_s=timeout_s,
    )


@contextmanager
def listening(
    handle: Handling, tls: TlsFiles | None, state_dir: Path, timeout_s: float = 10.0
) -> Iterator[str]:
    """The address of a peer's server that takes payloads until the block ends."""
    address = f"127.0.0.1:{free_port()}"
    server = PeerServer(address, tls, reception(state_dir, handle, timeout_s=timeout_s))
    try:
        yield address
    finally:
        server.stop()


L2 = 0.05
_SIZES = (40, 30, 60, 50)


def logistic_peers(
    graph: Graph, rules: PeerRules, corrections: CorrectionSettings, *, learning_rate: float = 0.3
) -> list[Peer]:
    """Four peers of unequal size with a convex problem of 15 weights, which take one full gradient step a round."""
    training = TrainingSettings(batch_size=10_000, learning_rate=learning_rate, weight_decay=L2)
    return [
        Peer(
            name,
            graph,
            SiteLearner(
                peer=name,
                task=LOGISTIC,
                examples=blobs(size, seed=number),
                training=training,
                corrections=corrections,
                num_steps=1,
            ),
            Journal(),
            rules,
            initial_parameters(LOGISTIC, seed=0),
        )
        for number, (name, size) in enumerate(zip(graph.nodes, _SIZES, strict=True))
    ]
