"""Peers on Ray actors."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import ray

from client.peer.in_process import InProcessNetwork
from client.peer.journal import MemoryJournal
from client.peer.node import Peer
from client.peer.rules import PeerRules
from client.peer.simulation import RaySimulation
from tests.peers import counting_peer, counting_peers
from unlearning.decentralised import Graph, erdos_renyi
from unlearning.errors import AlreadyForgotten
from unlearning.requests import Granularity, Target

pytestmark = pytest.mark.slow  # starts Ray

NAMES = [f"{index}" for index in range(200, 240)]
RULES = PeerRules(rounds=2)


def made(name: str, graph: Graph) -> Peer:
    return counting_peer(name, graph, MemoryJournal(), RULES)


@pytest.fixture
def started_ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A small Ray of its own."""
    monkeypatch.setenv("PYTHONPATH", str(Path.cwd()))
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=80 * 2**20)
    yield
    ray.shutdown()


@pytest.mark.filterwarnings("ignore::FutureWarning")  # Ray announces changes of its own at its start
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # Ray leaves its log files to the collector
def test_forty_peers_on_two_actors_forget_as_in_one_process(started_ray: None) -> None:
    """Rounds, a deletion of samples, its fine-tuning round and a client's departure: the same models."""
    graph = erdos_renyi(NAMES, 0.15, np.random.default_rng(0))
    network = InProcessNetwork(counting_peers(graph, RULES))
    samples = Target(Granularity.SAMPLE, "210", frozenset({"1", "2"}))
    leaver = Target(Granularity.CLIENT, "230")
    while network.train():
        pass
    network.peers["210"].file(samples, "a")
    while network.train():
        pass
    network.peers["230"].file(leaver, "b")
    while network.train():
        pass
    with RaySimulation(NAMES, partial(made, graph=graph), num_actors=2) as simulation:
        for name, target, key in (("", None, ""), ("210", samples, "a"), ("230", leaver, "b")):
            if target is not None:
                simulation.file(name, target, key)
            while simulation.train():
                pass
        with pytest.raises(AlreadyForgotten):
            simulation.file("230", samples, "c")
        models = simulation.models()
    for name, peer in network.peers.items():
        assert models[name].round == peer.model.round
        np.testing.assert_allclose(models[name].vector, peer.model.vector, atol=1e-12)
