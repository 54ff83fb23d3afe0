"""A peer whose disk is full waits and goes on from what it has, and misses nothing that came meanwhile."""

import errno
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.local_layout import free_ports
from client.peer import journal
from client.peer.journal import Journal, read_refusals
from client.peer.peer import Peer
from client.peer.process import PeerProcess
from tests.peers import counting_peer, member_item, process_config, samples
from tests.waiting import wait_until
from unlearning.decentralised.graphs import ring
from unlearning.runtime.durable_files import write_atomically
from unlearning.runtime.outages import run_through_outages


class FullDisk:
    """From when `begins` says so peer 1 cannot write its model, `times` times."""

    def __init__(self, begins: Callable[[], bool], times: int) -> None:
        self._begins, self._has_begun, self._left = begins, False, times

    def write(self, path: Path, content: bytes) -> None:
        if path.name == "model.npz" and path.parts[-3] == "1":
            self._has_begun = self._has_begun or self._begins()
            if self._has_begun and self._left:
                self._left -= 1
                raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write_atomically(path, content)


@pytest.mark.parametrize(("when", "times"), [("a correction arrives", 1), ("it trains", 3)])
def test_a_peer_with_a_full_disk_misses_no_correction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, times: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The correction is kept when its model is not: without a new start the model would never take it."""
    addresses = {name: f"127.0.0.1:{port}" for name, port in zip("01", free_ports(2), strict=True)}
    graph, ended, running = ring("01"), threading.Event(), dict[str, PeerProcess]()

    def begin(name: str) -> PeerProcess:
        peer = counting_peer(name, graph, Journal(tmp_path / name))
        running[name] = PeerProcess(process_config(tmp_path, name, addresses), peer, ended)
        return running[name]

    def peer(name: str) -> Peer:
        return running[name]._peer

    correction = "correction/0/0-key"
    disk = FullDisk(lambda: when == "it trains" or correction in peer("1").record.items, times)
    waited: list[float] = []
    monkeypatch.setattr(journal, "write_atomically", disk.write)
    threads = [
        threading.Thread(
            target=run_through_outages,
            args=(PeerProcess.run, lambda name=name: begin(name)),
            kwargs={"wait": waited.append},
        )
        for name in "01"
    ]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: len(running) == 2 and peer("0").model.round > 1)
        with running["0"]._changed:
            peer("0").file(samples("0", "3"), "key")
        wait_until(lambda: correction in peer("1").model.applied)
        at = peer("1").model.round
        wait_until(lambda: peer("1").model.round > at + 1)
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert 1 <= len(waited) <= times  # both threads may meet one outage
    assert f"No space left on device: '{tmp_path}/1/peer/model.npz'" in caplog.text
    assert read_refusals(tmp_path / "1") == {}, "the sender did nothing wrong"


def test_a_peer_that_is_being_stopped_takes_nothing(tmp_path: Path) -> None:
    """Its journal may be another peer's by then, which is made from it."""
    process = PeerProcess(
        process_config(tmp_path, "0", dict.fromkeys("01", "127.0.0.1:1")),
        counting_peer("0", ring("01"), Journal(tmp_path / "0")),
    )
    process._stopping.set()
    with pytest.raises(OSError, match="started again"):
        process._handle("1", member_item("1", "0"))
    assert [item.id for item in Journal(tmp_path / "0").items()] == ["member/0/"]
