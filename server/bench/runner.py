"""Runs an experiment: all parts of all seeds, several seeds at a time, going on where it stopped.

    WORK/NAME-DIGEST/seed-0/CASE--METHOD.json     a finished part
    OUTPUT/NAME.jsonl                             all rows
    OUTPUT/NAME.md                                tables
    OUTPUT/NAME-*.png                             figures

DIGEST changes with run settings, cases and methods, so parts of another configuration are never mixed in.
"""

import hashlib
import json
import logging
import multiprocessing
import os
import platform
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from subprocess import run as run_command
from typing import Any

from server.bench.experiment import Experiment
from server.bench.parts import Row, SeedRun, parts_of

Progress = Callable[[int, int, str], None]
"""Called with parts done, parts in all, and the part that was finished last."""


def work_directory(work: Path, experiment: Experiment) -> Path:
    """Where the finished parts of this experiment with these settings are."""
    decisive = experiment.model_dump(include={"run", "cases", "methods"}, mode="json", by_alias=True)
    decisive["run"].pop("data-dir", None)
    text = json.dumps(decisive, sort_keys=True)
    return work / f"{experiment.name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def run(experiment: Experiment, work: Path, *, jobs: int, progress: Progress) -> list[Row]:
    """All rows, in the order of seeds and parts. A part that fails ends the run; finished parts stay.

    jobs: how many seeds run at once, each in a process of its own.
    """
    directory = work_directory(work, experiment)
    parts = parts_of(experiment)
    total, done = len(parts) * len(experiment.seeds), 0
    if jobs == 1:
        for seed in experiment.seeds:
            seed_run = SeedRun(directory / f"seed-{seed}", experiment, seed)
            for part in parts:
                seed_run.row(part)
                done += 1
                progress(done, total, f"seed {seed}: {part.case.name}: {part.name}")
    else:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(max_workers=jobs, mp_context=context) as pool:
            waiting: set[Future[None]] = {
                pool.submit(_run_seed, directory, experiment, seed) for seed in experiment.seeds
            }
            while waiting:
                finished, waiting = wait(waiting, timeout=1.0, return_when=FIRST_COMPLETED)
                for future in finished:
                    future.result()
                rows = sorted(directory.glob("seed-*/*--*.json"), key=lambda path: path.stat().st_mtime)
                progress(min(len(rows), total), total, rows[-1].stem if rows else "")
    return [
        SeedRun(directory / f"seed-{seed}", experiment, seed).row(part)
        for seed in experiment.seeds
        for part in parts
    ]


def circumstances(experiment: Experiment) -> dict[str, Any]:
    """What the results depend on beside the experiment: machine, versions, commit, date."""
    commit = run_command(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "experiment": experiment.name,
        "seeds": list(experiment.seeds),
        "run": _shown(experiment.run),
        "machine": f"{platform.machine()}, {os.cpu_count()} processor(s), {_accelerator()}",
        "versions": {name: version(name) for name in ("flower-unlearning", "flwr", "torch", "numpy")},
        "commit": commit.stdout.strip() or "unknown",
        "date": datetime.now(UTC).date().isoformat(),
    }


def estimate(started: float, done_before: int, done: int, total: int) -> str:
    """The time left, from the parts finished since the start; empty while nothing was finished."""
    fresh = done - done_before
    if fresh <= 0 or done >= total:
        return ""
    left = (time.monotonic() - started) / fresh * (total - done)
    return f"about {left / 60:.0f} min left" if left >= 60 else f"about {left:.0f} s left"


def _run_seed(directory: Path, experiment: Experiment, seed: int) -> None:
    import torch

    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    seed_run = SeedRun(directory / f"seed-{seed}", experiment, seed)
    for part in parts_of(experiment):
        seed_run.row(part)


def _accelerator() -> str:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "no accelerator"


def _shown(run_settings: Mapping[str, Any]) -> dict[str, Any]:
    """Where the data lies on one machine concerns nobody else."""
    return {name: value for name, value in run_settings.items() if name != "data-dir"}
