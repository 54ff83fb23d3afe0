"""A neighbour of another version holds up no round."""

import threading
from pathlib import Path

import pytest

from benchmarks.local_layout import free_ports
from client.peer.grpc_transport import PeerConnection
from client.peer.journal import Journal
from client.peer.process import PeerProcess
from client.peer.record import PeerRules
from tests.peers import counting_peer, process_config
from unlearning.decentralised.graphs import ring
from unlearning.errors import VersionMismatch

ROUNDS = 3


def test_rounds_go_on_at_once_without_a_neighbour_of_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Peer 2 refuses what it is sent; the others do not wait for it as long as for a silent one, which is minutes."""
    connect = PeerProcess._connection
    addresses = {name: f"127.0.0.1:{port}" for name, port in zip("012", free_ports(3), strict=True)}

    def to_another_version(process: PeerProcess, to: str) -> PeerConnection:
        if to == "2":
            raise VersionMismatch("The receiving peer has protocol version 2.")
        return connect(process, to)

    monkeypatch.setattr(PeerProcess, "_connection", to_another_version)
    graph = ring("012")
    peers = {name: counting_peer(name, graph, Journal(), PeerRules(rounds=ROUNDS)) for name in "01"}
    processes = []
    for name, peer in peers.items():
        processes.append(PeerProcess(process_config(tmp_path, name, addresses), peer))
    threads = [threading.Thread(target=process.run) for process in processes]
    for thread in threads:
        thread.start()
    try:
        for process, peer in zip(processes, peers.values(), strict=True):
            with process._changed:
                assert process._changed.wait_for(lambda peer=peer: peer.model.round == ROUNDS, 20.0)
    finally:
        for process in processes:
            process.stop()
        for thread in threads:
            thread.join()
