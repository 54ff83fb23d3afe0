"""A whole federation in this process, for tests: the real server and client code on an in-process Grid."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from client.app import app as client_app
from server.app import AppRun, run_federation
from server.federation.checkpoints import CheckpointStore
from server.federation.state import FederationState
from server.ledger import Ledger, NewRequest
from server.requests.admission import admit
from server.state_directory.files import REPORTS
from server.state_directory.ledger_address import ledger_url
from server.state_directory.subject_key import subject_keys
from strategies import built_in
from strategies.in_process_grid import InProcessGrid
from strategies.settings.run_config import RunSettings
from unlearning.requests import DeletionRequest, Granularity, Status, Target
from unlearning.tasks import Task, make_task

DEFAULTS: Mapping[str, Any] = {
    "dataset": "digits",
    "model": "logistic",
    "num-clients": 4,
    "partition": "dirichlet",
    "alpha": 1.0,
    "rounds": 2,
    "learning-rate": 0.5,
    "recovery-max-rounds": 2,
    "attack-samples": 50,
    # Two rounds of recovery are too few for the gate, whose own tests switch it on.
    "max-score-loss": 0.0,
    "wait-timeout-s": 0.2,
    "round-timeout-s": 60.0,
}
SMALL: Mapping[str, Any] = {
    "num_clients": 3,
    "max_examples": 150,
    "recovery_max_rounds": 1,
    "attack_samples": 20,
}
"""For tests that do not ask how well something is learnt or forgotten."""


class InProcessFederation:
    """A federation with a state directory; `run` goes on from where the last run ended."""

    kind_of_grid: type[InProcessGrid] = InProcessGrid

    def __init__(self, directory: Path, settings: Mapping[str, Any]) -> None:
        self.directory = directory
        given = {name.replace("_", "-"): value for name, value in settings.items()}
        self.run_config = {**DEFAULTS, "state-dir": str(directory), **given}
        self.settings = RunSettings.from_run_config(self.run_config)
        directory.mkdir(parents=True, exist_ok=True)
        self._ledger: Ledger | None = None
        self.grid = self.new_grid()

    @property
    def app_run(self) -> AppRun:
        """What the run is of."""
        return AppRun.of(self.run_config, built_in.SOURCE, built_in.load_test)

    @property
    def task(self) -> Task:
        """What is learnt."""
        return make_task(self.settings.task())

    def prepare(self, text: str) -> None:
        """Set `prepare` before the first round."""
        self.run_config = {**self.run_config, "prepare": text}
        self.settings = RunSettings.from_run_config(self.run_config)
        self.new_grid()

    def new_grid(self) -> InProcessGrid:
        """Fresh nodes, as after a restart of everything; client state directories stay."""
        count = self.settings.num_clients
        configs = [
            {
                "partition-id": number,
                "num-partitions": count,
                "client-id": str(number),
                "state-dir": str(self.directory / "clients" / str(number)),
            }
            for number in range(count)
        ]
        self.grid = self.kind_of_grid(client_app, configs, self.run_config)
        return self.grid

    @property
    def ledger(self) -> Ledger:
        """The ledger, as the deletion service would open it."""
        if self._ledger is None:
            self._ledger = Ledger.open(ledger_url(self.directory), subject_keys(self.directory))
        return self._ledger

    def run(self, **changes: Any) -> FederationState:
        """Run the real ServerApp code to its end and give the last state."""
        given = {name.replace("_", "-"): value for name, value in changes.items()}
        run = AppRun.of({**self.run_config, **given}, built_in.SOURCE, built_in.load_test)
        return run_federation(self.grid, run, run_id=1)

    def file(self, target: Target, method: str = "puf-special", **parameters: Any) -> DeletionRequest:
        """File a request, as an operator."""
        new = NewRequest(
            target=target, method=method, parameters=parameters, submitted_by="test", idempotency_key=""
        )
        return admit(self.ledger, new, by_operator=True, now=datetime.now(UTC))

    def forget(
        self, target: Target, method: str = "puf-special", *, rounds: int | None = None, **parameters: Any
    ) -> DeletionRequest:
        """File a request and run on until there were `rounds` rounds; the request, which must be completed by then."""
        request = self.file(target, method, **parameters)
        self.run(**({} if rounds is None else {"rounds": rounds}))
        done = self.ledger.requests.get(request.id)
        assert done.status is Status.COMPLETED, done.reason
        return done

    def checkpoint(self) -> FederationState | None:
        """The newest checkpoint."""
        return CheckpointStore(self.directory / "checkpoints").newest()

    def report(self, request_id: str) -> dict[str, Any]:
        """The report of a deletion, as it was written."""
        path = self.directory / REPORTS / request_id / "report.json"
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found

    def node(self, client_id: str) -> int:
        """The node id of a client."""
        return 1001 + int(client_id)

    def close(self) -> None:
        """Close the ledger."""
        if self._ledger is not None:
            self._ledger.close()


Made = TypeVar("Made", bound=InProcessFederation)


@contextmanager
def federations(
    directory: Path, kind: Callable[[Path, Mapping[str, Any]], Made]
) -> Iterator[Callable[..., Made]]:
    """Give a function that makes federations in folders of `directory`; their ledgers are closed at the end."""
    made: list[Made] = []

    def make(name: str = "server", **settings: object) -> Made:
        made.append(kind(directory / name, settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


def client(client_id: str) -> Target:
    """The target "this whole client"."""
    return Target(Granularity.CLIENT, client_id)
