"""Programs that tests run: in this process, without the seconds that imports take in one of their own, or in one."""

import contextlib
import io
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from unittest.mock import patch

from tests.waiting import HANGS_S


def run_program(name: str, *arguments: str) -> tuple[int, str]:
    """Run `name` as its entry point does; its exit status, and all that it printed."""
    [entry] = set(entry_points(group="console_scripts", name=name))
    printed, status = io.StringIO(), 0
    with (
        patch.object(sys, "argv", [name, *arguments]),
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
    ):
        try:
            entry.load()()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
    return status, printed.getvalue()


def run_well(
    command: Sequence[str], directory: Path, environment: Mapping[str, str], *, timeout_s: float = HANGS_S
) -> str:
    """Run a program in a process of its own to its end; return what it printed.

    Raises:
        AssertionError: it did not end well; the message has the end of what it said.
    """
    done = subprocess.run(
        command,
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-4000:]}\n{done.stderr[-20_000:]}"
    return done.stdout


def lives(pid: int) -> bool:
    """Whether this process has not ended.

    One that has stays in the table of processes until its parent asks: a SuperNode does when it starts the next one.
    """
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
