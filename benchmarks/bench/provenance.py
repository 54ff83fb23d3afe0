"""Where a row comes from: machine, versions, commit, date. Rows of one experiment may come from several machines."""

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from subprocess import run
from typing import Any

from benchmarks.bench.columns import Row

COMMIT_VARIABLE = "FLOWER_UNLEARNING_COMMIT"
"""The commit, on a machine that has the code without its repository."""


@cache
def made_here() -> dict[str, str]:
    """Return what this process computes with."""
    versions = {name: _version(name) for name in ("flower-unlearning", "flwr", "torch", "numpy")}
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} processor(s), {_accelerator()}",
        "versions": ", ".join(f"{name} {number}" for name, number in versions.items()),
        "commit": os.environ.get(COMMIT_VARIABLE) or _commit(),
        "date": datetime.now(UTC).date().isoformat(),
    }


def all_made(rows: Sequence[Row]) -> dict[str, Any]:
    """Return with what all rows were made: each machine, version, commit and date that there is among them, once."""
    made = [row.get("made") or made_here() for row in rows] or [made_here()]
    return {name: "; ".join(sorted({one[name] for one in made})) for name in made[0]}


def load() -> float:
    """Return how many processes wanted a processor in the last minute, in the mean."""
    return round(os.getloadavg()[0], 1)


def all_loads(rows: Sequence[Row]) -> dict[str, str]:
    """Return between which loads the machine was when parts ended; nothing where no row says."""
    loads = [row["load"] for row in rows if "load" in row]
    if not loads:
        return {}
    return {
        "load": f"{min(loads):.1f} to {max(loads):.1f} processes wanted a processor; where they are more than there "
        "are, seconds are too long and no measure of a method"
    }


def _commit() -> str:
    described = run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return described.stdout.strip() or "unknown"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # the code lies there without having been installed
        return "not installed"


def _accelerator() -> str:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "no accelerator"
