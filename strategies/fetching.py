"""Looks for answers that do not wait for one of which only the head has come.

Flower's look for an answer fetches it as well. If its head is there and its body is not, Flower 1.39 waits for the
body for three minutes after the last of it came, and if the connection broke between the two it never comes. So each
look is a thread's: the others' answers are seen meanwhile, deadlines hold, and after a while the answer counts as lost.
"""

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from logging import getLogger
from typing import Protocol, runtime_checkable

import httpx
from flwr.app import Message
from flwr.serverapp import Grid

from unlearning.untrusted import reason_of

_log = getLogger(__name__)

MAX_PULLS = 64
"""Of one look for answers. Up to this number each client is looked up alone, so that what one sent, even if Flower
itself cannot read it, takes no other's answer with it."""
LOST_S, SLOWEST_LINK = 30.0, 125_000
"""An answer whose body is not there `LOST_S` after its head, and a second more for `SLOWEST_LINK` bytes, is lost."""
SLOW_S = 2.0
"""If the SuperLink takes this long to list the nodes online, it is the cause of the delay itself."""
TURN_S = 5e-4
"""How long a thread of a simulation computes before another gets its turn, instead of Python's 5 ms. Flower's search
for messages hardly pauses by itself, and an answer waits for a turn at each of its steps."""
_LOOK_S = 1.0  # how long a look is waited for; one without a stuck answer takes milliseconds

_LINK_ERRORS = (OSError, httpx.HTTPError)
"""What the way to the SuperLink may raise, in contrast to what was fetched."""


@runtime_checkable
class CountingGrid(Protocol):
    """A Grid that knows what really travelled, and when something has come."""

    @property
    def bytes_sent(self) -> int:
        """Return what was sent so far."""

    @property
    def bytes_received(self) -> int:
        """Return what was received so far."""

    def wait(self, seconds: float) -> None:
        """Wait for an answer that has come since the last look, `seconds` at most."""


@dataclass(frozen=True, slots=True)
class Lost:
    """In place of an answer: its head has come and its body does not."""

    reason: str


Fetched = Message | str | Lost
"""An answer, or why it cannot be read, or that it is lost."""


@dataclass(slots=True)
class _Look:
    """A look that is under way at the answers to the messages `ids`."""

    ids: tuple[str, ...]
    future: Future[list[tuple[str, Message | str]]]
    since: float
    is_said: bool = False


class Fetches:
    """The looks for answers of one Grid; several may be under way, each at other messages.

    lost_s: seconds after which a look's answer is lost. A `CountingGrid` never blocks, and nor does a simulation's:
    there each look is this thread's own, at all answers at once.
    """

    def __init__(self, grid: Grid, lost_s: Callable[[], float] = lambda: LOST_S) -> None:
        self._grid = grid
        self._lost_s = lost_s
        self._looks: list[_Look] = []

    def close(self) -> None:
        """Wait for none that is under way; more may be pulled."""
        self._looks = []

    def pull(self, message_ids: Sequence[str]) -> Iterator[tuple[str, Fetched]]:
        """Fetch the answers that have come to these messages; each with the message's id.

        One that is lost is said to be so once, and may still come.
        """
        if isinstance(self._grid, CountingGrid):
            yield from ((message_ids[0], reply) for reply in self._grid.pull_messages(message_ids))
            return
        if is_in_memory(self._grid):
            yield from _pull(self._grid, message_ids)
            return
        wanted = set(message_ids)
        self._looks = [look for look in self._looks if wanted.intersection(look.ids)]
        under_way = {key for look in self._looks for key in look.ids}
        rest = [key for key in message_ids if key not in under_way]
        step = math.ceil(len(rest) / MAX_PULLS)
        begun = []
        for start in range(0, len(rest), step or 1):
            group = tuple(rest[start : start + step])
            begun.append(_Look(group, _in_a_thread(self._grid, group), time.monotonic()))
        wait([look.future for look in begun], timeout=_LOOK_S)
        looks, self._looks = [*self._looks, *begun], []
        for number, look in enumerate(looks):
            if not look.future.done():
                self._looks.append(look)
                continue
            try:
                yield from look.future.result()
            except BaseException:
                self._looks += looks[number + 1 :]  # what they have fetched comes next time
                raise
        yield from self._lost()

    def _lost(self) -> Iterator[tuple[str, Lost]]:
        now, limit_s = time.monotonic(), self._lost_s()
        late = [look for look in self._looks if not look.is_said and now - look.since > limit_s]
        if not late:
            return
        self._grid.get_nodes()
        if time.monotonic() - now > SLOW_S:
            for look in self._looks:
                look.since = time.monotonic()
            return
        for look in late:
            if not look.future.done():
                look.is_said = True
                for key in look.ids:
                    yield key, Lost(f"its answer was lost on the way: no more of it came for {limit_s:.0f} s")


def is_in_memory(grid: Grid) -> bool:
    """Return whether the grid is that of a simulation: nothing is lost on its way, and threads wait for each other."""
    return type(grid).__name__ == "InMemoryGrid"  # it moves from module to module of Flower's


@contextmanager
def short_turns(grid: Grid) -> Iterator[None]:
    """In a simulation, let the process's threads take turns after `TURN_S` while the block runs."""
    before = sys.getswitchinterval()
    if is_in_memory(grid):
        sys.setswitchinterval(min(before, TURN_S))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _in_a_thread(grid: Grid, group: Sequence[str]) -> Future[list[tuple[str, Message | str]]]:
    """Pull the answers to a group of messages in a thread of its own, which the process's end does not wait for.

    An executor's threads are waited for; a look that Flower tries again and again would hold up a ServerApp that ends.
    """
    future: Future[list[tuple[str, Message | str]]] = Future()

    def look() -> None:
        try:
            future.set_result(_pull(grid, group))
        except BaseException as exc:  # noqa: BLE001 - it is raised where the answers are read
            future.set_exception(exc)

    threading.Thread(target=look, name="answers", daemon=True).start()
    return future


def _pull(grid: Grid, group: Sequence[str]) -> list[tuple[str, Message | str]]:
    """Pull the answers that have come to a group of messages; or why there is none to be read."""
    try:
        return [(group[0], reply) for reply in grid.pull_messages(list(group))]
    except _LINK_ERRORS:
        raise
    except Exception as exc:  # noqa: BLE001 - Flower could not put together what a node has sent
        # What came with it is lost, and Flower says so when it is asked again.
        if len(group) > 1:
            _log.warning("One of %d answers cannot be read: %s", len(group), reason_of(exc))
            return []
        return [(group[0], reason_of(exc))]
