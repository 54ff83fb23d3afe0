"""Callbacks over real HTTP: signed, retried, kept over restarts, and sent nowhere else."""

import base64
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from server.ledger import Ledger, LimitExceeded
from server.operations.backup import back_up
from server.operations.restore import restore
from server.service.access import Caller
from server.service.callback_urls import AllowedUrls
from server.service.callbacks import GIVE_UP_AFTER, Callbacks
from server.service.calls import Role
from server.service.deletion_service import utc_now
from server.service.opendsr import Signer
from server.state_directory.files import CALLBACKS
from server.state_directory.ledger_address import LEDGER_FILE
from tests import ledgers
from tests.deletion_service import FORGETTING, NOW, LiveLoop
from tests.waiting import WAIT_S, wait_until
from unlearning.requests import DeletionRequest, Granularity, Status, Target
from unlearning.runtime.growing_pause import GrowingPause

KEY = Ed25519PrivateKey.generate()
SOON = GrowingPause(first_s=0.01, longest_s=0.01)


class Receiver:
    """A tool's HTTP server on this machine: what it was sent, and what it answers next (200 if nothing is set).

    always: what it answers at paths that begin so. held: how paths begin where it answers once `released` is set.
    """

    def __init__(self) -> None:
        self.received: list[tuple[str, Mapping[str, str], bytes]] = []
        self.answers: list[int] = []
        self.always: dict[str, int] = {}
        self.held, self.released = "nothing", threading.Event()
        self._came = threading.Condition()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = receiver.answers.pop(0) if receiver.answers else 200
                for beginning, other in receiver.always.items():
                    status = other if self.path.startswith(beginning) else status
                if self.path.startswith(receiver.held):
                    receiver.released.wait(WAIT_S)
                self.send_response(status)
                if status == 307:
                    self.send_header("Location", f"{receiver.url}/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()
                with receiver._came:
                    receiver.received.append((self.path, dict(self.headers), body))
                    receiver._came.notify_all()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.hook = f"{self.url}/hook"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def wait_for(self, count: int, timeout_s: float = WAIT_S) -> list[dict[str, Any]]:
        """The first bodies, when there are as many."""
        with self._came:
            assert self._came.wait_for(lambda: len(self.received) >= count, timeout_s), self.received
        return [json.loads(body) for _, _, body in self.received[:count]]

    def wait_for_path(self, path: str) -> list[str]:
        """The paths that were called until this one was, with it."""
        with self._came:
            found = self._came.wait_for(lambda: path in [one[0] for one in self.received], WAIT_S)
            called = [one[0] for one in self.received]
            assert found, called
            return called[: called.index(path) + 1]

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


Start = Callable[..., Callbacks]


@pytest.fixture
def start(ledger: Ledger, tmp_path: Path, receiver: Receiver) -> Iterator[Start]:
    """Starts callbacks, to the receiver's /hook alone where nothing else is given."""
    with ExitStack() as running:

        def begin(
            *allowed: str,
            of: Ledger = ledger,
            directory: Path = tmp_path / "callbacks",
            clock: Callable[[], datetime] = utc_now,
            pause: GrowingPause = SOON,
        ) -> Callbacks:
            urls = AllowedUrls(allowed or (receiver.hook,))
            made = Callbacks(of, directory, urls, Signer(KEY), clock, pause=pause)
            made.start()
            running.callback(made.stop)
            return made

        yield begin


def file(callbacks: Callbacks, *urls: str) -> DeletionRequest:
    """A request of a tool that is to be told at these URLs."""
    request = ledgers.submit(callbacks.ledger, method="puf-special", key="opendsr:mine", submitted_by="tool")
    callbacks.expect(request, urls)
    return request


def test_each_status_is_told_and_signed(
    start: Start, receiver: Receiver, loop: LiveLoop, tmp_path: Path
) -> None:
    """Ed25519 over the bytes of the body; after the end nothing is kept."""
    request = file(start(), receiver.hook)
    loop.move(request.id, Status.SCHEDULED, Status.UNLEARNING)
    receiver.wait_for(1)
    loop.move(request.id, Status.RECOVERING, Status.VERIFYING, Status.COMPLETED)
    told = receiver.wait_for(2)
    assert [item["request_status"] for item in told] == ["in_progress", "completed"]
    assert {item["subject_request_id"] for item in told} == {"mine"}
    assert {item["status_callback_url"] for item in told} == {receiver.hook}
    for path, headers, body in receiver.received:
        assert path == "/hook"
        KEY.public_key().verify(base64.b64decode(headers["X-OpenDSR-Signature"]), body)
    wait_until(lambda: not list((tmp_path / "callbacks").iterdir()))


def test_what_was_not_taken_is_sent_again(start: Start, receiver: Receiver, loop: LiveLoop) -> None:
    """After an error and after a redirect, which is not followed."""
    receiver.answers = [500, 307]
    request = file(start(), receiver.hook)
    loop.move(request.id, Status.CANCELLED)
    assert [item["request_status"] for item in receiver.wait_for(3)] == ["cancelled"] * 3
    assert {path for path, _, _ in receiver.received} == {"/hook"}


def test_a_restart_forgets_nobody(start: Start, receiver: Receiver, loop: LiveLoop) -> None:
    """What happened while the service was away is told by the next one."""
    before = start()
    request = file(before, receiver.hook)
    before.stop()
    loop.move(request.id, *FORGETTING)
    start()
    assert [item["request_status"] for item in receiver.wait_for(1)] == ["completed"]


def test_a_backup_remembers_who_is_to_be_told(start: Start, receiver: Receiver, tmp_path: Path) -> None:
    """Restored on an empty machine: what waits is told, once; who had heard the end hears nothing more."""
    below = f"{receiver.hook}/"
    before, after = tmp_path / "before", tmp_path / "after"
    ledger = Ledger.open(f"sqlite:///{before / LEDGER_FILE}")
    callbacks, loop = start(below, of=ledger, directory=before / CALLBACKS), LiveLoop(ledger)
    over, begun, waiting = (
        ledgers.submit(ledger, Target(Granularity.CLIENT, name), key=f"opendsr:{name}")
        for name in ("over", "begun", "waiting")
    )
    for request in (over, begun, waiting):
        callbacks.expect(request, [f"{below}{request.target.client_id}"])
    loop.move(over.id, *FORGETTING)
    wait_until(lambda: not (before / CALLBACKS / f"{over.id}.json").exists())
    loop.move(begun.id, Status.SCHEDULED, Status.UNLEARNING)
    wait_until(lambda: b"in_progress" in (before / CALLBACKS / f"{begun.id}.json").read_bytes())
    callbacks.stop()
    back_up(tmp_path / "backup", state_dir=before, ledger_url=f"sqlite:///{before / LEDGER_FILE}", now=NOW)
    ledger.close()
    num_told = len(receiver.received)

    url = f"sqlite:///{after / LEDGER_FILE}"
    restore(tmp_path / "backup", state_dir=after, ledger_url=url, now=NOW)
    ledger = Ledger.open(url)
    loop = LiveLoop(ledger)
    callbacks = start(below, of=ledger, directory=after / CALLBACKS)
    loop.move(begun.id, Status.RECOVERING, Status.VERIFYING, Status.COMPLETED)
    loop.move(waiting.id, Status.CANCELLED)
    wait_until(lambda: not list((after / CALLBACKS).iterdir()))
    callbacks.stop()
    ledger.close()
    told = sorted(
        (path, json.loads(body)["request_status"]) for path, _, body in receiver.received[num_told:]
    )
    assert told == [("/hook/begun", "completed"), ("/hook/waiting", "cancelled")]


def test_a_failure_is_told_and_the_end_after_it_too(start: Start, receiver: Receiver, loop: LiveLoop) -> None:
    """OpenDSR has no word for it; the extension has. A retry that works is told as well."""
    request = file(start(), receiver.hook)
    loop.move(request.id, Status.SCHEDULED)
    loop.move(request.id, Status.FAILED, retryable=True, reason="away")
    receiver.wait_for(1)
    loop.move(request.id, *FORGETTING)
    first, last = receiver.wait_for(2)
    assert (first["request_status"], first["extensions"]["flower-unlearning"]["reason"]) == (
        "pending",
        "away",
    )
    assert last["request_status"] == "completed"


def test_a_server_that_is_away_keeps_nobody_else_waiting(
    start: Start, receiver: Receiver, loop: LiveLoop
) -> None:
    """One URL of a request is dead, and the other is told."""
    dead = "http://127.0.0.2:1/hook"
    request = file(start(dead, receiver.hook), dead, receiver.hook)
    loop.move(request.id, Status.CANCELLED)
    receiver.wait_for(1)


def test_after_days_it_is_given_up(start: Start, receiver: Receiver, loop: LiveLoop, tmp_path: Path) -> None:
    """And nothing is kept of it."""
    now = [NOW]
    receiver.answers = [500] * 1000
    request = file(start(clock=lambda: now[0]), receiver.hook)
    loop.move(request.id, Status.CANCELLED)
    receiver.wait_for(2)  # that the first was not taken has been written down
    now[0] += GIVE_UP_AFTER + timedelta(seconds=1)
    wait_until(lambda: not list((tmp_path / "callbacks").iterdir()))


def test_what_is_no_longer_allowed_is_not_called(
    start: Start, receiver: Receiver, loop: LiveLoop, tmp_path: Path
) -> None:
    """The operator narrowed the list while the service was away."""
    before = start()
    request = file(before, receiver.hook)
    before.stop()
    loop.move(request.id, *FORGETTING)
    start(f"{receiver.url}/other")
    wait_until(lambda: not list((tmp_path / "callbacks").iterdir()))
    assert receiver.received == []


# What one submitter's URLs do to those of others

LONG = GrowingPause(first_s=60.0, longest_s=3600.0)
TOOL, ATTACKER = "tool", "3"


def file_and_cancel(callbacks: Callbacks, *filed: tuple[str, str]) -> None:
    """File requests, each of a submitter who is to be told at a URL, and cancel them."""
    for number, (name, url) in enumerate(filed):
        target = Target(Granularity.CLIENT, f"{number}")
        request = ledgers.submit(callbacks.ledger, target, key=f"opendsr:{number}", submitted_by=name)
        callbacks.ledger.decisions.cancel(request.id, by=name, now=NOW)
        callbacks.expect(request, [url])


@pytest.mark.parametrize(
    ("bad", "whose"),
    [("404", TOOL), ("404", ATTACKER), ("307", ATTACKER), ("query", TOOL), ("slow", ATTACKER)],
)
def test_bad_urls_of_an_origin_do_not_keep_a_good_one_waiting(
    start: Start, receiver: Receiver, bad: str, whose: str
) -> None:
    """Twenty that came before it: it is told after one try of each at most, and beside slow ones of others."""
    receiver.always = {"/bad": 307 if bad == "307" else 404}
    receiver.held = "/bad" if bad == "slow" else "nothing"
    callbacks = start(f"{receiver.url}/", pause=LONG)
    urls = [f"{receiver.url}/bad{'?' if bad == 'query' else ''}{number}" for number in range(20)]
    file_and_cancel(callbacks, *((whose, url) for url in urls), (TOOL, receiver.hook))
    called = receiver.wait_for_path("/hook")
    assert len(called) == len(set(called)) <= 21
    receiver.released.set()


def test_a_request_that_a_server_refuses_does_not_stop_others_at_the_same_url(
    start: Start, receiver: Receiver, loop: LiveLoop
) -> None:
    """An attacker files under the tool's own URL, which refuses ids that it does not know."""
    receiver.answers = [404] * 5
    callbacks = start(pause=LONG)
    file_and_cancel(callbacks, *[(ATTACKER, receiver.hook)] * 5)
    receiver.wait_for(5)
    request = file(callbacks, receiver.hook)
    loop.move(request.id, Status.CANCELLED)
    assert receiver.wait_for(6)[-1]["subject_request_id"] == "mine"


def test_a_submitters_urls_have_turns(start: Start, receiver: Receiver) -> None:
    """One of many requests does not keep the submitter's other URL waiting until all of them have received theirs."""
    receiver.held = "/many"
    callbacks = start(f"{receiver.url}/")
    file_and_cancel(callbacks, *[(TOOL, f"{receiver.url}/many")] * 10, (TOOL, receiver.hook))
    wait_until(lambda: len(callbacks._open) == 11)
    receiver.released.set()
    assert len(receiver.wait_for_path("/hook")) <= 3


def test_without_a_connection_one_call_is_made_for_all_of_an_origin(
    start: Start, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that is away is not called again for each request; another origin is called meanwhile."""
    dead = "http://127.0.0.2:1/"
    callbacks = start(dead, receiver.hook, pause=LONG)
    file_and_cancel(callbacks, *((TOOL, f"{dead}{number}") for number in range(20)), (TOOL, receiver.hook))
    receiver.wait_for(1)
    callbacks.stop()
    assert sum("no connection" in record.message for record in caplog.records) == 1


def test_after_days_all_urls_of_a_server_that_is_away_are_given_up(
    start: Start, receiver: Receiver, tmp_path: Path
) -> None:
    """Also those that were not called, because one call was enough to see that it is away."""
    dead, now = "http://127.0.0.2:1/", [NOW]
    callbacks = start(dead, clock=lambda: now[0])
    file_and_cancel(callbacks, *((TOOL, f"{dead}{number}") for number in range(5)))
    files = list((tmp_path / "callbacks").iterdir())
    assert len(files) == 5
    wait_until(lambda: all(NOW.isoformat()[:10] in path.read_text() for path in files))
    now[0] += GIVE_UP_AFTER
    wait_until(lambda: not list((tmp_path / "callbacks").iterdir()))


def test_a_submitter_has_a_limited_number_of_urls_that_wait(
    start: Start, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the request is filed; those of another submitter do not count."""
    monkeypatch.setattr("server.service.callbacks.MAX_WAITING", 3)
    callbacks = start(f"{receiver.url}/")
    urls = [f"{receiver.url}/{number}" for number in range(2)]
    callbacks.expect(ledgers.submit(callbacks.ledger, submitted_by="tool", submitted_role="client"), urls)
    for name, role in (("tool", Role.OPERATOR), ("3", Role.CLIENT)):
        callbacks.check(Caller(name, role), urls)
    with pytest.raises(LimitExceeded):
        callbacks.check(Caller("tool", Role.CLIENT), urls)
    callbacks.check(Caller("tool", Role.CLIENT), urls[:1])
