"""Tasks of one's own in a federation: own training, a frozen backbone, data in files, and what goes wrong there."""

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
from server.app import AppRun, run_federation
from server.federation.state import FederationState
from strategies.in_process_grid import InProcessGrid
from strategies.task_source import TaskSource
from tests.federation import DEFAULTS
from unlearning.tasks import Examples, Site, Task
from unlearning.tasks.losses import (
    classification_measures,
    cross_entropy,
    regression_measures,
    squared_error,
)
from unlearning.tasks.task import numbered
from unlearning.training import frozen_part

NUM_CLIENTS, NUM_EXAMPLES = 3, 40


def build_model() -> nn.Module:
    """A frozen random backbone of 4,400 parameters and running statistics below a head of 82."""
    backbone = nn.Sequential(
        nn.Flatten(), nn.Linear(16, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Linear(40, 40)
    )
    return nn.Sequential(backbone.requires_grad_(False), nn.ReLU(), nn.Linear(40, 2))


def own_training(model: nn.Module, loader: Any, settings: Any) -> float:
    """What somebody has had before: their own loop."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=settings.learning_rate)
    losses = []
    model.train()
    for _ in range(settings.epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


TASK = Task(
    name="own pictures",
    num_classes=2,
    score_name="accuracy",
    build_model=build_model,
    loss=cross_entropy,
    per_example=classification_measures,
    train=own_training,
)


def make_task(settings: Mapping[str, Any]) -> Task:
    return TASK


def pictures(site: int) -> tuple[np.ndarray, np.ndarray]:
    """Bright pictures and dark ones, as bytes."""
    random = np.random.default_rng(site)
    labels = np.arange(NUM_EXAMPLES) % 2
    return (60 + 100 * labels[:, None, None] + random.integers(0, 60, (NUM_EXAMPLES, 4, 4))).astype(
        np.uint8
    ), labels


def load_site(settings: Mapping[str, Any], node_config: Mapping[str, Any]) -> Site:
    """The site's files, which are never read whole."""
    site, files = int(node_config["partition-id"]), Path(str(settings["files"]))
    mapped = files / f"{site}.npy"
    if not mapped.exists():
        np.save(mapped, pictures(site)[0])
    inputs = np.load(mapped, mmap_mode="r")
    examples = Examples.from_arrays(inputs, pictures(site)[1])
    return Site(examples, examples.select(np.zeros(0, dtype=np.intp)))


def load_test(settings: Mapping[str, Any]) -> Examples | None:
    return Examples.from_arrays(*pictures(99))


class Apps:
    """A federation of these functions; a client may have its own."""

    def __init__(self, directory: Path, load=load_site, test=load_test, make=make_task) -> None:
        self.directory = directory
        self.source, self.test = TaskSource.of(make, "own"), test
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

        nodes = [{"partition-id": number, "num-partitions": NUM_CLIENTS} for number in range(NUM_CLIENTS)]
        grid = InProcessGrid(answer, nodes, config)
        return run_federation(grid, AppRun.of(config, self.source, self.test), run_id=1)

    def report(self) -> dict[str, Any]:
        (path,) = self.directory.glob("state/reports/*/report.json")
        return json.loads(path.read_text(encoding="utf-8"))


def test_own_training_on_a_frozen_backbone_with_data_in_files(tmp_path):
    """The head's 82 numbers are all that travels; what is asked for is forgotten."""
    apps = Apps(tmp_path)
    changes = {"local-epochs": 10, "rounds": 4, "requests": "at=3 client=1 method=puf-special"}
    state = apps.run(**changes)
    assert state.parameters.shape == (82,)
    report = apps.report()
    assert report["request"]["id"] == "r-000001"
    scores = {one["stage"]: one["test"]["score"] for one in report["measurements"]}
    assert scores["before"] > 0.9


def test_a_method_that_differentiates_the_loss_is_refused_with_own_training(tmp_path, caplog):
    """At admission, by its name and the function's."""
    with caplog.at_level(logging.WARNING):
        Apps(tmp_path).run(rounds=3, requests="at=1 client=1 method=newton-cg")
    said = f"Federated Newton-CG works with derivatives of a loss, and this task trains by its own function {__name__}"
    assert said in caplog.text


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


@pytest.mark.parametrize(
    ("functions", "said"),
    [
        ({"make": other_backbone}, "AppError: The frozen part of the model of own pictures has the SHA-256"),
        (
            {"make": lambda _: replace(TASK, train=diverging)},
            "AppError: The training function tests.acceptance.test_own_tasks.diverging returned the loss nan",
        ),
        (
            {"make": lambda _: replace(TASK, train=train_all)},
            "tests.acceptance.test_own_tasks.train_all has changed the frozen part of the model (0.4.weight)",
        ),
        (
            {"make": lambda _: replace(TASK, train=None, loss=nn.CrossEntropyLoss(reduction="none"))},
            "must return one floating-point number",
        ),
        ({"load": load_short}, "ShortDataset says that it holds 50 examples, and number 4"),
    ],
)
def test_a_client_whose_functions_do_not_keep_their_promise_is_left_out_by_name(
    tmp_path, caplog, functions, said
):
    """One sentence with the client and the function; the rounds go on with the others."""
    with caplog.at_level(logging.WARNING):
        state = Apps(tmp_path).at(2, **functions).run(rounds=2)
    assert state.round == 2
    assert set(state.num_examples) == {"0", "1"}
    lines = [line for line in caplog.messages if line.startswith("Client 2 did not take part: ")]
    assert lines
    assert all(said in line and "\n" not in line for line in lines)


def test_a_regression_is_forgotten_and_attacked_as_far_as_that_goes(tmp_path, caplog):
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
    with caplog.at_level(logging.WARNING):
        apps.run(rounds=5, requests="at=1 class=1 method=puf-special; at=3 client=1 method=hf-kcu-influence")
    assert "A class cannot be forgotten here: own numbers is measured by nearness" in caplog.text
    report = apps.report()
    after = report["measurements"][-1]
    assert {"yeom", "confidence"} <= set(after["figures"])
    assert 0.5 < after["test"]["score"] <= 1
    assert [note.partition(":")[0] for note in after["not_measured"]] == ["threshold attacks", "MIA-U"]
