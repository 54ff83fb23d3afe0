"""Callbacks: the status of a request is sent to the URLs that it named, until they have received it.

    STATE_DIR/callbacks/r-000001.json    what each URL has received last, and since when it cannot be reached

A file is durable before the request's filer has its answer, and erased when each URL has received the final status. So
callbacks outlive a restart; the state is what is sent, not each step, so several quick changes are one callback.
"""

import asyncio
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from logging import getLogger
from pathlib import Path
from typing import NamedTuple, TypeAlias

import httpx

from server.ledger import Ledger, LedgerUnavailable, LimitExceeded
from server.service import opendsr
from server.service.access import Caller
from server.service.callback_urls import AllowedUrls, Origin, origin_of
from unlearning.errors import RequestNotFound
from unlearning.requests import DeletionRequest
from unlearning.runtime.durable_files import make_private, write_atomically
from unlearning.runtime.growing_pause import GrowingPause
from unlearning.runtime.json_codec import from_plain, to_plain

_log = getLogger(__name__)

TIMEOUT_S = 10.0
GIVE_UP_AFTER = timedelta(days=3)
PAUSE = GrowingPause(first_s=1.0, longest_s=3600.0)
MAX_WAITING = 5_000
"""URLs of one submitter that have not received the end of a request."""
_POLL_S = 0.5
_NOT_ALLOWED = "it is no longer allowed"
_NO_CONNECTION = "no connection"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """One URL. told: the last condition that it has received; failing_since: None where the last call went well."""

    told: str
    failing_since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listeners:
    """The URLs of one request that have not received its end."""

    request_id: str
    by_url: Mapping[str, Listener]


Lane: TypeAlias = tuple[str, str | None, Origin]
"""A submitter's name and role, and the server (origin) that is called."""


_NONE = Listeners(request_id="", by_url={})


class Callback(NamedTuple):
    """What is to be sent: the state of a request, to a URL."""

    request_id: str
    url: str


@dataclass(slots=True)
class Callbacks:
    """The callbacks of one service, sent by a thread of its own.

    A submitter's callbacks to one server are a lane: they are sent one after the other, its URLs in turns, and wait for
    those of no other submitter. One that was not taken is sent again after a growing pause; where there was no
    connection, the lane pauses. Everything but `check` and `expect` belongs to the thread.
    `pause` and `clock` are parameters for tests.
    """

    ledger: Ledger
    directory: Path
    allowed: AllowedUrls
    signer: opendsr.Signer
    clock: Callable[[], datetime]
    pause: GrowingPause = PAUSE
    _open: dict[str, Listeners] = field(default_factory=dict, init=False)
    _requests: dict[str, DeletionRequest] = field(default_factory=dict, init=False)
    _to_read: set[str] = field(default_factory=set, init=False)
    _new: list[Listeners] = field(default_factory=list, init=False)
    _busy: set[Lane] = field(default_factory=set, init=False)
    _failures: dict[Callback | Lane, tuple[int, float]] = field(default_factory=dict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _stopping: threading.Event = field(default_factory=threading.Event, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)
    _after_event: int | None = field(default=None, init=False)

    def start(self) -> None:
        """Begin with what a service before this one left to be sent.

        Raises:
            OSError: the directory cannot be read or made.
        """
        make_private(self.directory)
        for path in sorted(self.directory.glob("r-*.json")):
            try:
                self._new.append(from_plain(Listeners, json.loads(path.read_bytes()), exactly=True))
            except ValueError as exc:
                _log.error("%s is damaged, so its URLs are not called back: %s", path, exc)
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
                "Leave them out and query the status."
            )

    def expect(self, request: DeletionRequest, urls: Iterable[str]) -> None:
        """Call these URLs whenever the request's status changes; durable when this returns.

        Raises:
            OSError: it cannot be written down.
        """
        heard = opendsr.condition(request)
        listeners = Listeners(request_id=request.id, by_url={url: Listener(told=heard) for url in urls})
        if listeners.by_url and not opendsr.is_final(request) and not self._path(request.id).exists():
            self._write(listeners)
            with self._lock:
                self._requests[request.id] = request
                self._new.append(listeners)

    def counts(self) -> tuple[int, int]:
        """Return how many URLs wait for the end of a request, and of how many the last call was not taken."""
        with self._lock:
            found = [one for item in [*self._new, *self._open.values()] for one in item.by_url.values()]
        return len(found), sum(one.failing_since is not None for one in found)

    # --- in the thread

    async def _run(self) -> None:
        # Proxies of the environment could reach what the operator did not mean to allow.
        client = httpx.AsyncClient(
            timeout=httpx.Timeout(TIMEOUT_S, connect=TIMEOUT_S / 2),
            limits=httpx.Limits(),  # none: each lane has one connection at a time
            follow_redirects=False,
            trust_env=False,
        )
        async with client, asyncio.TaskGroup() as running:
            while not self._stopping.is_set():
                try:
                    self._look()
                    for lane in self._due().keys() - self._busy:
                        self._busy.add(lane)
                        running.create_task(self._serve(client, lane))
                except LedgerUnavailable as exc:
                    _log.warning("Callbacks wait for the ledger: %s", exc)
                except Exception:  # noqa: BLE001  whatever it is, it is tried again
                    _log.exception("Callbacks in %s could not be read", self.directory)
                await asyncio.sleep(_POLL_S)

    def _look(self) -> None:
        """Read the new states of the requests whose listeners wait."""
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
            changed = {event.request_id for event in self.ledger.events.all(after=self._after_event)}
            # A request that was replaced is followed in the one that took its place.
            self._to_read |= changed | {name for name, known in self._requests.items() if known.id in changed}
        self._after_event = newest
        self._to_read &= set(self._open)
        for request_id in sorted(self._to_read):
            try:
                known = self.ledger.requests.get(request_id)
                self._requests[request_id] = self.ledger.requests.replacement_of(known)
            except RequestNotFound:  # of a ledger that was restored from before
                self._forget(request_id)
            self._to_read.discard(request_id)

    def _unsent(self) -> Iterator[tuple[Lane, Callback]]:
        """Yield the URLs that have not received the state of their request, with their lanes."""
        for request_id, listeners in self._open.items():
            request = self._requests.get(request_id)
            if request is None:  # the ledger could not be read yet
                continue
            for url, listener in listeners.by_url.items():
                if listener.told != opendsr.condition(request):
                    lane = request.submitted_by, request.submitted_role, origin_of(url)
                    yield lane, Callback(request_id, url)

    def _due(self) -> dict[Lane, list[Callback]]:
        """Return what is to be sent now, at most one callback per URL and lane: so each URL has its turn."""
        now = asyncio.get_running_loop().time()
        due: dict[Lane, dict[str, Callback]] = {}
        for lane, callback in self._unsent():
            if all(self._failures.get(key, (0, 0.0))[1] <= now for key in (callback, lane)):
                due.setdefault(lane, {}).setdefault(callback.url, callback)
        return {lane: [*by_url.values()] for lane, by_url in due.items()}

    async def _serve(self, client: httpx.AsyncClient, lane: Lane) -> None:
        """Send the callbacks of one lane until none is due."""
        try:
            while batch := self._due().get(lane):
                for callback in batch:
                    request = self._requests.get(callback.request_id)
                    if self._stopping.is_set():
                        return
                    if request is not None:
                        self._note_outcome(
                            request, callback, lane, await self._send(client, request, callback.url)
                        )
                    if lane in self._failures:  # its server is away
                        break
        except Exception:  # noqa: BLE001  whatever it is, the others' callbacks go on
            _log.exception("A callback could not be sent or noted in %s", self.directory)
        finally:
            self._busy.discard(lane)

    def _note_outcome(self, request: DeletionRequest, callback: Callback, lane: Lane, why: str) -> None:
        """Write down that a URL has received this state, or (why) that it has not."""
        if request.id not in self._open:  # the ledger was restored from before it
            return
        is_away = why.startswith(_NO_CONNECTION)
        if not is_away:
            self._failures.pop(lane, None)
        if not why:
            self._failures.pop(callback, None)
            self._note(
                callback, None if opendsr.is_final(request) else Listener(told=opendsr.condition(request))
            )
            return
        paused: Callback | Lane = lane if is_away else callback
        num_failures = self._failures.get(paused, (0, 0.0))[0] + 1
        until = asyncio.get_running_loop().time() + self.pause.after(num_failures)
        self._failures[paused] = (num_failures, until)
        # A server that is away has received nothing of what its lane has for it.
        for one in [other for of, other in self._unsent() if of == lane] if is_away else [callback]:
            self._note_failure(one, why)
        if callback.url in self._open.get(callback.request_id, _NONE).by_url:
            _log.warning(
                "%s did not receive %s: %s; it is called again later.", callback.url, request.id, why
            )

    def _note_failure(self, callback: Callback, why: str) -> None:
        """Write down since when a URL has received nothing; call it no more after `GIVE_UP_AFTER`."""
        listener, now = self._open[callback.request_id].by_url[callback.url], self.clock()
        since = listener.failing_since or now
        if now - since >= GIVE_UP_AFTER or why == _NOT_ALLOWED:
            _log.error(
                "%s did not receive %s, and is not called again: %s", callback.url, callback.request_id, why
            )
            self._note(callback, None)
        elif listener.failing_since is None:
            self._note(callback, replace(listener, failing_since=since))

    async def _send(self, client: httpx.AsyncClient, request: DeletionRequest, url: str) -> str:
        """Send one callback; return why it was not taken, "" where it was. Nothing is read of the answer's body."""
        if not self.allowed.includes(url):
            return _NOT_ALLOWED
        content = opendsr.callback(request, url, self.clock()).to_json()
        headers = {"Content-Type": "application/json", **self.signer.headers(content)}
        try:
            async with (
                asyncio.timeout(TIMEOUT_S),
                client.stream("POST", url, content=content, headers=headers) as answer,
            ):
                return "" if answer.is_success else f"it answered {answer.status_code}"
        except (httpx.ConnectError, httpx.ConnectTimeout) as exc:
            return f"{_NO_CONNECTION}: {exc}"
        except TimeoutError:
            return f"no answer within {TIMEOUT_S:g} s"
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as exc:
            return f"{type(exc).__name__}: {exc}"

    def _note(self, callback: Callback, listener: Listener | None) -> None:
        """Write down what a URL has received; None: it is called no more."""
        request_id, url = callback
        by_url = {name: one for name, one in self._open[request_id].by_url.items() if name != url}
        if listener is None:
            self._failures.pop(callback, None)
        else:
            by_url[url] = listener
        if not by_url:
            self._forget(request_id)
            return
        self._open[request_id] = Listeners(request_id=request_id, by_url=by_url)
        self._write(self._open[request_id])

    def _forget(self, request_id: str) -> None:
        self._open.pop(request_id, None)
        self._requests.pop(request_id, None)
        self._path(request_id).unlink(missing_ok=True)

    def _write(self, listeners: Listeners) -> None:
        write_atomically(self._path(listeners.request_id), json.dumps(to_plain(listeners)).encode())

    def _path(self, request_id: str) -> Path:
        return self.directory / f"{request_id}.json"
