"""An app with a task and data of its own in a federation: what it is given, what is forgotten, and mistakes in it."""

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
from server.federation.checkpoints import CheckpointStore
from server.federation.first_answers import FirstAnswers
from server.federation.state import FederationState, RoundResult
from strategies import built_in
from strategies.exchange import Exchange, Failure
from strategies.in_process_grid import run_apps
from strategies.round_plan import RoundOutcome
from strategies.settings.run_config import RunSettings
from strategies.settings.task_source import TaskSource
from tests.federation import DEFAULTS
from tests.own_pictures import (
    NUM_EXAMPLES,
    TASK,
    build_model,
    load_site,
    load_test,
    make_task,
    own_training,
    pictures,
)
from tests.raising import refuses
from unlearning.errors import AppError, ConfigurationError, TrainingFailed
from unlearning.tasks import Examples, Site, Task
from unlearning.tasks.losses import regression_measures, squared_error
from unlearning.tasks.task import numbered
from unlearning.training import frozen_part

NUM_CLIENTS = 3
Settings = Mapping[str, Any]


class Apps:
    """A federation of an app's functions; a client may have its own."""

    def __init__(self, directory: Path, load=load_site, test=load_test, make=make_task) -> None:
        self.directory = directory
        self.server = make_server_app(make, test, table="own")
        self.clients = {None: make_client_app(make, load, table="own")}

    def at(self, client: int, make=make_task, load=load_site) -> "Apps":
        """Give one client other functions than the rest."""
        self.clients[client] = make_client_app(make, load, table="own")
        return self

    def run(self, **changes: Any) -> FederationState:
        own = {
            "num-clients": NUM_CLIENTS,
            "own.files": str(self.directory),
            "state-dir": str(self.directory / "state"),
        }
        dropped = ("dataset", "model", "partition", "alpha")
        config = {name: value for name, value in DEFAULTS.items() if name not in dropped} | own | changes

        def answer(message: Message, context: Context) -> Message:
            one = self.clients.get(int(context.node_config["partition-id"]), self.clients[None])
            return one(message, context)

        run_apps(self.server, answer, config, num_clients=NUM_CLIENTS)
        state = CheckpointStore(self.directory / "state" / "checkpoints").newest()
        assert state is not None
        return state

    def report(self) -> dict[str, Any]:
        (path,) = self.directory.glob("state/reports/*/report.json")
        return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture
def logged(caplog, monkeypatch) -> pytest.LogCaptureFixture:
    """The log; a ServerApp keeps Flower's from who listens above."""
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(logging.getLogger("flwr"), "handlers", [])
    return caplog


@pytest.mark.slow
def test_own_training_on_a_frozen_backbone_with_data_in_files(tmp_path):
    """The head's 82 numbers are all that travels; what is asked for is forgotten; the report names the task."""
    apps = Apps(tmp_path)
    changes = {"local-epochs": 10, "rounds": 4, "requests": "at=3 client=1 method=puf-special"}
    state = apps.run(**changes)
    assert state.parameters.shape == (82,)
    report = apps.report()
    assert report["request"]["id"] == "r-000001"
    assert report["federation"]["task"] == "own pictures"
    assert report["federation"]["clients_retained"] == ["0", "2"]
    tests = {one["stage"]: one["test"] for one in report["measurements"]}
    assert tests["before"]["score"] > 0.9
    assert tests["before"]["num_examples"] == NUM_EXAMPLES


def test_a_method_that_differentiates_the_loss_is_refused_with_own_training(tmp_path):
    """Before the first round, by its name and the function's."""
    with pytest.raises(
        ConfigurationError, match=r"own function tests\.own_pictures\.own_training"
    ) as refused:
        Apps(tmp_path).run(rounds=3, requests="at=1 client=1 method=newton-cg")
    assert "Federated Newton-CG works with derivatives of a loss" in str(refused.value)


def test_a_deletion_behind_a_frozen_backbone_is_certified(tmp_path):
    """A linear head on fixed features, whose norm is what is declared; that of the pictures is a hundred times it."""
    task = replace(TASK, train=None, dtype=torch.float64)
    apps = Apps(tmp_path, make=lambda _: task)
    state = apps.run(
        **{"rounds": 3, "learning-rate": 0.05, "weight-decay": 0.1, "recovery-max-rounds": 0},
        prepare="hf-online feature_norm=4 sigma=0.5 epsilon=500 delta=1e-5",
        requests="at=2 client=1 method=hf-online",
    )
    assert state.parameters.shape == (82,)
    account = apps.report()["unlearning"]["findings"]["privacy account"]
    assert account["basis"] == "proven", account["statement"]
    assert f"on the features of the frozen network {frozen_part(task)[:16]}" in account["constants"]


def other_backbone(settings: Mapping[str, Any]) -> Task:
    def build() -> nn.Module:
        model = build_model()
        with torch.no_grad():
            model[0][1].bias.add_(0.5)
        return model

    return replace(TASK, build_model=build)


def diverging(model: nn.Module, loader: Any, settings: Any) -> float:
    return float("nan")


def train_all(model: nn.Module, loader: Any, settings: Any) -> float:
    """Its optimiser has the backbone too, for it sets requires_grad itself and takes it back."""
    with torch.no_grad():
        model[0][4].weight.mul_(0.9)
    return own_training(model, loader, settings)


class ShortDataset(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        inputs, labels = pictures(2)
        return torch.from_numpy(inputs[index]), int(labels[index])


def load_short(settings: Mapping[str, Any], node_config: Mapping[str, Any]) -> Site:
    examples = Examples.from_dataset(ShortDataset())
    return Site(examples, examples.select(np.zeros(0, dtype=np.intp)))


def raises(settings: Settings) -> Task:
    return replace(TASK, name=settings["no such key"])


def nothing(settings: Settings) -> None:
    return None


def larger(settings: Settings) -> Task:
    return replace(
        TASK, build_model=lambda: nn.Sequential(*build_model()[:-1], nn.Linear(40, 40), nn.Linear(40, 2))
    )


def losses(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def unreadable(settings: Settings, node_config: Mapping[str, Any]) -> Site:
    raise OSError("the disk is away")


def repeated(settings: Settings, node_config: Mapping[str, Any]) -> Site:
    site = load_site(settings, node_config)
    twins = Examples(site.train.inputs, site.train.targets, np.array(["twin"] * NUM_EXAMPLES))
    return replace(site, train=twins)


def bare(settings: Settings, node_config: Mapping[str, Any]) -> Examples:
    return load_site(settings, node_config).train


@pytest.mark.parametrize(
    ("functions", "said"),
    [
        ({"make": raises}, "test_own_app.raises raised KeyError: 'no such key' (/"),
        ({"make": nothing}, "test_own_app.nothing must return a unlearning.tasks.task.Task, got None"),
        (
            {"make": larger},
            "The model of tests.acceptance.test_own_app.larger on this machine: The model has 1,722",
        ),
        (
            {"make": lambda _: replace(TASK, train=None, loss=losses)},
            "test_own_app.losses must return one floating-point number",
        ),
        (
            {"make": lambda _: replace(TASK, build_model=dict)},
            "builtins.dict must return a torch.nn.modules.module.Module, got dict {}",
        ),
        ({"make": other_backbone}, "The frozen part of the model of own pictures has the SHA-256"),
        (
            {"make": lambda _: replace(TASK, train=diverging)},
            "The training function tests.acceptance.test_own_app.diverging returned the loss nan",
        ),
        (
            {"make": lambda _: replace(TASK, train=train_all)},
            "tests.acceptance.test_own_app.train_all has changed the frozen part of the model (0.4.weight)",
        ),
        ({"load": unreadable}, "test_own_app.unreadable raised OSError: the disk is away"),
        (
            {"load": repeated},
            "test_own_app.repeated (train) must give each example an id of its own, got 'twin' 40 times",
        ),
        ({"load": bare}, "test_own_app.bare must return a unlearning.tasks.task.Site, got Examples"),
        ({"load": load_short}, "ShortDataset says that it holds 50 examples, and number 4"),
    ],
)
def test_a_client_whose_functions_do_not_keep_their_promise_is_left_out_by_name(
    tmp_path, logged, functions, said
):
    """One sentence with the client and the function; the rounds go on with the others."""
    state = Apps(tmp_path).at(2, **functions).run(rounds=2)
    assert state.round == 2
    assert set(state.num_examples) == {"0", "1"}
    lines = [line for line in logged.messages if line.startswith("Client 2 did not take part: ")]
    assert lines
    assert all(said in line and "\n" not in line for line in lines)


@pytest.mark.parametrize("rounds", [2, 0])
def test_a_run_in_which_no_client_can_train_ends_as_failed(tmp_path, rounds):
    """With the reason of one; a live run once all that are expected have failed for as long as it waits for clients."""
    with pytest.raises(TrainingFailed) as caught:
        Apps(tmp_path, load=unreadable).run(rounds=rounds)
    assert "of client 0: " in str(caught.value)
    assert "test_own_app.unreadable raised OSError: the disk is away" in str(caught.value)
    assert "(2 more failed)" in str(caught.value)


def test_a_live_run_waits_for_clients_that_come_later(monkeypatch):
    """Two of three fail for an hour, then the third trains; what fails later ends nothing."""
    clock = iter(range(0, 36_000, 600))
    monkeypatch.setattr("server.federation.first_answers.time.monotonic", lambda: float(next(clock)))
    watch = FirstAnswers(RunSettings(rounds=0, num_clients=3))
    nobody = FederationState(parameters=np.zeros(1))
    for _ in range(6):
        watch.after_round(failing(nobody, "0", "1"))
    watch.after_round(failing(nobody, "0", "1", "2"))
    learnt = replace(nobody, num_examples={"2": 5})
    for _ in range(6):
        watch.after_round(failing(learnt, "0", "1", "2"))
    watch.after_round(failing(nobody, "0", "1", "2"))
    with pytest.raises(TrainingFailed):
        watch.after_round(failing(nobody, "0", "1", "2"))


def failing(state: FederationState, *clients: str) -> RoundResult:
    """A round in which each of these has failed."""
    exchange = Exchange(failures={client: Failure("the disk is away") for client in clients})
    return RoundResult(state=state, exchange=exchange, outcome=RoundOutcome(), memory=None)


def test_a_request_for_a_client_with_a_mistake_is_not_lost(tmp_path):
    """Its disk comes back in time for another attempt."""
    broken = [True, True]

    def sometimes(settings: Settings, node_config: Mapping[str, Any]) -> Site:
        if broken:
            broken.pop()
            raise OSError("the disk is away")
        return load_site(settings, node_config)

    apps = Apps(tmp_path).at(1, load=sometimes)
    apps.run(rounds=6, requests="at=1 client=1 method=puf-special")
    assert apps.report()["request"]["id"] == "r-000001"


@pytest.mark.parametrize(
    ("task", "test"), [(raises, load_test), (nothing, load_test), (make_task, lambda _: [1])]
)
def test_a_mistake_at_the_server_ends_the_start_in_a_sentence(tmp_path, task, test):
    """Before anything is written."""
    with pytest.raises(AppError):
        Apps(tmp_path, test=test, make=task).run()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [("learning-rat", "learning-rate"), ("owm.inputs", "own"), ("dataset", "tool.flwr.app.config.own")],
)
def test_a_mistyped_setting_is_refused_with_the_nearest_name(wrong, nearest):
    """The app's own are the app's."""
    source = TaskSource.of(make_task, "own")
    with refuses(wrong) as caught:
        source.read({"own.inputs": 5, wrong: 1})
    assert nearest in str(caught.value)
    assert source.read({"own.anything": 1, "rounds": 3}).own == {"anything": 1}


def test_the_table_has_the_name_of_the_package():
    """Of the function that makes the task."""
    assert TaskSource.of(make_task).table == "tests"


def test_built_in_tasks_take_no_table():
    """A key with a dot belongs to no table."""
    with refuses("hospital.depth"):
        built_in.SOURCE.read({"hospital.depth": 3})


def test_a_regression_is_forgotten_and_attacked_as_far_as_that_goes(tmp_path):
    """Targets of two numbers, token ids as inputs; a class is refused, attacks on labels are not measured."""

    def make(settings: Mapping[str, Any]) -> Task:
        return Task(
            name="own numbers",
            num_classes=0,
            score_name="nearness",
            build_model=lambda: nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(20, 2)),
            loss=squared_error,
            per_example=regression_measures,
        )

    def words(site: int) -> Examples:
        random = np.random.default_rng(site)
        tokens = torch.from_numpy(random.integers(0, 10, (NUM_EXAMPLES, 5)))
        targets = torch.stack([(tokens < 5).double().mean(dim=1), tokens.double().mean(dim=1) / 10], dim=1)
        return Examples(tokens, targets, numbered(NUM_EXAMPLES))

    def load(settings: Mapping[str, Any], node_config: Mapping[str, Any]) -> Site:
        own = words(int(node_config["partition-id"]))
        return Site(own.select(np.arange(30)), own.select(np.arange(30, NUM_EXAMPLES)))

    apps = Apps(tmp_path, load, lambda _: words(99), make)
    with refuses("requests, entry 1 (class 1 on every client)"):
        apps.run(rounds=5, requests="at=1 class=1 method=puf-special")
    apps.run(rounds=5, requests="at=3 client=1 method=hf-kcu-influence")
    report = apps.report()
    after = report["measurements"][-1]
    assert {"yeom", "confidence"} <= set(after["figures"])
    assert 0.5 < after["test"]["score"] <= 1
    assert [note.partition(":")[0] for note in after["not_measured"]] == ["threshold attacks", "MIA-U"]
