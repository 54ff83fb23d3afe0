"""A SuperNode whose waits are short while messages come: Flower's own waits, replaced by private names of Flower.

Off unless `flower-unlearn-site node --short-waits` asks for it. Flower 1.39 sleeps for 3 s after it was told that
there is no message, for 0.5 s between two looks for its own answer, and for 1 s before it asks again for an object that
is on its way; none of that can be set. Here a pause is a tenth of what was waited so far, 0.1 s at least and Flower's
own at most: a SuperNode at rest asks as seldom as Flower's.

Two names in `flwr.supernode.start_client_internal` are replaced, and nothing else of Flower's that is not public. Where
they are not as expected, the SuperNode runs with Flower's waits and says so.
"""

import functools
import inspect
import re
import time
from collections.abc import Callable
from logging import getLogger
from types import ModuleType
from typing import Any

from unlearning.runtime.gc_tuning import end_without_collecting, nothing_collected

_log = getLogger(__name__)

SHARE = 0.1
SHORTEST_S = 0.1


class PatientClock:
    """Stands for the module `time` where a loop of Flower's sleeps: short pauses that grow with what was waited.

    A sleep of another length than the last one begins another wait.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self._length_s = 0.0
        self._since = 0.0

    def sleep(self, seconds: float) -> None:
        """Sleep for `seconds` at most."""
        now = self._clock()
        if seconds != self._length_s:
            self._length_s, self._since = seconds, now
        self._sleep(min(seconds, max(SHORTEST_S, SHARE * (now - self._since))))


def shorten(loop: ModuleType) -> str:
    """Shorten the waits of Flower's module that has the SuperNode's loop; returns why it cannot be done, or "".

    Args:
        loop: `flwr.supernode.start_client_internal`, or what stands for it in a test.
    """
    names: dict[str, Any] = vars(loop)
    if names.get("time") is not time:
        return "its loop does not sleep by the module time"
    if {*re.findall(r"\btime\.(\w+)", inspect.getsource(loop))} != {"sleep"}:
        return "its loop uses more of the module time than sleep"
    pull = names.get("pull_objects")
    if not callable(pull) or "initial_backoff" not in inspect.signature(pull).parameters:
        return "objects are not pulled by pull_objects with initial_backoff"
    names["time"] = PatientClock()
    names["pull_objects"] = functools.partial(pull, initial_backoff=SHORTEST_S)
    return ""


def main() -> None:
    """Run `flower-supernode` with this program's arguments and short waits."""
    end_without_collecting()
    with nothing_collected():
        from flwr.supernode import start_client_internal
        from flwr.supernode.cli import flower_supernode

    reason = shorten(start_client_internal)
    if reason:
        _log.warning(
            "--short-waits: this Flower's SuperNode waits in another way (%s); it runs as it is.", reason
        )
    flower_supernode()
