"""Rows without ids that are taken out of a site's data: a request that names positions would delete other samples."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context, RecordDict
from torch import nn

from client import make_client_app
from server import make_server_app
from server.ledger import Ledger
from server.state_directory.ledger_address import ledger_url
from server.state_directory.subject_key import subject_keys
from strategies.in_process_grid import InProcessGrid
from tests.acceptance.test_user_models import DROPPED
from tests.federation import DEFAULTS
from unlearning.requests import Status
from unlearning.tasks import Examples, Site, Task
from unlearning.tasks.task import numbered

TASK = Task.classifier("a user's", lambda: nn.Linear(6, 2), num_classes=2)
TABLE = np.random.default_rng(0).normal(size=(3, 20, 6)).astype(np.float32)


class Sites:
    """Three sites with state directories, and the rows that the second one has."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.kept = directory, list(range(20))

    def load_site(self, _settings: Mapping[str, Any], node_config: Mapping[str, Any]) -> Site:
        number = int(node_config["partition-id"])
        rows = torch.from_numpy(TABLE[number][self.kept if number == 1 else slice(None)])
        data = Examples(rows, (rows[:, 0] > 0).long(), numbered(len(rows)))
        return Site(data.select(np.arange(len(rows) - 4)), data.select(np.arange(len(rows) - 4, len(rows))))

    def run(self, rounds: int, requests: str = "") -> None:
        """Go on until there were so many rounds, each client in a new process."""
        given = {name: value for name, value in DEFAULTS.items() if name not in DROPPED}
        settings = {
            **given,
            "rounds": rounds,
            "num-clients": 3,
            "max-attempts": 1,
            "requests": requests,
            "state-dir": str(self.directory / "server"),
        }
        nodes = [
            {"partition-id": number, "num-partitions": 3, "state-dir": str(self.directory / str(number))}
            for number in range(3)
        ]
        grid = InProcessGrid(make_client_app(lambda _: TASK, self.load_site, table="own"), nodes, settings)
        app = make_server_app(lambda _: TASK, table="own")
        app(grid, Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=settings))

    def request(self) -> tuple[Status, str]:
        """The status of the one request, and its reason."""
        ledger = Ledger.open(ledger_url(self.directory / "server"), subject_keys(self.directory / "server"))
        try:
            (found,) = ledger.requests.select()
        finally:
            ledger.close()
        return found.status, found.reason


def test_a_position_names_no_sample_once_rows_have_moved(tmp_path: Path) -> None:
    """Its owner takes the row out, training goes on, and the request names the position that the row had."""
    sites = Sites(tmp_path)
    sites.run(1)
    sites.kept.remove(5)
    sites.run(2)
    sites.run(4, "at=2 client=1 samples=5 method=natural")
    status, reason = sites.request()
    assert status is Status.FAILED
    assert "An id may name another sample now" in reason


def test_a_position_names_its_sample_while_rows_stay(tmp_path: Path) -> None:
    """New ones come at the end."""
    sites = Sites(tmp_path)
    sites.run(1)
    sites.kept.append(3)
    sites.run(4, "at=2 client=1 samples=5 method=natural")
    assert sites.request()[0] is Status.COMPLETED
