"""Waiting for clients before a round, and saying who is waited for."""

import time
from collections.abc import Callable, Collection
from logging import getLogger

from unlearning.runtime.growing_pause import GrowingPause

_log = getLogger(__name__)
_SAY_AGAIN = GrowingPause(first_s=10.0, longest_s=300.0)
_LOOK_S = 0.5


def wait_for(
    wanted: int,
    setting: str,
    look: Callable[[], Collection[str]],
    timeout_s: float,
    tell: Callable[[str], None],
) -> None:
    """Wait until `look` finds as many clients as are wanted, `timeout_s` at most.

    setting: which says how many. tell: is given the sentence that says who is waited for, at each look, and "" when
        that is over.
    """
    began = time.monotonic()
    said, said_at, times = "", began, 0
    while (count := len(here := look())) < wanted:
        waited_s = time.monotonic() - began
        if waited_s >= timeout_s:
            _log.warning("Going on with %d client(s), expected %d.", count, wanted)
            break
        names = f": {', '.join(here)}" if here else ""
        sentence = f"Waiting for {wanted} client(s) ({setting}), {count} here{names}."
        tell(sentence)
        if sentence != said or time.monotonic() - said_at >= _SAY_AGAIN.after(times):
            _log.info("%s At most %.0f s more (wait-timeout-s).", sentence, timeout_s - waited_s)
            said, said_at, times = sentence, time.monotonic(), times + 1
        time.sleep(_LOOK_S)
    if said:
        tell("")
