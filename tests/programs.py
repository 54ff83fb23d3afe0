"""Installed programs run in this process: without the seconds that a process takes to import what is here already."""

import contextlib
import io
import sys
from importlib.metadata import entry_points
from unittest.mock import patch


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
