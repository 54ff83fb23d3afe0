"""A SuperNode that is started again until the server lets it in, and ended when it could answer nothing.

Its SuperExec starts a process for each message. Where one cannot be started it ends, and Flower's SuperNode does not
notice: it counts as online, and later messages wait permanently.
"""

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from logging import getLogger

import psutil

from strategies.installation import past_proxies
from unlearning.runtime.growing_pause import GrowingPause

_log = getLogger(__name__)

LEASE_S = 60.0
"""The SuperLink counts a SuperNode as online until then after its last heartbeat, and lets no other in with its key."""
LET_IN_S = 30.0
"""A SuperNode that has run for this long was let in."""
_LEASE = f"it counts a SuperNode that was killed as online for {LEASE_S:.0f} s, or its key is not registered"
_NOT_REGISTERED = (
    "its key is not registered at the server (it was revoked, or never let in), or another SuperNode is online with "
    "it: ask the server's operator"
)
_AGAIN_S = 5.0
_LOOK_S = 5.0
"""How often the SuperExec is looked for. It counts as ended at the second look: its SuperNode may be ending too."""
_STOP_S = 20.0
"""How long a SuperNode that is asked to end may take."""
_REFUSED = GrowingPause(first_s=10.0, longest_s=300.0)


def run_node(arguments: Sequence[str]) -> int:
    """Run `flower-supernode` with `arguments`; returns its exit status.

    One that was killed is refused until its lease ends, and one whose key is not registered always, both with the same
    sentence; it is started again, after a lease's time at growing pauses. One whose SuperExec has ended is ended: 75.
    """
    return _until_let_in(lambda: _run(["flower-supernode", *arguments]))


def _run(command: Sequence[str], *, look_s: float = _LOOK_S) -> int:
    """Run a SuperNode until it ends, or its SuperExec has."""
    ended: set[int] = set()
    with subprocess.Popen(command, env=past_proxies(os.environ)) as node:
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    return node.wait(look_s)
                before, ended = ended, _ended_children(node.pid)
                if before & ended:
                    break
            _log.error(
                "The SuperExec of this SuperNode has ended, perhaps for lack of memory: no message would be executed. "
                "The SuperNode is ended, for systemd or the container to start it again."
            )
            node.terminate()
            with suppress(subprocess.TimeoutExpired):
                node.wait(_STOP_S)
            return os.EX_TEMPFAIL
        finally:
            node.kill()  # nothing happens to one that has ended


def _ended_children(pid: int) -> set[int]:
    """Return the processes that this one started and has not collected; a SuperNode starts its SuperExec only."""
    with suppress(psutil.Error):
        children = psutil.Process(pid).children()
        return {child.pid for child in children if child.status() == psutil.STATUS_ZOMBIE}
    return set()


def _until_let_in(
    run_once: Callable[[], int],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Run the SuperNode, again until it is let in; return its last exit status.

    Flower answers the same for a lease that has not ended and for a key that is not registered, so time tells.
    """
    began, num_refusals = clock(), 0
    while True:
        started = clock()
        status = run_once()
        refused_s = clock() - began
        if status != 1 or clock() - started >= LET_IN_S:  # Flower ends with 1 whatever went wrong
            return status
        may_be_lease = refused_s < LEASE_S + _AGAIN_S
        num_refusals += not may_be_lease
        pause_s = _AGAIN_S if may_be_lease else _REFUSED.after(num_refusals)
        _log.error(
            "The SuperNode has not been let in for %.0f s. If it says 'Failed to activate SuperNode', the server "
            "refuses it: %s. Else what it says is the reason. Tried again in %.0f s; at once: systemctl restart "
            "flower-supernode.",
            refused_s,
            _LEASE if may_be_lease else _NOT_REGISTERED,
            pause_s,
        )
        sleep(pause_s)
