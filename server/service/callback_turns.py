"""Which callback is sent next, so that no URL, server or submitter keeps those of others waiting.

A lane is one submitter's callbacks to one origin. Lanes do not wait for each other; within one, calls follow each other
and URLs have turns. A bad answer puts off that URL for that request alone: a server may refuse one request and take the
next at the same URL. Only without a connection the whole origin is put off.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from server.service.callback_urls import origin_of
from unlearning.requests import DeletionRequest
from unlearning.runtime.growing_pause import GrowingPause

Origin = tuple[str, str, int | None]


class Lane(NamedTuple):
    """What one submitter has sent to one origin."""

    name: str
    role: str | None
    origin: Origin


class Callback(NamedTuple):
    """What is to be sent: the state of a request, to a URL."""

    request: DeletionRequest
    url: str

    @property
    def lane(self) -> Lane:
        """The lane that it is in."""
        return Lane(self.request.submitted_by, self.request.submitted_role, origin_of(self.url))

    @property
    def key(self) -> tuple[str, str]:
        """What stays the same when the request's state changes."""
        return self.request.id, self.url


class Outcome(NamedTuple):
    """What came of a call. why: it was not taken, empty where it was; connected: whether there was a connection."""

    why: str = ""
    connected: bool = True


@dataclass(slots=True)
class _PutOff:
    """What failed and is left alone for a while. num_failures: in a row; until: of the event loop's clock."""

    num_failures: int = 0
    until: float = 0.0


@dataclass(slots=True)
class Turns:
    """What is put off, and for how long."""

    pause: GrowingPause
    _origins: dict[Origin, _PutOff] = field(default_factory=dict, init=False)
    _callbacks: dict[tuple[str, str], _PutOff] = field(default_factory=dict, init=False)

    def is_due(self, callback: Callback, now: float) -> bool:
        """Return whether neither the callback nor its origin is put off."""
        origin = self._origins.get(origin_of(callback.url))
        return self._until(callback) <= now and (origin is None or origin.until <= now)

    def first(self, due: Sequence[Callback], last_turns: Mapping[str, int]) -> Callback:
        """Return which is sent now: of the URL whose last turn is longest ago the one that has waited longest."""
        return min(due, key=lambda item: (last_turns.get(item.url, 0), self._until(item)))

    def note(self, callback: Callback, outcome: Outcome, began: float, now: float) -> None:
        """Put off what failed for longer than the last time, and call what did not at once when there is something."""
        origin = origin_of(callback.url)
        if outcome.connected:
            self._origins.pop(origin, None)
        else:
            self._fail(self._origins.setdefault(origin, _PutOff()), began, now)
        if outcome.why:
            self._fail(self._callbacks.setdefault(callback.key, _PutOff()), began, now)
        else:
            self.forget(callback)

    def forget(self, callback: Callback) -> None:
        """Keep nothing about a callback that has ended."""
        self._callbacks.pop(callback.key, None)

    def _until(self, callback: Callback) -> float:
        known = self._callbacks.get(callback.key)
        return 0.0 if known is None else known.until

    def _fail(self, what: _PutOff, began: float, now: float) -> None:
        if what.until <= began:  # of several calls at the same time one counts
            what.num_failures += 1
            what.until = now + self.pause.after(what.num_failures)
