"""Who may call, how many calls at once, and for how long: decided by the caller's certificate before anything is read.

A caller that is no member is sent away at once. A member has a few places, so that nobody takes another's; where there
are no certificates, or too many members call at once, the oldest call makes room for a new one. A call on which nothing
comes for `IDLE_S`, or that lasts longer than `call_s`, is ended.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from logging import getLogger

import grpc
from cryptography import x509

from client.peer.seals import common_name
from strategies.waiting_places import WaitingPlaces
from unlearning.errors import SessionError

CALLS_PER_PEER = 4
"""A link sends one payload after the other; the rest is for calls that the other side has given up."""
MAX_CALLS = 500
"""Of all peers together; each holds a thread."""
IDLE_S = 20.0
_LOOK_S = 1.0

_log = getLogger(__name__)


class NotAdmitted(SessionError):
    """A call of somebody who is no member, and may become one later."""


class TooManyCalls(SessionError):
    """A call of a peer that has as many open as it may have."""


@dataclass(slots=True, eq=False)
class Call:
    """One call. name: of the caller's certificate; None where there are no certificates. Times are monotonic."""

    name: str | None
    close: Callable[[], object]
    begun_at: float = field(default_factory=time.monotonic)
    heard_at: float = field(default_factory=time.monotonic)

    @property
    def party(self) -> str:
        """Whose it is."""
        return self.name or ""

    def note_activity(self) -> None:
        """Note that something has come."""
        self.heard_at = time.monotonic()


class CallAdmission:
    """Admission of calls. admits: whether a peer of this name is, or may become, a member."""

    def __init__(self, admits: Callable[[str], bool], *, call_s: float) -> None:
        self._admits, self._call_s, self._idle_s = admits, call_s, min(IDLE_S, call_s)
        self._calls: set[Call] = set()
        self._places = WaitingPlaces(MAX_CALLS)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="peer-calls", daemon=True).start()

    @contextmanager
    def call(self, name: str | None, cancel: Callable[[], object]) -> Iterator[Call]:
        """Hold one of the places of a caller with this certified name.

        Raises:
            NotAdmitted, TooManyCalls: there is none for it.
        """
        if name is not None and not self._admits(name):
            raise NotAdmitted(
                f"Peer {name!r:.60} is no member of this federation. If it shall join, list it under `members`."
            )
        call = Call(name, cancel)
        with self._lock:
            places = Counter(one.name for one in self._calls)
            if name is not None and places[name] >= CALLS_PER_PEER:
                raise TooManyCalls(f"Peer {name!r:.60} has {CALLS_PER_PEER} calls open already.")
            self._calls.add(call)
        try:
            self._places.enter(call)
            yield call
        finally:
            self._places.leave(call)
            with self._lock:
                self._calls.discard(call)

    def close(self) -> None:
        """Stop watching calls."""
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(min(_LOOK_S, self._idle_s / 2)):
            now = time.monotonic()
            with self._lock:
                overdue = [
                    one
                    for one in self._calls
                    if now - one.heard_at > self._idle_s or now - one.begun_at > self._call_s
                ]
            for one in overdue:
                _log.warning("A call of peer %.60r is ended: nothing came, or it took too long.", one.name)
                one.close()


def certified_name(context: grpc.ServicerContext) -> str:
    """Return the common name of the caller's certificate; empty where it has not exactly one."""
    try:
        (pem,) = context.auth_context().get("x509_pem_cert", [b""])
        return common_name(x509.load_pem_x509_certificate(bytes(pem)))
    except ValueError:
        return ""
