"""Callbacks: what becomes of a request is told to the URLs that it named, until they have heard it.

    STATE_DIR/callbacks/r-000001.json    what each URL has been told last, and since when it cannot be reached

A file is durable before the request's filer has its answer, and erased when everybody has heard the end. So callbacks
outlive a restart; the state is what is told, not each step, so several changes in quick succession are one callback.
"""

import asyncio
import base64
import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import count
from logging import getLogger
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from server.api.access import Caller
from server.http_api import opendsr
from server.http_api.callback_turns import Callback, Lane, Outcome, Turns
from server.http_api.callback_urls import AllowedUrls
from server.ledger import Ledger, LedgerUnavailable, LimitExceeded
from unlearning.errors import RequestNotFound
from unlearning.requests import DeletionRequest, Status
from unlearning.runtime.durable_files import make_private, write_atomically
from unlearning.runtime.growing_pause import GrowingPause
from unlearning.runtime.json_codec import from_plain, to_plain

_log = getLogger(__name__)

TIMEOUT_S = 10.0
GIVE_UP_AFTER = timedelta(days=3)
PAUSE = GrowingPause(first_s=1.0, longest_s=3600.0)
MAX_WAITING = 5_000
"""URLs of one submitter that have not heard the end of a request."""
_POLL_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """One URL. told: the last condition that it has heard; failing_since: None where the last call went well."""

    told: str
    failing_since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listeners:
    """The URLs of one request that have not heard its end."""

    request_id: str
    by_url: Mapping[str, Listener]


@dataclass(frozen=True, slots=True)
class Signer:
    """The key by which callbacks and receipts are known to be this service's."""

    key: Ed25519PrivateKey

    def headers(self, content: bytes) -> dict[str, str]:
        """Return the headers that go with a body: Ed25519 over its bytes, in Base64."""
        return {
            "X-OpenDSR-Processor-Domain": opendsr.EXTENSION,
            "X-OpenDSR-Signature": base64.b64encode(self.key.sign(content)).decode(),
        }


@dataclass(slots=True)
class Callbacks:
    """The callbacks of one service, sent by a thread of its own.

    Everything but `check` and `expect` belongs to that thread. `turns` and `clock` are parameters for tests.
    """

    ledger: Ledger
    directory: Path
    allowed: AllowedUrls
    signer: Signer
    clock: Callable[[], datetime]
    turns: Turns = field(default_factory=lambda: Turns(PAUSE))
    _open: dict[str, Listeners] = field(default_factory=dict, init=False)
    _serving: set[Lane] = field(default_factory=set, init=False)
    _requests: dict[str, DeletionRequest] = field(default_factory=dict, init=False)
    _to_read: set[str] = field(default_factory=set, init=False)
    _new: list[Listeners] = field(default_factory=list, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _stopping: threading.Event = field(default_factory=threading.Event, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)
    _after_event: int | None = field(default=None, init=False)

    def start(self) -> None:
        """Begin with what a service before this one left to be told.

        Raises:
            OSError: the directory cannot be read or made.
        """
        make_private(self.directory)
        for path in sorted(self.directory.glob("r-*.json")):
            try:
                self._new.append(from_plain(Listeners, json.loads(path.read_bytes()), exactly=True))
            except ValueError as exc:
                _log.error("%s is damaged, so nobody is called back for it: %s", path, exc)
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run()), name="callbacks", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Return when nothing is being sent any more."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def check(self, caller: Caller, urls: Sequence[str]) -> None:
        """Refuse URLs that a caller may not have called, before it files a request with them.

        Raises:
            InvalidRequest: the operator did not allow one.
            LimitExceeded: too many of the caller's wait already.
        """
        for url in urls:
            self.allowed.check(url)
        with self._lock:
            waiting = [*self._new, *self._open.values()]
        own = sum(
            len(item.by_url)
            for item in waiting
            if (request := self._requests.get(item.request_id)) is not None
            and (request.submitted_by, request.submitted_role) == (caller.name, caller.role)
        )
        if urls and own + len(urls) > MAX_WAITING:
            raise LimitExceeded(
                f"status_callback_urls: {own:,} of yours wait for the end of a request; at most {MAX_WAITING:,} may. "
                "Leave them out and ask for the status."
            )

    def expect(self, request: DeletionRequest, urls: Iterable[str]) -> None:
        """Call these URLs whenever the request's status changes; durable when this returns.

        Raises:
            OSError: it cannot be written down.
        """
        heard = condition(request)
        listeners = Listeners(request_id=request.id, by_url={url: Listener(told=heard) for url in urls})
        if listeners.by_url and not opendsr.is_final(request) and not self._path(request.id).exists():
            self._write(listeners)
            with self._lock:
                self._requests[request.id] = request
                self._new.append(listeners)

    # --- in the thread

    async def _run(self) -> None:
        # Proxies of the environment could reach what the operator did not mean to allow.
        client = httpx.AsyncClient(
            timeout=httpx.Timeout(TIMEOUT_S, connect=TIMEOUT_S / 2),
            limits=httpx.Limits(),  # none that lanes share: each has one connection at a time
            follow_redirects=False,
            trust_env=False,
        )
        async with client, asyncio.TaskGroup() as running:
            while not self._stopping.is_set():
                try:
                    self._look()
                    for lane in {callback.lane for callback in self._due()} - self._serving:
                        self._serving.add(lane)
                        running.create_task(self._serve(client, lane))
                except LedgerUnavailable as exc:
                    _log.warning("Callbacks wait for the ledger: %s", exc)
                except Exception:  # noqa: BLE001  whatever it is, it is tried again
                    _log.exception("Callbacks in %s could not be read", self.directory)
                await asyncio.sleep(_POLL_S)

    def _look(self) -> None:
        """Read what has become of the requests whose listeners wait."""
        with self._lock:
            for item in self._new:
                self._open[item.request_id] = item
                self._to_read.add(item.request_id)
            self._new.clear()
        if not self._open:
            self._after_event = None
            return
        newest = self.ledger.events.last_sequence()
        if self._after_event is not None and newest != self._after_event:
            self._to_read |= {event.request_id for event in self.ledger.events.all(after=self._after_event)}
        self._after_event = newest
        self._to_read &= set(self._open)
        for request_id in sorted(self._to_read):
            try:
                self._requests[request_id] = self.ledger.requests.get(request_id)
            except RequestNotFound:  # of a ledger that was restored from before
                self._forget(request_id)
            self._to_read.discard(request_id)

    def _due(self, of: Lane | None = None) -> list[Callback]:
        """Return what there is to tell now, in one lane or in all."""
        now, due = asyncio.get_running_loop().time(), list[Callback]()
        for request_id, listeners in self._open.items():
            request = self._requests.get(request_id)
            if request is None:  # the ledger could not be read yet
                continue
            if of is not None and (request.submitted_by, request.submitted_role) != (of.name, of.role):
                continue
            state = condition(request)
            unheard = (Callback(request, url) for url, one in listeners.by_url.items() if one.told != state)
            due += [item for item in unheard if of in (None, item.lane) and self.turns.is_due(item, now)]
        return due

    async def _serve(self, client: httpx.AsyncClient, lane: Lane) -> None:
        """Send what is due in a lane, one after the other, until nothing is."""
        last_turns: dict[str, int] = {}
        try:
            for turn in count(1):
                due = self._due(lane)
                if not due or self._stopping.is_set():
                    return
                callback = self.turns.first(due, last_turns)
                last_turns[callback.url] = turn
                await self._tell(client, callback)
        except Exception:  # noqa: BLE001  whatever it is, the others' callbacks go on
            _log.exception("A callback could not be sent or noted in %s", self.directory)
        finally:
            self._serving.discard(lane)

    async def _tell(self, client: httpx.AsyncClient, callback: Callback) -> None:
        clock = asyncio.get_running_loop().time
        request, url = callback
        is_allowed, began = self.allowed.includes(url), clock()
        outcome = await self._send(client, callback) if is_allowed else Outcome("it is no longer allowed")
        if request.id not in self._open:  # the ledger was restored from before it
            return
        self.turns.note(callback, outcome, began, clock())
        if not outcome.why:
            heard = condition(request)
            self._note(callback, None if opendsr.is_final(request) else Listener(told=heard))
            return
        listener, now = self._open[request.id].by_url[url], self.clock()
        since = listener.failing_since or now
        if now - since >= GIVE_UP_AFTER or not is_allowed:
            _log.error("%s was not told of %s, and is not called again: %s", url, request.id, outcome.why)
            self._note(callback, None)
            return
        _log.warning("%s was not told of %s: %s; it is called again later.", url, request.id, outcome.why)
        if listener.failing_since is None:
            self._note(callback, replace(listener, failing_since=since))

    async def _send(self, client: httpx.AsyncClient, callback: Callback) -> Outcome:
        """Send one callback. Nothing is read of the answer's body."""
        request, url = callback
        content = json.dumps(opendsr.callback(request, url, self.clock())).encode()
        headers = {"Content-Type": "application/json", **self.signer.headers(content)}
        try:
            async with (
                asyncio.timeout(TIMEOUT_S),
                client.stream("POST", url, content=content, headers=headers) as answer,
            ):
                return Outcome("" if answer.is_success else f"it answered {answer.status_code}")
        except TimeoutError:
            return Outcome(f"no answer within {TIMEOUT_S:g} s")
        except (httpx.ConnectError, httpx.ConnectTimeout) as exc:
            return Outcome(f"no connection: {type(exc).__name__}: {exc}", connected=False)
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as exc:
            return Outcome(f"{type(exc).__name__}: {exc}")

    def _note(self, callback: Callback, listener: Listener | None) -> None:
        """Write down what a URL has heard; None: it need not hear more."""
        request, url = callback
        by_url = dict(self._open[request.id].by_url)
        if listener is None:
            del by_url[url]
            self.turns.forget(callback)
        else:
            by_url[url] = listener
        if not by_url:
            self._forget(request.id)
            return
        self._open[request.id] = Listeners(request_id=request.id, by_url=by_url)
        self._write(self._open[request.id])

    def _forget(self, request_id: str) -> None:
        self._open.pop(request_id, None)
        self._requests.pop(request_id, None)
        self._path(request_id).unlink(missing_ok=True)

    def _write(self, listeners: Listeners) -> None:
        write_atomically(self._path(listeners.request_id), json.dumps(to_plain(listeners)).encode())

    def _path(self, request_id: str) -> Path:
        return self.directory / f"{request_id}.json"


def condition(request: DeletionRequest) -> str:
    """Return what a listener is told of a request, in a word: a failure is one although OpenDSR has no word for it."""
    return str(Status.FAILED) if request.status is Status.FAILED else opendsr.request_status(request)
