"""Runs an experiment: all parts of all settings and seeds, several at a time, going on where it stopped.

    OUTPUT/NAME.jsonl.xz     all rows
    OUTPUT/NAME.md           tables
    OUTPUT/NAME-*.png        figures

Where finished parts are kept: `benchmarks.bench.parts`.
"""

import logging
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.bench import oracles, shadows
from benchmarks.bench.columns import Row, is_retrain
from benchmarks.bench.experiment import Experiment
from benchmarks.bench.parts import ORACLES, Part, of_any_machine, parts_of
from benchmarks.bench.provenance import all_loads, all_made
from benchmarks.bench.seed_run import SeedRun

Progress = Callable[[int, int, str], None]
"""Called with parts done, parts in all, and what is being worked at."""


def run(experiment: Experiment, work: Path, *, jobs: int, progress: Progress) -> list[Row]:
    """Return all rows, in the order of settings, seeds and parts.

    A part that fails ends the run; finished parts stay.

    jobs: how many parts run at once, each in a process of its own.
    """
    runs = _seed_runs(work, experiment)
    wanted = [(one, part) for one in runs for part in parts_of(experiment, one.setting, one.seed)]
    if jobs == 1:
        for number, (one, part) in enumerate(wanted):
            progress(number, len(wanted), f"seed {one.seed}: {part.title}")
            one.row(part)
    else:
        with _pool(jobs, work, experiment) as pool:
            waiting: set[Future[None]] = {
                pool.submit(_work_at, run, part)
                for run, part in _turns(experiment, runs)
                if runs[run].finished_row(part) is None
            }
            while waiting:
                progress(len(wanted) - len(waiting), len(wanted), "parts")
                finished, waiting = wait(waiting, timeout=2.0, return_when=FIRST_COMPLETED)
                for future in finished:
                    future.result()
    progress(len(wanted), len(wanted), "done")
    return _rows(experiment, wanted)


def _rows(experiment: Experiment, wanted: Sequence[tuple[SeedRun, Part]]) -> list[Row]:
    """Return the finished rows; with what all seeds of a method say together, in an experiment of distributions."""
    if not experiment.shares_clients:
        return [one.row(part) for one, part in wanted]
    groups: dict[tuple[str, str], list[tuple[SeedRun, Part]]] = {}
    for one, part in wanted:
        groups.setdefault((part.setting.name, part.case.name), []).append((one, part))
    rows = []
    for group in groups.values():
        of_oracles = [oracles.read(one.margins_path(part)) for one, part in group if part.name == ORACLES]
        told = [(one.row(part), one.margins_path(part)) for one, part in group if part.name != ORACLES]
        ends = oracles.audited_ends(group[0][0].data, group[0][1].case)
        if experiment.shadows:
            rows += shadows.with_figures(told, ends)
        else:
            rows += oracles.with_figures(told, oracles.stacked(of_oracles), ends)
    return rows


def finished(experiment: Experiment, work: Path) -> list[Row]:
    """Return the rows of those parts that are finished, in the same order; nothing is computed."""
    there = [
        (one, part)
        for one in _seed_runs(work, experiment)
        for part in parts_of(experiment, one.setting, one.seed)
        if one.finished_row(part) is not None
    ]
    return _rows(experiment, there)


def circumstances(experiment: Experiment, rows: Sequence[Row]) -> dict[str, Any]:
    """Return what the results depend on beside the experiment: machines, versions, commits, dates."""
    parts = [part for part in _all_parts(experiment) if part.name != ORACLES]
    missing = len(parts) - sum(row["method"] != ORACLES for row in rows)
    return {
        "experiment": experiment.name,
        "seeds": list(experiment.seeds),
        "run": of_any_machine(experiment.run),
        **{
            f"run, {setting.name}": of_any_machine(setting.run)
            for setting in experiment.settings
            if setting.run
        },
        **all_made(rows),
        **all_loads(rows),
        **({"not run": f"{missing} of {len(parts)} parts"} if missing else {}),
    }


def cost(experiment: Experiment) -> str:
    """Return what a run computes, in words; federations that were trained before are counted too."""
    parts = _all_parts(experiment)
    alone = 1 + sum(contender.trains_alone for contender in experiment.methods)
    trained = len(experiment.settings) * len(experiment.seeds) * alone
    numbers = {
        "trainings": trained,
        "retrainings": sum(is_retrain(part.name) for part in parts),
        "oracles": sum(len(part.seeds) for part in parts),
        "deletions": sum(part.contender is not None for part in parts),
    }
    return ", ".join(f"{number} {name}" for name, number in numbers.items() if number)


def estimate(started: float, done_before: int, done: int, total: int) -> str:
    """Return the time left, from the parts finished since the start; empty while nothing was finished."""
    fresh = done - done_before
    if fresh <= 0 or done >= total:
        return ""
    left = (time.monotonic() - started) / fresh * (total - done)
    return f"about {left / 60:.0f} min left" if left >= 60 else f"about {left:.0f} s left"


def _all_parts(experiment: Experiment) -> list[Part]:
    return [
        part
        for setting in experiment.settings
        for seed in experiment.seeds
        for part in parts_of(experiment, setting, seed)
    ]


def _seed_runs(work: Path, experiment: Experiment) -> list[SeedRun]:
    return [
        SeedRun(work, experiment, setting, seed)
        for setting in experiment.settings
        for seed in experiment.seeds
    ]


def _turns(experiment: Experiment, runs: Sequence[SeedRun]) -> list[tuple[int, Part]]:
    """Return the parts by the number of their run: first what others wait for, and of each seed in turn."""
    ordered = [
        (part.contender is not None, position, number, part)
        for number, one in enumerate(runs)
        for position, part in enumerate(parts_of(experiment, one.setting, one.seed))
    ]
    return [(number, part) for _, _, number, part in sorted(ordered, key=lambda turn: turn[:3])]


_runs: list[SeedRun] = []
"""Those of a worker process, so that it loads a data set once."""


def _begin(work: Path, experiment: Experiment) -> None:
    import torch

    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    _runs[:] = _seed_runs(work, experiment)


def _work_at(run: int, part: Part) -> None:
    _runs[run].row(part)


@contextmanager
def _pool(jobs: int, work: Path, experiment: Experiment) -> Iterator[ProcessPoolExecutor]:
    """Yield worker processes that end with this one, also when it is asked to stop in the middle of a part."""
    previous = signal.signal(signal.SIGTERM, _interrupt)
    try:
        with ProcessPoolExecutor(
            max_workers=jobs,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_begin,
            initargs=(work, experiment),
        ) as pool:
            try:
                yield pool
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for worker in multiprocessing.active_children():
                    worker.terminate()
                raise
    finally:
        signal.signal(signal.SIGTERM, previous)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
