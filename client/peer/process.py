"""One peer as a process: the state machine with threads, a clock and a network around it.

The main thread trains and computes corrections; a thread for each neighbour sends it what it lacks and tries again
until it is confirmed; gRPC's threads take in what comes. All of them hold the lock only while they call the peer,
never while they compute or send.
"""

import threading
import time
from dataclasses import replace
from logging import getLogger

from client.memory import DirectoryMemory
from client.peer.config import PeerConfig
from client.peer.gossip import Kind, Payload
from client.peer.grpc_transport import PayloadRefused, PeerConnection, PeerServer, Reception
from client.peer.journal import Journal, Refusals
from client.peer.learner import SiteLearner
from client.peer.owed_items import carry_out, missing_statistics, next_work
from client.peer.peer import Peer, Place
from client.peer.signatures import Seals
from client.sample_places import check_places
from unlearning.certified.linear_head import feature_norm
from unlearning.decentralised.corrections import MAX_SHARED_DIMENSION
from unlearning.errors import DataError, FlowerUnlearningError, RequestError, SessionError, VersionMismatch
from unlearning.requests import Target
from unlearning.runtime.growing_pause import GrowingPause
from unlearning.runtime.json_codec import from_plain
from unlearning.runtime.outages import run_through_outages
from unlearning.tasks import load_site, make_task
from unlearning.training import starting_parameters

_log = getLogger(__name__)

_IDLE_S = 0.25
_RETRY_PAUSE = GrowingPause(first_s=0.2, longest_s=5.0)


def make_peer(config: PeerConfig) -> Peer:
    """Return the peer of the configuration, as its state directory has it.

    Raises:
        ConfigurationError, DataError, CheckpointError: settings, data or the state directory are wrong, which may be
            another peer's.
    """
    DirectoryMemory(config.state_dir).claim(config.peer)
    settings = config.task_settings()
    task = make_task(settings)
    learner = SiteLearner(
        peer=config.peer,
        task=task,
        examples=load_site(settings, config.partition_id, config.site_dir).train,
        training=config.training_settings(),
        corrections=config.corrections(),
        num_steps=config.training.local_steps,
        noise=config.noise(),
    )
    tls, start = config.tls_files(), starting_parameters(task, config.training.seed)
    norm = config.limits.feature_norm
    if norm and (found := feature_norm(task, learner.examples)) > norm:
        raise DataError(
            f"limits.feature-norm is {norm:g}, and an example here has the norm {found:.4g}. Scale the data, or raise "
            "it at every peer."
        )
    journal = Journal(config.state_dir)
    are_some_forgotten = any(forget.sample_ids for forget in journal.targets.values())
    moved = check_places(config.state_dir, learner.examples, are_some_forgotten=are_some_forgotten)
    return Peer(
        config.peer,
        config.make_graph(),
        replace(learner, moved=moved),
        journal,
        config.rules(task, start),
        start,
        Place(config.peers[config.peer], None if tls is None else Seals(tls, config.federation)),
    )


def run_peer(config: PeerConfig, ended: threading.Event) -> None:
    """Run the peer of the configuration until it has left, or `ended` is set; while its disk is full it waits.

    Raises:
        ConfigurationError, DataError, CheckpointError: as `make_peer`.
        DeploymentError: the address is taken.
    """
    run_through_outages(
        PeerProcess.run, lambda: PeerProcess(config, make_peer(config), ended), wait=ended.wait
    )


class PeerProcess:
    """A process that runs `peer` until it is stopped, or has left the federation and all its neighbours know.

    ended: an event that stops it, as `stop` does.
    """

    def __init__(self, config: PeerConfig, peer: Peer, ended: threading.Event | None = None) -> None:
        self._config, self._peer = config, peer
        self._changed = threading.Condition(threading.RLock())
        self._ended, self._stopping = ended or threading.Event(), threading.Event()
        self._unsaved: Exception | None = None
        self._links: dict[str, threading.Thread] = {}
        self._memory = DirectoryMemory(config.state_dir)
        self._waits_since: dict[str, float] = {}

    @property
    def round(self) -> int:
        """The rounds that are behind its model."""
        return self._peer.model.round

    def stop(self) -> None:
        """Let `run` return; may be called from any thread, or from a signal handler."""
        self._ended.set()

    def run(self) -> None:
        """Train, answer, forget.

        Raises:
            DeploymentError: the address is taken.
            OSError: the state directory cannot be written to; a peer that is made again goes on from what it has.
        """
        config = self._config
        server = PeerServer(config.bind, config.tls_files(), self._reception())
        _log.info("Peer %s listens at %s.", config.peer, config.bind)
        try:
            while not self._ended.is_set():
                if self._unsaved is not None:
                    raise self._unsaved
                self._open_links()
                self._take_requests()
                if self._do_work() or self._do_round():
                    continue
                if self._peer.has_left and self._is_all_sent():
                    _log.info("Peer %s has left the federation, and its neighbours know.", config.peer)
                    return
                with self._changed:
                    self._changed.wait(_IDLE_S)
        finally:
            with self._changed:
                self._stopping.set()
            server.stop()
            for thread in self._links.values():
                thread.join()

    def _reception(self) -> Reception:
        dimension = self._peer.model.vector.size
        is_matrix = self._peer.rules.shares_matrices and dimension <= MAX_SHARED_DIMENSION
        return Reception(
            handle=self._handle,
            admits=self._peer.record.admits,
            refusals=Refusals(self._config.state_dir),
            max_numbers=dimension**2 if is_matrix else dimension,
            timeout_s=self._config.exchange_timeout_s,
        )

    def _handle(self, sender: str, payload: Payload) -> frozenset[str]:
        with self._changed:
            if self._unsaved is not None or self._stopping.is_set():  # it may know more than what was saved
                raise OSError("This peer is being started again.")
            try:
                known = self._peer.take_payload(sender, payload)
            except (OSError, MemoryError) as exc:
                self._unsaved = exc
                raise
            finally:
                self._changed.notify_all()
        return known

    def _take_requests(self) -> None:
        """File the requests of this site's outbox; see `flower-unlearn-peer request`."""
        for filed in self._memory.outbox():
            try:
                with self._changed:
                    answer = self._peer.file(from_plain(Target, filed["target"]), filed["key"])
                    self._changed.notify_all()
                _log.info("Request %s: forget %s.", answer, filed["target"]["granularity"])
            except RequestError as exc:
                answer = f"refused: {exc}"
                _log.warning("A request filed here is refused: %s", exc)
            self._memory.confirm({filed["key"]: answer})

    def _do_work(self) -> bool:
        with self._changed:
            work = next_work(self._peer, overdue=self._overdue_requests())
        if work is None:
            return False
        item = carry_out(work, self._peer.learner)
        if "reason" in item.values:
            _log.warning("%s for request %s: %s", item.kind, item.subject, item.values["reason"])
        else:
            _log.info("%s for request %s is being sent.", item.kind, item.subject)
        with self._changed:
            self._peer.receive(item)
            self._changed.notify_all()
        return True

    def _overdue_requests(self) -> frozenset[str]:
        """Return the requests that have waited long enough for silent peers' numbers."""
        limit_s = self._config.deletion.statistics_timeout_s
        return frozenset(
            request.subject
            for request in list(self._peer.record.of(Kind.REQUEST))
            if self._has_waited(request.subject, bool(missing_statistics(self._peer, request)), limit_s)
        )

    def _has_waited(self, name: str, is_waiting: bool, limit_s: float) -> bool:
        """Return whether the wait of this name has lasted `limit_s`; it begins again where `is_waiting` is false."""
        if not is_waiting:
            self._waits_since.pop(name, None)
            return False
        now = time.monotonic()
        return now - self._waits_since.setdefault(name, now) > limit_s

    def _do_round(self) -> bool:
        with self._changed:
            begun, missing = self._peer.next_round(), self._peer.missing()
            if self._has_waited("", begun is None and bool(missing), self._wait_s(missing)):
                self._waits_since.pop("")
                self._peer.models.leave_out(missing)
                number, names = self._peer.model.round, ", ".join(missing)
                _log.warning("Round %d goes on without %s, until they send a newer model.", number, names)
                begun = self._peer.next_round()
        if begun is None:
            return False
        move = self._peer.learner.move(begun)
        with self._changed:
            self._peer.finish_round(begun, move)
            self._changed.notify_all()
        return True

    def _wait_s(self, missing: list[str]) -> float:
        """Return seconds to wait for these: longer for members that never spoke, since machines start one by one."""
        if self._peer.waits_for():
            return self._config.start_timeout_s
        return self._config.round_timeout_s * self._peer.models.patience(missing)

    def _open_links(self) -> None:
        """Run a thread for each peer that this one sends to."""
        with self._changed:
            contacts = self._peer.contacts
        for to in contacts:
            if to not in self._links or not self._links[to].is_alive():
                self._links[to] = threading.Thread(
                    target=self._serve, args=(to,), name=f"to-{to}", daemon=True
                )
                self._links[to].start()

    def _serve(self, to: str) -> None:
        """Send `to` what it lacks until it is no longer a neighbour."""
        failures, last_warning = 0, ""
        while not self._stopping.is_set():
            try:
                with self._connection(to) as connection:
                    while self._send_next(to, connection):
                        failures, last_warning = 0, ""
                return
            except FlowerUnlearningError as exc:
                if str(exc) != last_warning:
                    last_warning = str(exc)
                    _log.warning("No connection to peer %s: %s; trying again.", to, last_warning)
                with self._changed:
                    self._peer.outbox(to).lose_connection()
                    if isinstance(exc, VersionMismatch):
                        self._peer.models.leave_out([to])
                        self._changed.notify_all()
                failures += 1
                self._stopping.wait(_RETRY_PAUSE.after(failures))

    def _connection(self, to: str) -> PeerConnection:
        with self._changed:
            address = self._config.peers.get(to) or self._peer.record.addresses().get(to, "")
        if not address:
            raise SessionError(f"The address of peer {to!r} is not known.")
        return PeerConnection(
            self._peer.name, address, self._config.tls_files(), self._config.exchange_timeout_s
        )

    def _send_next(self, to: str, connection: PeerConnection) -> bool:
        """Send the next payload, or wait for one; False where there will be none."""
        with self._changed:
            if self._stopping.is_set() or to not in self._peer.contacts:
                return False
            payload = self._peer.outbox(to).next_payload()
            if payload is None:
                self._changed.wait(_IDLE_S)
                return True
        known: frozenset[str] = frozenset()
        try:
            known = connection.send(payload)
        except PayloadRefused as exc:
            # sent again it would be refused again: the two peers do not run the same federation
            _log.error("Peer %s refuses a payload: %s", to, exc)
        with self._changed:
            self._peer.outbox(to).confirm(payload, known)
            self._changed.notify_all()
        return True

    def _is_all_sent(self) -> bool:
        with self._changed:
            return all(self._peer.outbox(to).next_payload() is None for to in self._peer.contacts)
