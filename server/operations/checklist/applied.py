"""Whether what runs on a server host was started with what federation.toml says now."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path

import psutil

from server.operations.applied_settings import APPLY, unapplied
from server.operations.checklist.finding import Finding, ok, problem, warning
from server.operations.checklist.supernodes import runs
from server.operations.federation_file import read_federation_file
from unlearning.errors import ConfigurationError

_READ_AT_THEIR_START = {"serve": "flower-unlearning", "supervise": "flower-unlearning-supervisor"}
"""The commands that run for long and read the file, each with its unit."""


def check_applied(path: Path, services: Iterable[tuple[str, datetime]]) -> Iterator[Finding]:
    """Check that the newest run has the file's settings and that no service is older than the file.

    services: `serve` and `supervise` as they run, each with the time of its start.
    """
    if not path.is_file():
        return  # all was said by options
    try:
        different = unapplied(read_federation_file(path))
    except ConfigurationError as exc:
        yield problem(str(exc), f"Mend {path}: nothing starts with it as it is.")
        return
    if different:
        yield problem(
            f"{path} is not what the newest run was started with: {'; '.join(different)}.",
            f"Where you have just started one, check again in a minute. Else: {APPLY}",
        )
    else:
        yield ok(f"{path} is what the newest run was started with, if there was one.")
    changed = datetime.fromtimestamp(path.stat().st_mtime).astimezone()
    for name, started in services:
        if started < changed:
            yield warning(
                f"`flower-unlearn {name}` was started before {path} was last changed, and goes by what it said then.",
                f"systemctl restart {_READ_AT_THEIR_START[name]}",
            )


def services_here(processes: Iterable[psutil.Process]) -> Iterator[tuple[str, datetime]]:
    """Yield the services among `processes` that read the file at their start, with the time of it."""
    for process in processes:
        words = process.info["cmdline"] or ()
        if runs(words, "flower-unlearn"):
            for name in _READ_AT_THEIR_START.keys() & set(words):
                yield name, datetime.fromtimestamp(process.create_time()).astimezone()
