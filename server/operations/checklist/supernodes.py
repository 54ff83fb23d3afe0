"""SuperNodes of this host that the server does not let in, or that wait permanently for a process that has ended.

Flower's SuperNode takes no other message until the process of the present one has answered. Where that process ended by
SIGTERM it waits on, and counts as online. Its own log tells: the message was received, nothing was sent, and there is
no process that works at it.
"""

import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import psutil

from server.operations.checklist.finding import Finding, ok, problem, warning

GIVEN_UP = timedelta(minutes=2)
"""Flower itself gives a process up that was killed, a minute later."""
REFUSED_AFTER, LET_IN_AFTER = timedelta(seconds=75), timedelta(seconds=30)
"""Until then it may be the lease of a SuperNode that was killed; one that has run so long was let in."""
_RECEIVED, _SENDING, _CONNECTED = "Received successfully", "Sending: ", "SuperNode ID:"
_REFUSED = "Failed to activate SuperNode"
_TAIL_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SuperNode:
    """One SuperNode of this host.

    works: whether a process works at a message. log: the end of what it has written, None where that cannot be read
        (a pipe); written_at: when it wrote last.
    """

    pid: int
    works: bool
    log: str | None
    written_at: datetime | None = None


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
                "Check again in a minute: so long the server refuses a SuperNode that was killed.",
            )
        else:
            yield problem(
                f"The server has not let this site's SuperNode in for {node.age.total_seconds():.0f} s.",
                "If `journalctl -u flower-supernode` says 'Failed to activate SuperNode', the site's key is not "
                "registered (revoked, or never let in): ask the server's operator. Else it says the reason.",
            )


def check_supernodes(supernodes: Iterable[SuperNode], *, now: datetime) -> Iterator[Finding]:
    """Check that no SuperNode waits for an answer that nobody works at."""
    for one in supernodes:
        if one.log is None:
            yield warning(
                f"What the SuperNode (process {one.pid}) writes cannot be read here, so nobody knows whether it waits "
                "for a process that has ended.",
                "Run this as root, or look at `flower-unlearn check` on the server, which names silent clients.",
            )
            continue
        if one.log.rfind(_REFUSED) > one.log.rfind(_CONNECTED):
            continue  # `check_let_in` says so
        life = one.log[one.log.rfind(_CONNECTED) + 1 :]  # the log may go on over restarts
        if one.works or life.rfind(_RECEIVED) <= life.rfind(_SENDING):
            yield ok(f"The SuperNode (process {one.pid}) takes messages.")
        elif one.written_at is not None and now - one.written_at < GIVEN_UP:
            yield warning(
                f"The SuperNode (process {one.pid}) has received a message that no process works at.",
                "Check again in two minutes: Flower gives a process up that was killed, but not one that got SIGTERM.",
            )
        else:
            yield problem(
                f"The SuperNode (process {one.pid}) waits for a process that has ended without an answer, and takes no "
                "other message.",
                "Restart it (systemctl restart flower-supernode, or its container); docs/worker.md says what ends so.",
            )


def supernodes_here(processes: Iterable[psutil.Process] | None = None) -> Iterator[SuperNode]:
    """Yield the SuperNodes among `processes` (this machine's), as far as they can be seen."""
    for process in psutil.process_iter(["cmdline"]) if processes is None else processes:
        if not runs(process.info["cmdline"] or (), "flower-supernode"):
            continue
        with suppress(psutil.Error, OSError):  # it ended while we looked, or is another user's
            yield _look_at(process)


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


def _look_at(process: psutil.Process) -> SuperNode:
    works = False
    for child in process.children(recursive=True):
        with suppress(psutil.Error):
            works = works or runs(child.cmdline(), "flwr-clientapp")  # by the worker: its launcher
    target = Path(f"/proc/{process.pid}/fd/1").readlink()
    if target.is_file():
        with target.open("rb") as file:
            file.seek(max(0, target.stat().st_size - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
        return SuperNode(pid=process.pid, works=works, log=text, written_at=_local(target.stat().st_mtime))
    if str(target).startswith("socket:") and shutil.which("journalctl"):
        text = _journal(process.pid)
        newest = text.rstrip().rpartition("\n")[2].partition(" ")[0]  # seconds since 1970, before each line
        written_at = _local(float(newest)) if newest else None
        return SuperNode(pid=process.pid, works=works, log=text or None, written_at=written_at)
    return SuperNode(pid=process.pid, works=works, log=None)


def _local(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds).astimezone()


def _journal(pid: int) -> str:
    """Return what a process has written to the system's journal; empty where that cannot be read."""
    command = ["journalctl", f"_PID={pid}", "--output=short-unix", "--lines=500", "--no-pager", "--quiet"]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout


def runs(command: Sequence[str], program: str) -> bool:
    """Return whether a command line runs a program: by itself, or by an interpreter."""
    return any(word.rpartition("/")[2] == program for word in command[:3])
