"""A ring of ten peers as real processes with TLS, one of them killed while a deletion is flooded."""

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from client.memory import DirectoryMemory
from client.peer.cli import described
from client.peer.config import PeerConfig, checked_config
from client.peer.in_process import InProcessNetwork
from client.peer.journal import DirectoryJournal
from client.peer.process import PeerProcess, made_peer
from tests.certificates import Authority
from unlearning.requests import Granularity, Target

pytestmark = pytest.mark.slow  # starts ten processes

NAMES = [str(index) for index in range(10)]
RUN = [sys.executable, "-c", "from client.peer.cli import main; main()"]
DEADLINE_S = 120.0
FORKSERVER = get_context("forkserver")
FORKSERVER.set_forkserver_preload(["client.peer.process", "sklearn.datasets"])


def run_peer(values: dict[str, Any], log: Path) -> None:
    """A peer's process, as `flower-unlearn-peer --config` runs it."""
    logging.basicConfig(filename=log, level=logging.INFO)
    torch.set_num_threads(1)
    config = checked_config(values)
    process = PeerProcess(config, made_peer(config))
    signal.signal(signal.SIGTERM, lambda *_: process.stop())
    process.run()


@dataclass
class Ring:
    """The processes by peer, and their configurations."""

    directory: Path
    addresses: dict[str, str]
    authority: Authority
    forked: dict[str, ForkServerProcess] = field(default_factory=dict)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def config(self, name: str, **changes: Any) -> PeerConfig:
        return checked_config({**self.values(name), **changes})

    def values(self, name: str) -> dict[str, Any]:
        stem = self.directory / f"ca-{name}"
        return {
            "peer": name,
            "state-dir": str(self.directory / f"state-{name}"),
            "partition-id": int(name),
            "tls": {
                "ca": str(self.authority.file),
                "certificate": str(stem.with_suffix(".pem")),
                "key": str(stem.with_suffix(".key")),
            },
            "peers": self.addresses,
            "graph": {"kind": "ring"},
            "task": {"dataset": "digits", "dtype": "float64", "partition": "dirichlet", "max-examples": 300},
            "training": {"rounds": 3, "local-steps": 1, "learning-rate": 0.2, "weight-decay": 0.01},
        }

    def fork(self, name: str) -> None:
        """Start a peer from a process that has imported torch already, which ten times over takes minutes."""
        self.forked[name] = FORKSERVER.Process(target=run_peer, args=(self.values(name), self.log(name)))
        self.forked[name].start()

    def start(self, name: str) -> None:
        """Start a peer as its administrator does."""
        path = self.directory / f"peer-{name}.yaml"
        path.write_text(yaml.safe_dump(self.values(name)))
        with self.log(name).open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*RUN, "--config", str(path)],
                stderr=log,
                stdout=log,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )

    def log(self, name: str) -> Path:
        return self.directory / f"peer-{name}.log"

    def kill(self, name: str) -> None:
        process = self.forked.pop(name)
        process.kill()
        process.join()

    def stopped(self) -> list[str]:
        """The peers whose processes have ended."""
        ended = [name for name, process in self.forked.items() if not process.is_alive()]
        return ended + [name for name, process in self.processes.items() if process.poll() is not None]

    def close(self) -> None:
        for forked in self.forked.values():
            forked.terminate()
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        for forked in self.forked.values():
            forked.join(60)
        for process in self.processes.values():
            process.wait(timeout=60)

    def wait(self, condition: Callable[[dict[str, Any]], bool], names: list[str]) -> None:
        """Until the state directories of all these peers say so."""
        end = time.monotonic() + DEADLINE_S
        waiting = list(names)
        while waiting:
            waiting = [name for name in waiting if not condition(described(self.config(name)))]
            stopped = self.stopped()
            assert not stopped, self.log(stopped[0]).read_text()[-3000:]
            assert time.monotonic() < end, (
                f"still waiting for {waiting}: {described(self.config(waiting[0]))}"
            )
            time.sleep(0.25)  # polls the files, since the peers have no channel to the test


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[Ring]:
    """Ten peers that have trained for three rounds."""
    sockets = [socket.socket() for _ in NAMES]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    addresses = {name: f"127.0.0.1:{one.getsockname()[1]}" for name, one in zip(NAMES, sockets, strict=True)}
    authority = Authority(tmp_path)
    for name in NAMES:
        authority.certify(name)
    for one in sockets:
        one.close()
    made = Ring(tmp_path, addresses, authority)
    for name in NAMES:
        made.fork(name)
    try:
        made.wait(lambda status: status["round"] == 3, NAMES)
        yield made
    finally:
        made.close()


def is_done(status: dict[str, Any]) -> bool:
    """The correction is in the model, and the round of fine-tuning is over."""
    corrected = any(
        entry["in_model"] for request in status["requests"] for entry in request["corrections"].values()
    )
    return corrected and status["round"] == 4


def test_ten_processes_forget_as_one_though_one_is_killed_during_the_flooding(ring: Ring) -> None:
    """All models, that of the killed peer too, are those of peers in one process to which nothing happened."""
    calm = InProcessNetwork(
        [
            made_peer(ring.config(name, **{"state-dir": str(ring.directory / f"calm-{name}")}))
            for name in NAMES
        ]
    )
    learner: Any = calm.peers["1"].learner
    target = Target(Granularity.SAMPLE, "1", frozenset(learner.examples.ids[:5].tolist()))

    key = DirectoryMemory(ring.directory / "state-1").file_request(target, "decentralised-newton", {})
    ring.kill("6")
    others = [name for name in NAMES if name not in ("5", "6", "7")]
    ring.wait(lambda status: any(request["corrections"] for request in status["requests"]), others)
    ring.start("6")
    ring.wait(is_done, NAMES)

    while calm.train():
        pass
    calm.peers["1"].file(target, key)
    while calm.train():
        pass
    for name in NAMES:
        model = DirectoryJournal(ring.directory / f"state-{name}").model()
        assert model is not None
        np.testing.assert_allclose(model.vector, calm.peers[name].model.vector, rtol=0, atol=1e-12)
    assert described(ring.config("1"))["answers"] == {key: f"1-{key}"}
