"""The federations of one seed: trained, retrained, and gone on with, each in a directory of its own.

The server and client code is the deployment's; the Grid runs the clients one after the other in this process.
"""

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import uuid4

from flwr.app import Message
from flwr.supercore.object_ref import load_app

from benchmarks.bench.cases import Case, Contender, Setting
from benchmarks.bench.client_data import ClientData, Shared
from benchmarks.bench.columns import ORIGINAL, RETRAIN
from benchmarks.bench.experiment import Experiment
from benchmarks.bench.first_pass import FirstPass
from benchmarks.bench.own_app import app_in
from benchmarks.bench.parts import DEFAULTS, digest, seed_directory, shared_directory
from server.app import AppRun, open_federation, run_federation
from server.federation.checkpoints import CheckpointStore
from server.federation.context import FederationContext
from server.federation.state import FederationState
from server.ledger import NewRequest
from server.requests.admission import admit
from strategies import built_in
from strategies.in_process_grid import InProcessGrid
from strategies.messages import told_values
from strategies.settings.run_config import RunSettings
from strategies.settings.task_source import MADE_BY, TABLE, AppSettings, TaskSource
from unlearning.errors import ConfigurationError, TrainingFailed
from unlearning.methods.registry import preparations
from unlearning.requests import DeletionRequest, Exclusions
from unlearning.runtime.durable_files import file_lock, write_atomically
from unlearning.tasks.task import Task
from unlearning.training import initial_parameters

CLIENTS = "client.app:clients_in_process"
"""What makes the ClientApp of one federation, by name: the server side imports nothing of the clients'."""

FACTS = "trained.json"
"""The file of a federation that has finished its training; without it the training is done again."""

_NO_GATE = {"max-score-loss": 0.0, "max-round-score-loss": 0.0, "max-influence-factor": 0.0}
"""What a method does to a model is what is measured here, however bad."""


class ClientBroke(BaseException):
    """A client's code raised, which on a deployment leaves the client out of a round.

    Here every client counts, and a table must not have a row without one. It is no `Exception`, so that nothing on the
    way answers for it and no checkpoint has the round.
    """


class _EveryClientCounts(InProcessGrid):
    """Ends a run where a client's code raises, with its memory at an end, say. What it refuses is a finding."""

    def _answer(self, message: Message) -> Message:
        reply = super()._answer(message)
        told = {"error": reply.error.reason} if reply.has_error() else told_values(reply.content)
        if "error" in told and "is-final" not in told:
            client = self.contexts[message.metadata.dst_node_id].node_config["client-id"]
            raise ClientBroke(f"client {client}: {told['error']}")
        return reply


class SeedFederations:
    """The federations of one seed of one setting; processes and experiments share their directory."""

    def __init__(self, work: Path, experiment: Experiment, setting: Setting, seed: int) -> None:
        self.directory = seed_directory(work, experiment, setting, seed)
        self.directory.mkdir(parents=True, exist_ok=True)
        self._setting, self._seed = setting, seed
        self.app = app_in(experiment.app) if experiment.app else None
        self._run_config = {**_NO_GATE, **DEFAULTS, **experiment.run_of(setting), "seed": seed}
        shared = _shared(work, experiment, setting, self.run)
        own = self.app.data(self._run_config) if self.app else None
        self.data = ClientData(self.directory, setting, self.run.task(), shared=shared, own=own)

    @cached_property
    def run(self) -> RunSettings:
        """The settings of all of them."""
        return self._source.read(self._run_config).run

    def settings(self, directory: Path, **changes: Any) -> RunSettings:
        """Return the settings of the federation in `directory`."""
        return self._source.read({**self._run_config, "state-dir": str(directory.absolute()), **changes}).run

    def alone(self, name: str) -> AbstractContextManager[None]:
        """Return the lock of what has this name."""
        return file_lock(self.directory / "locks" / name)

    def grid(self, settings: RunSettings) -> InProcessGrid:
        """Return new clients of a federation; they load their data once."""
        count, clients = settings.num_clients, Path(settings.state_dir) / "clients"
        nodes: list[dict[str, Any]] = [
            {
                "partition-id": number,
                "num-partitions": count,
                "client-id": str(number),
                "state-dir": str(clients / str(number)),
                **self._own_data(str(number)),
            }
            for number in range(count)
        ]
        make_clients = load_app(CLIENTS, ConfigurationError, None)
        clients = make_clients(self.app.source, self.app.load_site) if self.app else make_clients()
        return _EveryClientCounts(clients, nodes, self._values(settings))

    def open(
        self, grid: InProcessGrid, settings: RunSettings, *, run_id: int
    ) -> AbstractContextManager[FederationContext]:
        """Open the federation of these settings."""
        return open_federation(grid, self._app_run(settings), run_id=run_id)

    def train(self, title: str, grid: InProcessGrid, settings: RunSettings, *, run_id: int) -> None:
        """Run a federation to its end.

        Raises:
            TrainingFailed: no client's answer entered a training round; figures after it would be of another model.
        """
        try:
            run_federation(grid, self._app_run(settings), run_id=run_id, every_round_counts=True)
        except TrainingFailed as exc:
            where = ": ".join(filter(None, (self._setting.name, title)))
            raise self.ended(where, str(exc)) from exc

    def ended(self, where: str, why: str) -> TrainingFailed:
        """Return the error that ends the bench."""
        return TrainingFailed(
            f"Seed {self._seed}, {where}: {why} The bench ends here and finished parts stay; mend the cause and give "
            "the same command again."
        )

    def original(self, prepare: Mapping[str, str]) -> Path:
        """Return the directory of a trained federation that keeps at least what `prepare` says; train it if need be."""
        if (found := self._finished(prepare)) is not None:
            return found
        directory = self.directory / f"original-{digest(dict(prepare))}"
        with self.alone(directory.name):
            if (directory / FACTS).exists():  # another process has trained it meanwhile
                return directory
            settings = self.settings(directory, prepare="; ".join(prepare.values()))
            grid = self.grid(settings)
            self.train(ORIGINAL, grid, settings, run_id=1)
            with self.open(grid, settings, run_id=1) as context:
                rounds = list(context.ledger.all_rounds())
            facts = {"prepare": dict(prepare), "rounds_in_ledger": rounds[-1].sequence}
            write_atomically(directory / FACTS, json.dumps(facts).encode())
            return directory

    def retrained_directory(self, case: Case, prepare: str = "") -> Path:
        """Return where the federation is that never saw what the case forgets, trained ordinarily or as prepared."""
        key = [case.decisive, prepare] if prepare else case.decisive
        return self.directory / f"retrained-{digest(key)}"

    def retrain(self, case: Case, prepare: str = "") -> RunSettings:
        """Train the federation that never saw what the case forgets; return its settings."""
        directory = self.retrained_directory(case, prepare)
        settings = self.settings(directory, prepare=prepare)
        with self.alone(directory.name):
            store = CheckpointStore(directory / "checkpoints")
            if store.newest() is None:
                start = initial_parameters(self.task_of(settings), settings.seed)
                exclusions = Exclusions().including(self.data.targets(case))
                store.save(FederationState(parameters=start, exclusions=exclusions), token=0)
            self.train(f"{case.name}: {RETRAIN}", self.grid(settings), settings, run_id=1)
        return settings

    def file_requests(
        self, grid: InProcessGrid, settings: RunSettings, case: Case, contender: Contender
    ) -> list[DeletionRequest]:
        """File the case's requests, to be served by the contender's method."""
        with self.open(grid, settings, run_id=2) as context:
            return [
                admit(
                    context.ledger,
                    NewRequest(
                        target=target,
                        method=contender.method,
                        parameters=contender.parameters,
                        submitted_by="benchmark",
                        idempotency_key=str(uuid4()),
                    ),
                    now=context.writer.now(),
                    by_operator=True,
                )
                for target in self.data.targets(case)
            ]

    def _finished(self, prepare: Mapping[str, str]) -> Path | None:
        for path in sorted(self.directory.glob(f"original-*/{FACTS}")):
            if _serves(facts_of(path.parent)["prepare"], prepare):
                return path.parent
        return None

    def task_of(self, settings: RunSettings) -> Task:
        """Return what is learnt, as it is prepared for."""
        return self._source.prepared(self._values(settings))

    @property
    def _source(self) -> TaskSource:
        return self.app.source if self.app else built_in.SOURCE

    def _values(self, settings: RunSettings) -> dict[str, Any]:
        """Return the settings as Flower would give them to the app, with those of its own."""
        if self.app is None:
            return settings.to_run_config()
        own = self.app.source.read(self._run_config).own
        kept = self.app.source.to_keep(AppSettings(run=settings, own=own))
        return {name: value for name, value in kept.items() if name not in (MADE_BY, TABLE)}

    def _app_run(self, settings: RunSettings) -> AppRun:
        load_test = self.app.load_test if self.app else built_in.load_test
        return AppRun.of(self._values(settings), self._source, load_test)

    def _own_data(self, client: str) -> dict[str, str]:
        own = self.data.own_directory(client)
        return {} if own is None else {"data-dir": str(own)}


def newest(directory: Path) -> FederationState:
    """Return where a federation that was trained before stands."""
    state = CheckpointStore(directory / "checkpoints").newest()
    assert state is not None, f"{directory.name} was trained before"
    return state


def facts_of(original: Path) -> dict[str, Any]:
    """Return what was noted of a federation when its training had ended: `prepare` and `rounds_in_ledger`."""
    facts: dict[str, Any] = json.loads((original / FACTS).read_text(encoding="utf-8"))
    return facts


def _shared(work: Path, experiment: Experiment, setting: Setting, run: RunSettings) -> Shared | None:
    """Return what the seeds share of their clients; None where each deals out its own."""
    if not experiment.shares_clients:
        return None
    first_pass = FirstPass(shared_directory(work, experiment, setting), run)
    return Shared(first_pass, experiment.cases[0] if experiment.shadows else None)


def _serves(prepared: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Return whether a federation prepared so can be shared by those who want this; a training of its own is not."""
    if any(item.replaces_training for item in preparations("; ".join(prepared.values())).values()):
        return dict(prepared) == dict(wanted)
    return all(prepared.get(method) == entry for method, entry in wanted.items())
