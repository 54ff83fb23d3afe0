"""Experiment files, tables and a whole small experiment."""

import json
from pathlib import Path

import pytest

from server.bench import figures, runner, tables
from server.bench.experiment import Case, Experiment, found, shipped
from server.bench.parts import parts_of
from unlearning.errors import ConfigurationError
from unlearning.requests import Granularity

TINY = """
name: tiny
title: A tiny experiment
run: {dataset: digits, model: logistic, num-clients: 3, rounds: 2, learning-rate: 0.5, recovery-max-rounds: 1,
      max-examples: 120}
seeds: [0]
cases:
  - {name: one client, clients: ["0"]}
methods: [natural, puf-special, {method: federaser, prepare: federaser}]
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "experiment.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", sorted(shipped()))
def test_every_shipped_experiment_is_in_order(name):
    """It reads, and is called what its file is called."""
    assert Experiment.read(found(name)).name == name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("seeds: [0]", "seeds: []"), "seeds"),
        (("natural", "amnesia"), "Unknown method 'amnesia'"),
        (("prepare: federaser", "prepare: ''"), "it needs prepare"),
        (('clients: ["0"]', 'clients: ["7"]'), "there is no client 7"),
        (('clients: ["0"]', "share: 0.5"), "either clients or a class"),
        (("rounds: 2", "rounds: -2"), "run: rounds"),
        (("natural, ", "natural, natural, "), "natural is there twice"),
        (("title: A tiny experiment", "title: [a, b"), "is no YAML"),
    ],
)
def test_a_wrong_file_is_refused_with_the_reason(tmp_path, change, message):
    """What is wrong is named, so that the file can be mended without reading our code."""
    with pytest.raises(ConfigurationError, match=message):
        Experiment.read(written(tmp_path, TINY.replace(*change)))


def test_an_unknown_experiment_is_refused_with_the_list():
    """The message lists those that come along."""
    with pytest.raises(ConfigurationError, match="digits-small"):
        found("no-such-experiment")


def test_a_case_says_at_which_level_it_forgets():
    """Whole clients, a share of samples, or a class; of four samples the first half is two."""
    assert Case(name="c", clients=("0",)).granularity is Granularity.CLIENT
    assert Case.model_validate({"name": "c", "class": 3}).granularity is Granularity.CLASS
    half = Case(name="c", clients=("0",), share=0.5)
    (target,) = half.targets({"0": ["d", "a", "b", "c"]})
    assert target.sample_ids == {"d", "a"}


def test_a_method_runs_only_where_it_serves(tmp_path):
    """FedEraser forgets clients; it has no part in a case of samples."""
    text = TINY.replace('clients: ["0"]}', 'clients: ["0"], share: 0.5}')
    names = [part.name for part in parts_of(Experiment.read(written(tmp_path, text)))]
    assert names == ["original", "retrain", "natural", "puf-special"]


def row(seed: int, method: str, forget: float, size: int) -> dict:
    return {
        "seed": seed,
        "case": "one client",
        "method": method,
        "test": 0.5,
        "retained": 0.5,
        "forget": forget,
        "attacks": {},
        "bytes": size,
        "flops": 0.0,
        "seconds": 1.0,
        "recovery_rounds": 1,
    }


def test_a_table_shows_mean_spread_distance_and_gain(tmp_path):
    """By hand: 60 and 80 % against 50 and 90 %: mean 70, spread 14.1, distance 10; 100 bytes to 400: 4 times."""
    rows = [
        row(0, "puf-special", 0.6, 100),
        row(1, "puf-special", 0.8, 100),
        row(0, "retrain", 0.5, 400),
        row(1, "retrain", 0.9, 400),
    ]
    text = tables.markdown(Experiment.read(written(tmp_path, TINY)), rows, {"experiment": "tiny"})
    assert "70.0 ± 14.1 (10.0)" in text
    assert "100 (4.0×)" in text


def test_a_method_that_failed_is_said_to_have_failed(tmp_path):
    """Its cells are empty, and the reason stands below the table."""
    rows = [
        {
            "seed": 0,
            "case": "one client",
            "method": "puf-special",
            "attacks": {},
            "failed": "failed: it blew up",
        },
        row(0, "original", 0.6, 100),
        row(0, "retrain", 0.5, 400),
    ]
    experiment = Experiment.read(written(tmp_path, TINY))
    text = tables.markdown(experiment, rows, {"experiment": "tiny"})
    assert "- puf-special, seed 0: failed: it blew up" in text
    assert "| puf-special | – | – |" in text
    assert figures.draw(experiment, rows, tmp_path / "tiny") == []


def test_a_whole_experiment_runs_and_goes_on_where_it_stopped(tmp_path):
    """Every part gives a row; a second run does no part again; tables and figures come out."""
    experiment = Experiment.read(written(tmp_path, TINY))
    seen: list[tuple[int, int]] = []
    rows = runner.run(
        experiment, tmp_path / "work", jobs=1, progress=lambda done, total, _: seen.append((done, total))
    )
    assert [item["method"] for item in rows] == ["original", "retrain", "natural", "puf-special", "federaser"]
    assert seen[-1] == (5, 5)
    by_name = {item["method"]: item for item in rows}
    assert by_name["federaser"]["server_bytes"] > 0 == by_name["puf-special"]["server_bytes"]
    assert by_name["natural"]["bytes"] > 0
    assert by_name["retrain"]["bytes"] < by_name["original"]["bytes"]
    files = {
        path: path.stat().st_mtime_ns
        for path in runner.work_directory(tmp_path / "work", experiment).rglob("*--*.json")
    }
    assert rows == runner.run(experiment, tmp_path / "work", jobs=1, progress=lambda *_: None)
    assert files == {path: path.stat().st_mtime_ns for path in files}
    assert json.dumps(rows)
    (figure,) = figures.draw(experiment, rows, tmp_path / "tiny")
    assert figure.stat().st_size > 10_000
    text = tables.markdown(experiment, rows, runner.circumstances(experiment))
    assert "| federaser |" in text


def test_other_settings_have_parts_of_their_own(tmp_path):
    """Finished parts of another configuration are never mixed in."""
    one = Experiment.read(written(tmp_path, TINY))
    other = Experiment.read(written(tmp_path, TINY.replace("rounds: 2", "rounds: 3")))
    assert runner.work_directory(tmp_path, one) != runner.work_directory(tmp_path, other)
