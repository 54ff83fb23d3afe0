"""An app of one's own that trains in milliseconds: two classes of eight numbers, a convex loss, three sites."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message, RecordDict
from flwr.serverapp import ServerApp
from torch import nn

from client import make_client_app
from server import make_server_app
from server.federation.checkpoints import CheckpointStore
from server.federation.state import FederationState
from strategies.in_process_grid import InProcessGrid
from strategies.messages import values_of
from unlearning.tasks import Examples, Site, Task
from unlearning.tasks.losses import classification_measures, cross_entropy

NUM_CLIENTS = 3
TASK = Task(
    name="small",
    num_classes=2,
    score_name="accuracy",
    build_model=lambda: nn.Linear(8, 2),
    loss=cross_entropy,
    per_example=classification_measures,
)
SETTINGS: Mapping[str, Any] = {
    "num-clients": NUM_CLIENTS,
    "rounds": 3,
    "recovery-max-rounds": 1,
    "max-score-loss": 0.0,
    "attack-samples": 10,
    "wait-timeout-s": 0.2,
}


def make_task(settings: Mapping[str, Any]) -> Task:
    return TASK


def examples(seed: int, count: int = 40) -> Examples:
    inputs = torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))
    ids = np.array([f"e{number}" for number in range(count)], dtype=np.str_)
    return Examples(inputs, (inputs.sum(dim=1) + 0.1 * seed > 0).long(), ids)


def load_site(settings: Mapping[str, Any], node_config: Mapping[str, Any]) -> Site:
    return Site(train=examples(int(node_config["partition-id"])), test=examples(0, count=0))


def load_test(settings: Mapping[str, Any]) -> Examples | None:
    return None


class SmallApp:
    """The app in a directory, with mods and a strategy; `answers` are what its clients sent, in order."""

    kind_of_grid: type[InProcessGrid] = InProcessGrid

    def __init__(self, directory: Path, *, mods: Any = (), **server: Any) -> None:
        self.directory = directory
        self.client = make_client_app(make_task, load_site, table="own", mods=mods)
        self.server: Callable[..., Any] = self.server_app(**server)
        self.offline: set[int] = set()
        self.answers: list[tuple[Message, Message]] = []

    def server_app(self, **server: Any) -> ServerApp:
        return make_server_app(make_task, load_test, table="own", **server)

    def grid(self, config: Mapping[str, Any]) -> InProcessGrid:
        """Its clients; client i has the partition i."""

        def answer(message: Message, context: Context) -> Message:
            reply = self.client(message, context)
            self.answers.append((message, reply))
            return reply

        nodes = [{"partition-id": number, "num-partitions": NUM_CLIENTS} for number in range(NUM_CLIENTS)]
        grid = self.kind_of_grid(answer, nodes, config)
        grid.offline = self.offline
        return grid

    def run(self, **changes: Any) -> FederationState:
        """Run to the end, from where the last run ended; the last state."""
        given = {name.replace("_", "-"): value for name, value in changes.items()}
        config = {**SETTINGS, "state-dir": str(self.directory), **given}

        grid = self.grid(config)
        context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=config)
        self.server(grid, context)
        state = CheckpointStore(self.directory / "checkpoints").newest()
        assert state is not None
        return state

    def errors(self, kind: str) -> list[str]:
        """Why messages of a type were not answered."""
        replies = [reply for message, reply in self.answers if message.metadata.message_type == kind]
        found = [values_of(reply.content) for reply in replies]
        return [
            values.get("failed", values)["error"] for values in found if {"error", "failed"} & set(values)
        ]
