"""Data that changes between rounds: positions that name other samples, and held-out samples that were trained on."""

import json
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


class Growing(Sites):
    """Sites whose rows have ids, of which each draws five that it holds out, by a fixed seed."""

    def load_site(self, _settings: Mapping[str, Any], node_config: Mapping[str, Any]) -> Site:
        rows = torch.from_numpy(TABLE[int(node_config["partition-id"])][self.kept])
        data = Examples(rows, (rows[:, 0] > 0).long(), [f"patient-{number}" for number in self.kept])
        order = np.random.default_rng(0).permutation(len(rows))
        return Site(data.select(order[5:]), data.select(order[:5]))

    def held_out(self) -> set[str]:
        """The ids of what each site holds out now."""
        return set(self.load_site({}, {"partition-id": 1}).test.ids.tolist())

    def num_test(self) -> int:
        """How many held-out samples of all sites the newest report's attack by confidence had."""
        report = max((self.directory / "server" / "reports").glob("*/report.json"))
        return int(json.loads(report.read_text())["attacks"]["after"]["confidence"]["num_test"])


def test_what_was_trained_on_is_not_measured_as_held_out(tmp_path: Path) -> None:
    """With more patients the split is another one, so some of the held-out ones are known to the model."""
    sites = Growing(tmp_path)
    sites.kept = list(range(15))
    first = sites.held_out()
    sites.run(1)
    sites.kept = list(range(20))
    never_used = sites.held_out() & (first | {f"patient-{number}" for number in range(15, 20)})
    assert 0 < len(never_used) < 5
    sites.run(2)
    sites.run(4, "at=2 client=1 samples=patient-3 method=natural")
    assert sites.request()[0] is Status.COMPLETED
    assert sites.num_test() == 3 * len(never_used)


class Exchanging(Growing):
    """Sites that hold out the patients 15 to 19, later other ones."""

    held = range(15, 20)

    def load_site(self, _settings: Mapping[str, Any], node_config: Mapping[str, Any]) -> Site:
        rows = torch.from_numpy(TABLE[int(node_config["partition-id"])])
        data = Examples(rows, (rows[:, 0] > 0).long(), [f"patient-{number}" for number in range(20)])
        return Site(data.select(np.setdiff1d(np.arange(20), self.held)), data.select(np.asarray(self.held)))


def test_what_is_forgotten_is_not_held_out_either(tmp_path: Path) -> None:
    """Nor where the site does not know any more what it trained on; of the other sites all are known."""
    sites = Exchanging(tmp_path)
    script = "at=1 client=1 samples=patient-3 method=natural"
    sites.run(3, script)
    (tmp_path / "1" / "sample-ids").unlink()
    sites.held = range(3, 8)
    sites.run(5, f"{script}; at=3 client=1 samples=patient-9 method=natural")
    assert sites.num_test() == 4
