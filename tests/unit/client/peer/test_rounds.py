"""Where a round's training begins, and what becomes of it over many rounds."""

from dataclasses import dataclass

import numpy as np
import pytest

from benchmarks.decentralised.in_process import InProcessNetwork
from client.peer.journal import Journal
from client.peer.learner import Round
from client.peer.peer import Peer
from client.peer.record import PeerRules
from tests.peers import FOUR, CountingLearner, forget, samples
from unlearning.parameters import Vector


@dataclass
class DownhillLearner(CountingLearner):
    """Local training that always ends at the peer's own minimum: +1 at even peers, -1 at odd ones."""

    def move(self, step: Round) -> Vector:
        minimum = 1.0 - 2.0 * (int(self.peer) % 2)
        return np.full_like(step.parameters, minimum) - step.parameters


def downhill_peers(*, mixes_first: bool, rounds: int) -> InProcessNetwork:
    """Four peers in a ring that have trained for so many rounds."""
    rules = PeerRules(rounds=rounds, mixes_first=mixes_first)
    network = InProcessNetwork(
        Peer(name, FOUR, DownhillLearner(name), Journal(), rules, np.zeros(2)) for name in FOUR.nodes
    )
    while network.train():
        pass
    return network


def largest(network: InProcessNetwork) -> float:
    """The largest weight of any model."""
    return max(float(np.abs(peer.model.vector).max()) for peer in network.peers.values())


def test_whole_epochs_from_the_mixture_stay_between_the_peers_minima() -> None:
    """Each model ends where its peer's training does."""
    assert largest(downhill_peers(mixes_first=True, rounds=20)) == pytest.approx(1.0)


def test_whole_epochs_from_the_own_model_swing_ever_more() -> None:
    """The reason for mixing first: odd against even, by 4/3 a round."""
    earlier, later = (largest(downhill_peers(mixes_first=False, rounds=rounds)) for rounds in (20, 21))
    assert later / earlier == pytest.approx(4 / 3, rel=0.01)


def test_a_correction_during_training_from_the_mixture_moves_every_model_once() -> None:
    """It comes after the round began and before it ends, and the mean moves by exactly the correction."""
    networks = [downhill_peers(mixes_first=True, rounds=2) for _ in range(2)]
    for network, is_asked in zip(networks, (False, True), strict=True):
        for peer in network.peers.values():
            peer.rules = PeerRules(rounds=3, fine_tuning_rounds=0, mixes_first=True)
        network.settle()
        begun = {name: peer.next_round() for name, peer in network.peers.items()}
        if is_asked:
            forget(network, "1", samples("1", "3"))
        for name, peer in network.peers.items():
            step = begun[name]
            assert step is not None
            peer.finish_round(step, peer.learner.move(step))
        network.settle()
    calm, asked = ({name: p.model.vector for name, p in network.peers.items()} for network in networks)
    for name, vector in calm.items():
        np.testing.assert_allclose(asked[name] - vector, 0.25 * 8.0)
