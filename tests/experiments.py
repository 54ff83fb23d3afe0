"""Experiments of the bench, for its tests."""

from pathlib import Path

from benchmarks.bench import runner
from benchmarks.bench.columns import Row
from benchmarks.bench.experiment import Experiment


def written(directory: Path, text: str) -> Path:
    """An experiment's file."""
    path = directory / "experiment.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def read(directory: Path, text: str) -> Experiment:
    """An experiment, by way of a file."""
    return Experiment.read(written(directory, text))


def rows_of(experiment: Experiment, work: Path, *, jobs: int = 1) -> list[Row]:
    """Run an experiment to its end, or what is left of it."""
    return runner.run(experiment, work, jobs=jobs, progress=lambda *_: None)
