"""A SuperNode with the warm worker: sets PATH and keeps a worker running in the SuperNode's process group."""

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from logging import getLogger

from client.worker.places import WorkerPlaces
from unlearning.errors import ConfigurationError

_log = getLogger(__name__)

_LOOK_EVERY_S = 10.0


def run_node(arguments: Sequence[str], places: WorkerPlaces | None) -> int:
    """Run `flower-supernode` with `arguments`; returns its exit status.

    places: where the worker is, which SuperNodes of one host may share; None for Flower's own cold processes.

    Raises:
        ConfigurationError: the worker's directory cannot be used.
    """
    environment = dict(os.environ)
    ended = threading.Event()
    if places is not None:
        places.prepare()
        environment["PATH"] = places.path_with_launcher(environment.get("PATH", os.defpath))
        threading.Thread(target=_keep_worker, args=(places, ended), daemon=True).start()
    with subprocess.Popen(["flower-supernode", *arguments], env=environment) as node:
        try:
            return node.wait()
        finally:
            ended.set()


def _keep_worker(places: WorkerPlaces, ended: threading.Event) -> None:
    """Start a worker whenever none serves at `places`."""
    command = [sys.executable, "-m", "client.worker", str(places.directory)]
    while not ended.is_set():
        try:
            with places.lock():
                pass
        except ConfigurationError:
            ended.wait(_LOOK_EVERY_S)  # another SuperNode of this host keeps one
            continue
        worker = subprocess.Popen(command)
        while worker.poll() is None and not ended.wait(1.0):
            pass
        if ended.is_set():
            worker.terminate()
            worker.wait()
            return
        _log.warning("The warm worker ended with status %s; it is started anew.", worker.returncode)
        ended.wait(1.0)
