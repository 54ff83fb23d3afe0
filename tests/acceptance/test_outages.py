"""A full disk, a database that goes away, a clock that jumps: the federation waits and goes on, to the same bits."""

import errno
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from server import app
from server.federation.checkpoints import CheckpointStore
from server.federation.context import FederationContext
from server.federation.state import FederationState, RoundResult
from server.ledger import LedgerUnavailable
from server.ledger.database import Database
from strategies.sessions import session_grid
from tests.deletion_service import free_port
from tests.federation import SMALL, federations
from tests.ledgers import new_database
from tests.sessions import SessionFederation
from unlearning.errors import Fenced
from unlearning.parameters import content_hash
from unlearning.requests import Status
from unlearning.runtime import durable_files
from unlearning.runtime.outages import is_disk_outage, run_through_outages

SETTINGS = {
    "requests": "at=1 client=2 method=puf-regular",
    "rounds": 2,
    **SMALL,
}


class Outage:
    """Strikes at the n-th write and lasts until it was waited for three times; `seen` is called at each wait."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *, at: int, seen: Callable[[], None] = lambda: None
    ) -> None:
        self.writes_left = at
        self.waited: list[float] = []
        self._seen = seen
        wait_this_way(monkeypatch, self._wait)

    @property
    def is_on(self) -> bool:
        """Count a write; whether it meets the outage."""
        self.writes_left -= 1
        return self.writes_left <= 0 and len(self.waited) < 3

    def _wait(self, seconds: float) -> None:
        self._seen()
        self.waited.append(seconds)


def wait_this_way(monkeypatch: pytest.MonkeyPatch, wait: Callable[[float], None]) -> None:
    """The ServerApp waits by `wait` instead of by the clock."""
    waiting = partial(run_through_outages, wait=wait)
    monkeypatch.setattr(app, "run_through_outages", waiting)


@pytest.fixture(scope="module")
def expected(shared_federation) -> str:
    """The model's hash without any fault."""
    return content_hash(shared_federation(**SETTINGS).run().parameters)


def finished_like(one, state: FederationState, expected: str) -> None:
    """The deletion is completed once, with its report, and the model has the expected bits."""
    [request] = one.ledger.requests.select()
    moves = [event.to_status for event in one.ledger.events.page(request.id)]
    assert request.status is Status.COMPLETED
    assert moves.count(Status.COMPLETED) == moves.count(Status.RECOVERING) == 1
    assert one.report(request.id)
    assert content_hash(state.parameters) == expected


@pytest.mark.parametrize("at", [7, 11])
def test_a_full_disk_is_waited_for_and_leaves_nothing_half_written(
    federation, monkeypatch, expected, at, caplog
):
    """At the n-th write of a file after the start, be it checkpoint or report: it is written, then the disk is full."""
    one = federation(**SETTINGS)
    half_written: list[Path] = []
    outage = Outage(monkeypatch, at=at, seen=lambda: half_written.extend(one.directory.glob("[cr]*/**/.*")))
    write = durable_files.os.fsync

    def full(descriptor: int) -> None:
        path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        if ("/checkpoints" in path or "/reports" in path) and outage.is_on:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(descriptor)

    monkeypatch.setattr(durable_files.os, "fsync", full)
    state = one.run()
    assert len(outage.waited) == 3
    assert half_written == []
    assert caplog.text.count(f"No space left on device: '{one.directory}/") == 3  # so that it says which disk
    finished_like(one, state, expected)


@pytest.mark.parametrize("at", [1, 4, 7])
def test_a_disk_without_room_for_answers_is_waited_for(tmp_path, monkeypatch, expected, caplog, at):
    """At the n-th sending over sessions: of a round of training, of a deletion, of the measurement of a model."""
    outage = Outage(monkeypatch, at=at)
    monkeypatch.setattr(
        session_grid, "disk_usage", lambda _: SimpleNamespace(free=0 if outage.is_on else 10**12)
    )
    address = f"127.0.0.1:{free_port()}"
    with federations(tmp_path, SessionFederation) as make:
        one = make(**SETTINGS, transport="session", session_address=address)
        finished_like(one, one.run(), expected)
    assert caplog.text.count("Nothing can be saved.") == len(outage.waited) == 3
    assert "clients take" in caplog.text


def test_a_full_disk_in_the_middle_of_a_report_leaves_no_report(federation, monkeypatch, expected):
    """The request is not completed before its report is there as a whole."""
    one = federation(**SETTINGS)
    states: list[tuple[Status, bool]] = []

    def look() -> None:
        [request] = one.ledger.requests.select()
        states.append((request.status, (one.directory / "reports" / request.id / "report.json").exists()))

    outage = Outage(monkeypatch, at=1, seen=look)
    write = durable_files.Path.replace

    def full(self: Path, target: Path) -> Path:
        if target.name == "report.json" and outage.is_on:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(self, target)

    monkeypatch.setattr(durable_files.Path, "replace", full)
    state = one.run()
    assert states == [(Status.VERIFYING, False)] * 3
    finished_like(one, state, expected)


@pytest.mark.parametrize("at", [8, 40])
def test_a_database_that_goes_away_is_waited_for(federation, monkeypatch, expected, caplog, at):
    """From the n-th transaction on nothing works, for three tries; then it is back."""
    one = federation(**SETTINGS)
    assert one.ledger.rounds() == []  # it exists before the outage
    outage = Outage(monkeypatch, at=at)
    for name in ("reading", "writing"):
        original = getattr(Database, name)

        @contextmanager
        def failing(self: Database, original=original) -> Iterator[object]:
            if outage.is_on:
                raise LedgerUnavailable("The ledger at postgresql://… cannot be used: connection refused.")
            with original(self) as connection:
                yield connection

        monkeypatch.setattr(Database, name, failing)
    state = one.run()
    assert len(outage.waited) == 3
    assert "connection refused" in caplog.text
    finished_like(one, state, expected)


def test_a_real_postgresql_that_goes_away_is_waited_for(
    federation, monkeypatch, expected, caplog, postgresql_server
):
    """In the middle of a round its connections are cut and new ones refused; after three tries it is back."""
    admin = sa.create_engine(postgresql_server, isolation_level="AUTOCOMMIT")
    with new_database(postgresql_server) as url, admin.connect() as connection:

        def allow_connections(answer: str) -> None:
            connection.exec_driver_sql(f"ALTER DATABASE {url.database} ALLOW_CONNECTIONS {answer}")
            cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
            connection.exec_driver_sql(cut, (url.database,))

        one = federation(**SETTINGS, ledger=url.render_as_string(hide_password=False))
        waits: list[float] = []

        def wait(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 3:
                allow_connections("true")

        wait_this_way(monkeypatch, wait)
        push, exchanges = one.grid.push_messages, []

        def cut_in_the_middle(messages):
            exchanges.append(1)
            if len(exchanges) == 6:
                allow_connections("false")
            return push(messages)

        one.grid.push_messages = cut_in_the_middle  # type: ignore[method-assign]
        state = one.run()
        assert len(waits) == 3
        assert "not currently accepting connections" in caplog.text
        assert content_hash(state.parameters) == expected
    admin.dispose()


def test_jumps_of_the_clock_change_nothing(federation, monkeypatch, expected):
    """Days forwards and backwards between any two looks at it; nothing depends on the order of times."""
    generator = np.random.default_rng(7)
    start = datetime(2026, 1, 1, tzinfo=UTC)
    monkeypatch.setattr(app, "_now", lambda: start + timedelta(days=float(generator.normal(scale=100))))
    one = federation(**SETTINGS)
    finished_like(one, one.run(), expected)


def test_a_process_that_was_replaced_while_it_waited_ends(federation, monkeypatch):
    """The database comes back, and another ServerApp has taken over: fencing counts, patience does not."""
    one = federation(**SETTINGS)
    save = CheckpointStore.save
    saves: list[int] = []

    def full_once(self, state, *, token):
        saves.append(token)
        if len(saves) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return save(self, state, token=token)

    def wait(_seconds: float) -> None:
        one.ledger.acquire_fence("the new one", now=datetime.now(UTC))

    monkeypatch.setattr(CheckpointStore, "save", full_once)
    wait_this_way(monkeypatch, wait)
    with pytest.raises(Fenced):
        one.run()
    assert len(saves) == 3


def test_what_no_waiting_can_mend_is_raised_at_once():
    """A missing file or a fault of the program is for the supervisor and its log."""

    def broken(_state: FederationState) -> FederationState:
        raise FileNotFoundError(errno.ENOENT, "No such file")

    def wait(_seconds: float) -> None:
        raise AssertionError("It waited.")

    with pytest.raises(FileNotFoundError):
        run_through_outages(broken, lambda: FederationState(parameters=np.zeros(1)), wait=wait)
    assert is_disk_outage(OSError(errno.EDQUOT, "Disk quota exceeded"))


def test_the_wait_doubles_up_to_a_minute_and_starts_anew_after_progress(tmp_path):
    """1, 2, 4, … 60 s while nothing moves; 1 s again when the outage after that comes in a later round."""
    store, waited = CheckpointStore(tmp_path), list[float]()
    first = FederationState(parameters=np.zeros(1))

    def run(state: FederationState) -> FederationState:
        if len(waited) == 8 and state.round == 0:
            store.save(FederationState(parameters=np.ones(1), round=1), token=1)
        if len(waited) < 10:
            raise OSError(errno.ENOSPC, "No space left on device")
        return state

    assert run_through_outages(run, lambda: store.newest() or first, wait=waited.append).round == 1
    assert waited == [1, 2, 4, 8, 16, 32, 60, 60, 60, 1]


def test_what_cannot_begin_is_waited_for_too():
    """The newest checkpoint lies on the disk that is away."""
    waited = list[float]()

    def begin() -> FederationState:
        if len(waited) < 3:
            raise OSError(errno.EIO, "Input/output error")
        return FederationState(parameters=np.zeros(1), round=7)

    assert run_through_outages(lambda state: state.round, begin, wait=waited.append) == 7
    assert waited == [1, 2, 4]


def test_no_model_is_held_while_others_follow_it():
    """Each state has a model, and some have three."""
    held = list[bool]()

    def run(state: FederationState) -> FederationState:
        first = weakref.ref(state.parameters)
        state = FederationState(parameters=np.ones(1), round=1)
        held.append(first() is not None)
        return state

    run_through_outages(run, lambda: FederationState(parameters=np.zeros(1)))
    assert held == [False]


def test_the_state_that_a_run_begins_with_is_not_held_until_its_end(federation, monkeypatch):
    """By whatever calls the loop, or what the last round asked about, or was tested on."""
    first = list[weakref.ref[Any]]()
    held = list[bool]()
    train, one = FederationContext.train_round, federation(**SMALL, rounds=4)

    def watched(self: FederationContext, state: FederationState) -> RoundResult:
        one.grid.sent.clear()  # which no other grid keeps
        if not first:
            first.append(weakref.ref(state.parameters))
        held.append(first[0]() is not None)
        return train(self, state)

    monkeypatch.setattr(FederationContext, "train_round", watched)
    one.run()
    assert held == [True, False, False, False]
