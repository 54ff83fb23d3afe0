"""SuperNodes of this host that the server does not let in."""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import psutil

from server.operations.checklist.finding import Finding, problem, warning

REFUSED_AFTER, LET_IN_AFTER = timedelta(seconds=75), timedelta(seconds=30)
"""Until then it may be the lease of a SuperNode that was killed; one that has run so long was let in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One `flower-unlearn-site node`, which ends when a SuperNode of its own ends that had been let in.

    age: of its process. supernode_age: of its SuperNode; None where it has none at the moment.
    """

    age: timedelta
    supernode_age: timedelta | None = None


def check_let_in(nodes: Iterable[Node]) -> Iterator[Finding]:
    """Check that the server lets the SuperNodes in."""
    for node in nodes:
        if node.supernode_age is not None and node.supernode_age >= LET_IN_AFTER:
            continue
        if node.age < REFUSED_AFTER:
            yield warning(
                "`flower-unlearn-site node` was just started; it is not known yet whether its SuperNode is let in.",
                "Check again in a minute: until then the server refuses a SuperNode that was killed.",
            )
        else:
            yield problem(
                f"The server has not let this site's SuperNode in for {node.age.total_seconds():.0f} s.",
                "If `journalctl -u flower-supernode` says 'Failed to activate SuperNode', the site's key is not "
                "registered (revoked, or never let in): ask the server's operator. Else it says the reason.",
            )


def nodes_here(processes: Iterable[psutil.Process]) -> Iterator[Node]:
    """Yield each `flower-unlearn-site node` among `processes`, with its SuperNode."""
    for process in processes:
        words = process.info["cmdline"] or ()
        if not runs(words, "flower-unlearn-site") or "node" not in words:
            continue
        with suppress(psutil.Error):  # it ended while we looked
            own = [child for child in process.children() if runs(child.cmdline(), "flower-supernode")]
            yield Node(age=_age(process), supernode_age=max(map(_age, own), default=None))


def _age(process: psutil.Process) -> timedelta:
    return timedelta(seconds=max(0.0, time.time() - process.create_time()))


def runs(command: Sequence[str], program: str) -> bool:
    """Return whether a command line runs a program: by itself, or by an interpreter."""
    return any(word.rpartition("/")[2] == program for word in command[:3])
