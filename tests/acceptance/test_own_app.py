"""An app with a task and data of its own: what it is given, and what becomes of mistakes in it."""

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, Message
from torch import nn

from client import make_client_app
from server import make_server_app
from strategies.in_process_grid import run_apps
from strategies.task_source import TaskSource
from tests.tasks import tiny_classification
from unlearning.errors import AppError, ConfigurationError
from unlearning.tasks import Examples, Site, Task

Settings = Mapping[str, Any]


def make_task(settings: Settings) -> Task:
    """Two classes of points in `inputs` dimensions."""
    return replace(tiny_classification(lambda: nn.Linear(settings["inputs"], 2)), name="points")


def load_site(settings: Settings, node_config: Mapping[str, Any]) -> Site:
    """Forty points of this client's own."""
    return Site(points(settings, 40, int(node_config["partition-id"])), points(settings, 0, 0))


def load_test(settings: Settings) -> Examples | None:
    """Points that no client has."""
    return points(settings, 50, 99)


def points(settings: Settings, count: int, seed: int) -> Examples:
    inputs = np.random.default_rng(seed).normal(size=(count, settings["inputs"]))
    targets = (inputs.sum(axis=1) > 0).astype(np.int64)
    ids = np.array([f"{seed}-{number}" for number in range(count)], dtype=np.str_)
    return Examples(torch.from_numpy(inputs), torch.from_numpy(targets), ids)


def config(directory: Path, **more: object) -> dict[str, Any]:
    return {
        "state-dir": str(directory),
        "num-clients": 3,
        "rounds": 2,
        "attack-samples": 10,
        "recovery-max-rounds": 1,
        "max-score-loss": 0.0,
        "wait-timeout-s": 1.0,
        "own.inputs": 5,
        **{name.replace("_", "-"): value for name, value in more.items()},
    }


SERVER = make_server_app(make_task, load_test, table="own")
CLIENT = make_client_app(make_task, load_site, table="own")


def run_with(client_1: Any, directory: Path, **more: object) -> None:
    """Run a federation whose client 1 has another app."""

    def app(message: Message, context: Context) -> Message:
        return (client_1 if context.node_config["partition-id"] == 1 else CLIENT)(message, context)

    run_apps(SERVER, app, config(directory, **more), num_clients=3)


def test_an_own_app_learns_and_forgets(tmp_path):
    """From its own data, with a setting of its own; the report names its task."""
    run_apps(SERVER, CLIENT, config(tmp_path, requests="at=1 client=2"), num_clients=3)
    report = json.loads((tmp_path / "reports" / "r-000001" / "report.json").read_text())
    assert report["federation"]["task"] == "points"
    assert report["federation"]["clients_retained"] == ["0", "1"]
    assert report["measurements"][-1]["test"]["num_examples"] == 50


def raises(settings: Settings) -> Task:
    return make_task({"inputs": settings["no such key"]})


def nothing(settings: Settings) -> None:
    return None


def larger(settings: Settings) -> Task:
    return make_task({"inputs": settings["inputs"] + 1})


def losses(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def not_scalar(settings: Settings) -> Task:
    return replace(make_task(settings), loss=losses)


def no_model(settings: Settings) -> Task:
    return replace(make_task(settings), build_model=dict)


def unreadable(settings: Settings, node_config: Mapping[str, Any]) -> Site:
    raise OSError("the disk is away")


def repeated(settings: Settings, node_config: Mapping[str, Any]) -> Site:
    site = load_site(settings, node_config)
    twins = Examples(site.train.inputs, site.train.targets, np.array(["twin"] * 40))
    return replace(site, train=twins)


def bare(settings: Settings, node_config: Mapping[str, Any]) -> Examples:
    return load_site(settings, node_config).train


@pytest.mark.parametrize(
    ("task", "site", "words"),
    [
        (raises, load_site, "test_own_app.raises raised KeyError: 'no such key' (/"),
        (nothing, load_site, "test_own_app.nothing must return a unlearning.tasks.task.Task, got None"),
        (
            larger,
            load_site,
            "The model of tests.acceptance.test_own_app.larger on this machine: The model has 14",
        ),
        (not_scalar, load_site, "test_own_app.losses must return one floating-point number"),
        (no_model, load_site, "builtins.dict must return a torch.nn.modules.module.Module, got dict {}"),
        (make_task, unreadable, "test_own_app.unreadable raised OSError: the disk is away"),
        (make_task, repeated, "must give each example an id of its own, got 'twin' 40 times"),
        (make_task, bare, "test_own_app.bare must return a unlearning.tasks.task.Site, got Examples"),
    ],
)
def test_a_mistake_at_one_client_is_one_sentence_and_the_round_goes_on(
    tmp_path, caplog, monkeypatch, task, site, words
):
    """It names the client, the function and what was got; the others make the model."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(logging.getLogger("flwr"), "handlers", [])  # so that the lines reach caplog's
    run_with(make_client_app(task, site, table="own"), tmp_path)
    said = [line for line in caplog.messages if words in line]
    assert said, caplog.messages
    assert "client 1" in said[0].lower()
    assert "\n" not in said[0]
    assert sum("2 of 3 client(s)" in line for line in caplog.messages) == 2


def test_a_request_for_a_client_with_a_mistake_is_not_lost(tmp_path):
    """Its disk comes back in time for another attempt."""
    broken = [True, True]

    def sometimes(settings: Settings, node_config: Mapping[str, Any]) -> Site:
        if broken:
            broken.pop()
            raise OSError("the disk is away")
        return load_site(settings, node_config)

    run_with(
        make_client_app(make_task, sometimes, table="own"),
        tmp_path,
        rounds=6,
        requests="at=1 client=1 method=puf-special",
    )
    assert (tmp_path / "reports" / "r-000001" / "report.json").exists()


@pytest.mark.parametrize(
    ("task", "test", "words"),
    [
        (raises, load_test, "raises raised KeyError"),
        (nothing, load_test, "nothing must return"),
        (make_task, lambda _: [1], "must return Examples or None, got list"),
    ],
)
def test_a_mistake_at_the_server_ends_the_start_in_a_sentence(tmp_path, task, test, words):
    """Before anything is written."""
    app = make_server_app(task, test, table="own")
    with pytest.raises(AppError, match=words):
        run_apps(app, CLIENT, config(tmp_path / "new"), num_clients=1)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"learning-rat": 0.1}, "learning-rat: there is no such setting. Did you mean learning-rate?"),
        ({"owm.inputs": 5}, "owm.inputs: there is no table 'owm', did you mean own?"),
        ({"dataset": "digits"}, r"dataset: a setting of the built-in tasks.*\[tool.flwr.app.config.own\]"),
    ],
)
def test_a_mistyped_setting_is_refused_with_the_nearest_name(wrong, words):
    """The app's own are the app's."""
    source = TaskSource.of(make_task, "own")
    with pytest.raises(ConfigurationError, match=words):
        source.read({"own.inputs": 5, **wrong})
    assert source.read({"own.anything": 1, "rounds": 3}).own == {"anything": 1}


def test_the_table_has_the_name_of_the_package():
    """Of the function that makes the task."""
    assert TaskSource.of(make_task).table == "tests"


def test_built_in_tasks_take_no_table():
    """A key with a dot is nobody's."""
    from strategies import built_in

    with pytest.raises(
        ConfigurationError, match=r"hospital.depth: there is no table 'hospital'; the built-in"
    ):
        built_in.SOURCE.read({"hospital.depth": 3})
