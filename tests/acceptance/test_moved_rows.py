"""Data that changes between rounds: positions that name other samples, and held-out samples that were trained on."""

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from torch import nn

from client import make_client_app
from server import make_server_app
from server.deletion import queue
from server.ledger import Ledger
from server.ledger.records import NewRequest
from server.requests import admission
from server.requests.admission import admit
from server.requests.recommending import Recommendation
from server.state_directory.ledger_address import ledger_url
from server.state_directory.subject_key import subject_keys
from strategies.in_process_grid import InProcessGrid
from tests.acceptance.test_user_models import DROPPED
from tests.cases import slow_but
from tests.federation import DEFAULTS
from unlearning.advice import CODE
from unlearning.methods.registry import METHODS
from unlearning.requests import DeletionRequest, Granularity, Status, Target
from unlearning.tasks import Examples, Site, Task
from unlearning.tasks.task import numbered

TASK = Task.classifier("a user's", lambda: nn.Linear(6, 2), num_classes=2)
PATIENT = Target(Granularity.SAMPLE, "1", frozenset({"patient-5"}))
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

    def run(self, rounds: int, requests: str = "", **changes: str) -> None:
        """Go on until there were so many rounds, each client in a new process."""
        given = {name: value for name, value in DEFAULTS.items() if name not in DROPPED}
        settings = {
            **given,
            "rounds": rounds,
            "num-clients": 3,
            "max-attempts": 1,
            "requests": requests,
            "state-dir": str(self.directory / "server"),
            **changes,
        }
        nodes = [
            {"partition-id": number, "num-partitions": 3, "state-dir": str(self.directory / str(number))}
            for number in range(3)
        ]
        grid = InProcessGrid(make_client_app(lambda _: TASK, self.load_site, table="own"), nodes, settings)
        app = make_server_app(lambda _: TASK, table="own")
        app(grid, Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=settings))

    def ledger(self) -> AbstractContextManager[Ledger]:
        """The federation's ledger while no run has it."""
        return closing(
            Ledger.open(ledger_url(self.directory / "server"), subject_keys(self.directory / "server"))
        )

    def requests(self) -> list[DeletionRequest]:
        """All requests."""
        with self.ledger() as ledger:
            return list(ledger.requests.select())

    def request(self) -> DeletionRequest:
        """The one request."""
        (found,) = self.requests()
        return found


def test_a_position_names_no_sample_once_rows_have_moved(tmp_path: Path) -> None:
    """Its owner takes the row out, training goes on, and the request names the position that the row had."""
    sites = Sites(tmp_path)
    sites.run(1)
    sites.kept.remove(5)
    sites.run(2)
    sites.run(4, "at=2 client=1 samples=5 method=natural")
    assert sites.request().status is Status.FAILED
    assert "An id may name another sample now" in sites.request().reason


def test_a_position_names_its_sample_while_rows_stay(tmp_path: Path) -> None:
    """New ones come at the end."""
    sites = Sites(tmp_path)
    sites.run(1)
    sites.kept.append(3)
    sites.run(4, "at=2 client=1 samples=5 method=natural")
    assert sites.request().status is Status.COMPLETED


class Named(Sites):
    """Sites whose rows have ids."""

    def load_site(self, _settings: Mapping[str, Any], node_config: Mapping[str, Any]) -> Site:
        number = int(node_config["partition-id"])
        kept = self.kept if number == 1 else list(range(20))
        rows = torch.from_numpy(TABLE[number][kept])
        data = Examples(rows, (rows[:, 0] > 0).long(), [f"patient-{one}" for one in kept])
        return Site(data, data.select(np.arange(0)))


WITHOUT = (
    "retrain",
    "exact-ridge",
    "natural",
    "not",
    "newton-cg",
    "fedmemprune",
    "sisa",
    "noisy-fine-tuning",
)


@pytest.mark.parametrize("method", slow_but(("retrain",), WITHOUT))
def test_a_sample_whose_row_is_gone_is_forgotten_without_it(tmp_path: Path, method: str) -> None:
    """Its owner took the row out first, as people do who are asked to erase it; the model still knows it."""
    sites = Named(tmp_path)
    settings = {"prepare": method} if METHODS[method].info.preparation else {}
    sites.run(2, **settings)
    sites.kept.remove(5)
    sites.run(3, **settings)
    assert (tmp_path / "1" / "removed-samples").read_text().split() == ["patient-5"]
    sites.run(6, f"at=3 client=1 samples=patient-5 method={method}", **settings)
    assert sites.request().status is Status.COMPLETED
    assert (tmp_path / "1" / "removed-samples").read_text() == ""  # a hash of the id is enough from now on


@pytest.mark.parametrize("approval", slow_but(("officer",), ("none", "officer")))
def test_where_the_method_is_left_to_the_federation_it_takes_one_that_needs_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, approval: str
) -> None:
    """As a privacy tool does that has the row erased and files the request at once."""
    sites = Named(tmp_path)
    sites.run(2, approval=approval)
    sites.kept.remove(5)
    advised = Recommendation(method="puf-special", why="It is nearest.")
    monkeypatch.setattr(admission, "_recommended", lambda *_: advised)
    with sites.ledger() as ledger:
        new = NewRequest(target=PATIENT, submitted_by="tool", idempotency_key="1")
        assert admit(ledger, new, now=datetime.now(UTC), by_operator=False).method == "puf-special"
    monkeypatch.undo()
    sites.run(3, approval=approval)
    old, new = sites.requests()
    assert (old.status, old.replaced_by, new.submitted_by) == (Status.REPLACED, new.id, "tool")
    assert not METHODS[new.method].info.works_with_the_data
    if approval == "officer":
        assert new.status is Status.AWAITING
        with sites.ledger() as ledger:
            ledger.decisions.accept(new.id, by="officer", now=datetime.now(UTC))
    sites.run(6, approval=approval)
    assert sites.requests()[1].status is Status.COMPLETED


@pytest.mark.parametrize(
    "method",
    slow_but(("newton-cg remove_only=true",), ("gradient-ascent", "newton-cg remove_only=true", "retrain")),
)
def test_a_row_that_goes_while_its_deletion_begins_is_not_forgotten_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """A method that works with the rows would take the others out alone, and the report count all of them."""
    sites, claim = Named(tmp_path), queue.to_claim

    def remove_too(*arguments: Any, **given: Any) -> Any:
        found = claim(*arguments, **given)
        if found[0] and 5 in sites.kept:
            sites.kept.remove(5)
        return found

    monkeypatch.setattr(queue, "to_claim", remove_too)
    sites.run(4, f"at=2 client=1 samples=patient-4,patient-5 method={method}")
    request = sites.request()
    assert request.attempts == 1
    assert request.status is (Status.COMPLETED if method == "retrain" else Status.FAILED)
    assert (
        method == "retrain" or "1 of the 2 sample ids are not among this client's examples" in request.reason
    )


def test_a_row_that_was_forgotten_and_then_removed_is_no_unknown_one(tmp_path: Path) -> None:
    """As a list has it that names all records of a person, some of which were forgotten before."""
    sites = Named(tmp_path)
    script = "at=1 client=1 samples=patient-3 method=natural"
    sites.run(3, script)
    sites.kept.remove(3)
    sites.run(4, script)
    sites.run(6, f"{script}; at=4 client=1 samples=patient-3,patient-4 method=gradient-ascent")
    first, second = sites.requests()
    assert (first.status, second.status) == (Status.COMPLETED, Status.COMPLETED), second.reason
    assert second.attempts == 1


@pytest.mark.parametrize(
    ("samples", "method", "code"),
    slow_but(
        ("patient-4,patient-5",),
        [
            ("patient-5", "puf-special", "removed-samples"),
            ("patient-4,patient-5", "gradient-ascent", "removed-samples"),
            ("patient-5,patient-99", "retrain", "unknown-samples"),
        ],
    ),
)
def test_a_method_that_works_with_the_row_is_refused(
    tmp_path: Path, samples: str, method: str, code: str
) -> None:
    """So is every one for what was never there."""
    sites = Named(tmp_path)
    sites.run(2)
    sites.kept.remove(5)
    sites.run(4, f"at=2 client=1 samples={samples} method={method}")
    assert sites.request().status is Status.FAILED
    assert sites.request().result[CODE] == code


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
    assert sites.request().status is Status.COMPLETED
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
