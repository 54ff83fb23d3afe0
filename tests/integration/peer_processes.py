"""Ten peers as real processes with TLS: on ports of this machine, or each on a host of its own.

Certificates are made by deploy/make_certificates.sh. Most processes are forked from one that has imported torch
already, which ten times over takes minutes; `start` runs the command as an administrator does.
"""

import ctypes
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from benchmarks.decentralised.in_process import InProcessNetwork
from benchmarks.local_layout import free_ports
from client.memory import DirectoryMemory
from client.peer.config import PeerConfig, validate_config
from client.peer.journal import Journal
from client.peer.peer_cli import read_status
from client.peer.process import make_peer, run_peer
from strategies.installation import program
from strategies.tls_files import TlsFiles
from tests.integration.conftest import REPOSITORY
from tests.integration.namespaces import Network
from tests.waiting import HANGS_S
from unlearning.requests import Granularity, Target

NAMES = [str(index) for index in range(10)]
REQUESTER = "1"
ROUNDS = 3
PEER_PORT = 9300
"""On a host of its own."""

_FORKSERVER = get_context("forkserver")
_FORKSERVER.set_forkserver_preload(["client.peer.process", "sklearn.datasets"])
_CLONE_NEWNET = 0x40000000  # from linux/sched.h


class PeerProcesses:
    """The processes by peer, and their configurations. network: the hosts, each with a peer's name."""

    def __init__(
        self,
        directory: Path,
        graph: Mapping[str, object],
        *,
        network: Network | None = None,
        **settings: object,
    ) -> None:
        self.directory, self.network = directory, network
        self._graph, self._settings = dict(graph), settings
        self._forked: dict[str, ForkServerProcess] = {}
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        if network is None:
            ports = free_ports(len(NAMES))
            self._addresses = {name: f"127.0.0.1:{port}" for name, port in zip(NAMES, ports, strict=True)}
        else:
            self._addresses = {name: f"{network.address(name)}:{PEER_PORT}" for name in NAMES}
        for name, address in self._addresses.items():
            make_peer_certificate(directory / "certificates", name, address.rpartition(":")[0])

    def values(self, name: str) -> dict[str, Any]:
        """What stands in the peer's file."""
        return {
            "peer": name,
            "state-dir": str(self.directory / f"state-{name}"),
            "partition-id": int(name),
            "tls": {kind: str(getattr(self.tls(name), kind)) for kind in ("ca", "certificate", "key")},
            "peers": self._addresses,
            "graph": self._graph,
            "task": {"dataset": "digits", "dtype": "float64", "partition": "dirichlet", "max-examples": 300},
            "training": {
                "rounds": ROUNDS,
                "local-steps": 1,
                "learning-rate": 0.2,
                "weight-decay": 0.01,
            },
            **self._settings,
        }

    def tls(self, name: str) -> TlsFiles:
        """The peer's certificate, or that of anybody else who was given one."""
        return peer_tls(self.directory / "certificates", name)

    def config(self, name: str, **changes: Any) -> PeerConfig:
        """The peer's configuration."""
        return validate_config({**self.values(name), **changes})

    def fork(self, name: str) -> None:
        """Start a peer from the process that has everything imported."""
        host = None if self.network is None else str(self.network.namespace_file(name))
        self._forked[name] = _FORKSERVER.Process(
            target=_run_peer, args=(self.values(name), self._log(name), host)
        )
        self._forked[name].start()

    def start(self, name: str) -> None:
        """Start a peer as its administrator does."""
        path = self.directory / f"peer-{name}.yaml"
        path.write_text(yaml.safe_dump(self.values(name)))
        command = [program("flower-unlearn-peer"), "--config", str(path)]
        if self.network is not None:
            command = self.network.command_on(name, command)
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with self._log(name).open("ab") as log:
            self._started[name] = subprocess.Popen(command, stderr=log, stdout=log, env=environment)

    def kill(self, name: str) -> None:
        """End a forked peer at once."""
        process = self._forked.pop(name)
        process.kill()
        process.join()

    def stop_all(self) -> None:
        """End all forked peers as an administrator does; they can be started again."""
        for process in self._forked.values():
            process.terminate()
        while self._forked:
            self._forked.popitem()[1].join(60)

    def close(self) -> None:
        """End all of them."""
        for process in self._started.values():
            process.terminate()
        self.stop_all()
        for process in self._started.values():
            process.wait(timeout=HANGS_S)

    def file(self, target: Target) -> str:
        """File a request at the peer `REQUESTER`; its key."""
        memory = DirectoryMemory(self.directory / f"state-{REQUESTER}")
        return memory.file_request(target, "decentralised-newton", {})

    def wait(self, condition: Callable[[dict[str, Any]], bool], names: Sequence[str]) -> None:
        """Until the state directories of all these peers say so."""
        end = time.monotonic() + HANGS_S
        waiting = list(names)
        while waiting:
            waiting = [name for name in waiting if not condition(read_status(self.config(name)))]
            stopped = self._stopped()
            assert not stopped, self._log(stopped[0]).read_text()[-3000:]
            assert time.monotonic() < end, (
                f"still waiting for {waiting}: {read_status(self.config(waiting[0]))}"
            )
            time.sleep(0.25)  # polls the files, since the peers have no channel to the test

    def in_one_process(self) -> InProcessNetwork:
        """The same peers before their first round, to which nothing happens."""
        return InProcessNetwork(
            make_peer(self.config(name, **{"state-dir": str(self.directory / f"calm-{name}")}))
            for name in NAMES
        )

    def check_models(self, calm: InProcessNetwork) -> None:
        """All models are those of `calm`, to rounding in the last digits."""
        for name in NAMES:
            model = Journal(self.directory / f"state-{name}").model
            assert model is not None
            np.testing.assert_allclose(model.vector, calm.peers[name].model.vector, rtol=0, atol=1e-12)

    def _stopped(self) -> list[str]:
        """The peers whose processes have ended."""
        ended = [name for name, process in self._forked.items() if not process.is_alive()]
        return ended + [name for name, process in self._started.items() if process.poll() is not None]

    def _log(self, name: str) -> Path:
        return self.directory / f"peer-{name}.log"


@contextmanager
def running_peers(processes: PeerProcesses) -> Iterator[PeerProcesses]:
    """Ten peers that have trained for their rounds; leaving ends them."""
    try:
        for name in NAMES:
            processes.fork(name)
        processes.wait(lambda status: status["round"] == ROUNDS, NAMES)
        yield processes
    finally:
        processes.close()


def some_samples(calm: InProcessNetwork) -> Target:
    """Five samples of the requester."""
    learner: Any = calm.peers[REQUESTER].learner
    return Target(Granularity.SAMPLE, REQUESTER, frozenset(learner.examples.ids[:5].tolist()))


def forget_calmly(calm: InProcessNetwork, target: Target, key: str) -> None:
    """All rounds, the deletion and its round of fine-tuning."""
    while calm.train():
        pass
    calm.peers[REQUESTER].file(target, key)
    while calm.train():
        pass


def has_correction(status: dict[str, Any]) -> bool:
    """A correction has come."""
    return any(request["corrections"] for request in status["requests"])


def is_done(status: dict[str, Any]) -> bool:
    """The correction is in the model, and the round of fine-tuning is over."""
    corrected = any(
        entry["in_model"] for request in status["requests"] for entry in request["corrections"].values()
    )
    return corrected and status["round"] == ROUNDS + 1


def peer_tls(directory: Path, name: str) -> TlsFiles:
    """What that script made of a peer in `directory`."""
    return TlsFiles(directory / "ca.crt", directory / f"{name}.pem", directory / f"{name}.key")


def make_peer_certificate(directory: Path, name: str, host: str) -> None:
    """By the administrators' script."""
    script = REPOSITORY / "deploy" / "make_certificates.sh"
    subprocess.run(["sh", str(script), str(directory), "peer", name, host], check=True)


def _run_peer(values: dict[str, Any], log: Path, namespace: str | None) -> None:
    """A peer's process, as `flower-unlearn-peer --config` runs it, in a network namespace if one is named."""
    logging.basicConfig(filename=log, level=logging.INFO)
    if namespace is not None:
        _enter_network(namespace)
    torch.set_num_threads(1)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    run_peer(validate_config(values), ended)


def _enter_network(namespace: str) -> None:
    """Move this thread, and those that it will start, into a network namespace (`os.setns` is of Python 3.12)."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path(namespace).open("rb") as file:
        if libc.setns(file.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns to {namespace} does not work")
