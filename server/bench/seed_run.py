"""One seed of one setting, part by part: train, retrain without the forgotten data, or forget by a method.

The server and client code is the deployment's; the Grid runs the clients one after the other in this process.
Original is trained once a seed and shared by all methods that do not train in a way of their own; each
method starts from a copy of all that the original federation keeps, files its requests as anybody's are admitted and
recovers until the retrained model's test score is reached (PUF's rule) or `recovery-max-rounds` have passed.
"""

import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import uuid4

from flwr.supercore.object_ref import load_app

from server.app import AppRun, open_federation, run_federation
from server.bench import measures, oracles
from server.bench.alone import alone
from server.bench.client_data import ClientData, Shared
from server.bench.columns import ORIGINAL, RETRAIN, Row
from server.bench.experiment import Case, Contender, Experiment, Setting
from server.bench.first_pass import FirstPass
from server.bench.made import load, made_here
from server.bench.parts import (
    DEFAULTS,
    ORACLES,
    Part,
    digest,
    row_path,
    seed_directory,
    shared_directory,
)
from server.deletion.measuring import forget_sets
from server.federation.checkpoints import CheckpointStore
from server.federation.context import FederationContext
from server.federation.observing import observe_all
from server.federation.state import FederationState
from server.ledger import NewRequest
from server.requests.admission import admit
from strategies import built_in
from strategies.in_process_grid import InProcessGrid
from strategies.run_config import RunSettings
from unlearning.batched_training import suits, train_federations
from unlearning.durable_files import write_atomically
from unlearning.errors import ConfigurationError, TrainingFailed
from unlearning.methods.registry import method_named, preparations
from unlearning.plain import from_plain
from unlearning.requests import DeletionRequest, Exclusions, Status
from unlearning.tasks.task import Task
from unlearning.training import initial_parameters
from unlearning.verification.measurement import Measurement, measure
from unlearning.verification.observations import merge

CLIENTS = "client.in_process:clients_in_process"
"""What makes the ClientApp of one federation, by name: the server side imports nothing of the clients'."""

FACTS = "trained.json"
"""The file of a federation that has finished its training; without it the training is done again."""

_NO_GATE = {"max-score-loss": 0.0, "max-round-score-loss": 0.0}
"""What a method does to a model is what is measured here, however bad."""


class SeedRun:
    """One seed of one setting, in a directory of its own."""

    def __init__(self, work: Path, experiment: Experiment, setting: Setting, seed: int) -> None:
        self.directory = seed_directory(work, experiment, setting, seed)
        self.experiment, self.setting, self.seed = experiment, setting, seed
        self.work = work
        self.run_config = {**_NO_GATE, **DEFAULTS, **experiment.run_of(setting), "seed": seed}
        self.directory.mkdir(parents=True, exist_ok=True)
        self.data = ClientData(self.directory, setting, self._run.task(), shared=self._shared())

    def _shared(self) -> Shared | None:
        """Return what the seeds share of their clients; None where each deals out its own."""
        experiment, settings = self.experiment, self._run
        if not experiment.shares_clients:
            return None
        first_pass = FirstPass(shared_directory(self.work, experiment, self.setting), settings)
        return Shared(first_pass, experiment.cases[0] if experiment.shadows else None)

    def finished_row(self, part: Part) -> Row | None:
        """Return the row of a part that was finished before."""
        path = row_path(self.directory, self.experiment, part)
        if not path.exists():
            return None
        named = {"seed": self.seed, "setting": part.setting.name, "case": part.case.name, "method": part.name}
        return {**json.loads(path.read_text(encoding="utf-8")), **named}

    def margins_path(self, part: Part) -> Path:
        """Return the file of the margins of a part's model, in an experiment with oracles."""
        return row_path(self.directory, self.experiment, part).with_suffix(".npz")

    def row(self, part: Part) -> Row:
        """Return the row of a part; it is computed unless it was finished before. Others may compute other
        parts meanwhile.
        """
        if (known := self.finished_row(part)) is not None:
            return known
        path = row_path(self.directory, self.experiment, part)
        with self._alone(path.stem):
            if self.finished_row(part) is None:
                started = time.monotonic()
                row = self._compute(part, path.with_suffix(""))
                row["wall_seconds"] = round(time.monotonic() - started, 1)
                if found := row.pop("margins", None):
                    oracles.save(self.margins_path(part), found)
                row |= {"made": made_here(), "load": load()}
                write_atomically(path, json.dumps(row, indent=1).encode())
        known = self.finished_row(part)
        assert known is not None, "it was written just now"
        return known

    def _compute(self, part: Part, directory: Path) -> Row:
        if part.contender is not None:
            return self._forgotten(part.case, part.contender, directory)
        if part.name == ORACLES:
            return self._oracles(part)
        return self._original(part.case) if part.name == ORIGINAL else self._retrain(part.case)

    # --- the four kinds of parts

    def _oracles(self, part: Part) -> Row:
        """Return the margins of several oracles: a model in a row."""
        settings = self._run
        task = _task_of(settings)
        if settings.fraction == 1 and suits(task, settings.training(1)):
            models = train_federations(
                task,
                self.data.retained(part.case),
                settings.training,
                rounds=settings.rounds,
                seeds=part.seeds,
            )
            audited = oracles.audited_examples(self.data, part.case)
            found = [oracles.margins_of(task, model, audited) for model in models]
        else:
            alone = Part(self.setting, part.case, RETRAIN)
            found = []
            for seed in part.seeds:
                run = SeedRun(self.work, self.experiment, self.setting, seed)
                run.row(alone)
                found.append(oracles.read(run.margins_path(alone)))
        return {"attacks": {}, "margins": oracles.stacked(found)}

    def _original(self, case: Case) -> Row:
        directory = self._train_original(self.experiment.shared_prepare())
        row = self._of_training(directory, self._settings(directory), case)
        retrained = self.row(Part(self.setting, case, RETRAIN))
        return (
            row
            | self._beside_retrain(case, _newest(directory), _newest(directory))
            | measures.faithfulness(row, row, retrained)
        )

    def _retrain(self, case: Case) -> Row:
        targets, directory = self.data.targets(case), self._retrained_directory(case)
        settings = self._settings(directory, **{"shadow-federations": 0})  # no deletion asks them there
        with self._alone(directory.name):
            store = CheckpointStore(directory / "checkpoints")
            if store.newest() is None:
                start = initial_parameters(_task_of(settings), settings.seed)
                state = FederationState(parameters=start, exclusions=Exclusions().including(targets))
                store.save(state, token=0)
            self._train(f"{case.name}: {RETRAIN}", self._grid(settings), settings, run_id=1)
        return self._of_training(directory, settings, case)

    def _of_training(self, directory: Path, settings: RunSettings, case: Case) -> Row:
        state = _newest(directory)
        with (
            self._alone(directory.name),
            open_federation(self._grid(settings), _app_run(settings), run_id=1) as context,
        ):
            return {
                **self._measure(context, state, case),
                **measures.costs_of_rounds(context),
                **_storage(state, {"server_bytes": 0, "client_bytes": 0}),
                "recovery_rounds": None,
            }

    def _forgotten(self, case: Case, contender: Contender, directory: Path) -> Row:
        prepare = contender.preparing if contender.trains_alone else self.experiment.shared_prepare()
        original = self._train_original(prepare)
        beside = {name: self.row(Part(self.setting, case, name)) for name in (ORIGINAL, RETRAIN)}
        shutil.rmtree(directory, ignore_errors=True)
        with self._alone(original.name):
            shutil.copytree(original, directory, copy_function=_copy)
        settings = self._settings(
            directory,
            **{
                "prepare": "; ".join(_facts(original)["prepare"].values()),
                "recovery-target": max(beside[RETRAIN]["test"] or 0.0, 1e-6),
            },
        )
        grid, title = self._grid(settings), f"{case.name}: {contender.name}"
        filed = self._file_requests(grid, settings, case, contender)
        self._train(title, grid, settings, run_id=2)
        # Recovery may stop before its first round; PUF's Natural is training on, so it takes one at least.
        only_recovers = not method_named(contender.method).info.moves_model
        if only_recovers and not _report(directory, filed[0].id)["recovery"]["rounds"]:
            settings = replace(settings, rounds=settings.rounds + 1)
            self._train(title, grid, settings, run_id=2)
        state = _newest(directory)
        with open_federation(grid, _app_run(settings), run_id=2) as context:
            done = [context.ledger.get(request.id) for request in filed]
            wrong = [request for request in done if request.status is not Status.COMPLETED]
            if wrong:  # a finding too: some methods do not survive every federation
                shutil.rmtree(directory)
                return {"failed": f"{wrong[0].status}: {wrong[0].reason}", "attacks": {}}
            reports = [_report(directory, request.id) for request in done]
            row = {
                **self._measured_last(context, state, reports, case),
                **self._of_deletion(context, reports, original, only_recovers=only_recovers),
                **_storage(_newest(original), measures.stored_bytes(original, contender.method)),
                **self._beside_retrain(case, _newest(original), state),
            }
        shutil.rmtree(directory)  # the row is all that is left of it; histories are large
        row["figures"] = row.pop("figures_after") | row["figures"]
        return row | measures.faithfulness(beside[ORIGINAL], row, beside[RETRAIN])

    def _of_deletion(
        self,
        context: FederationContext,
        reports: Sequence[Mapping[str, Any]],
        original: Path,
        *,
        only_recovers: bool,
    ) -> Row:
        """Return what unlearning and recovery cost, and how they went."""
        trained = _facts(original)["rounds_in_ledger"]
        rounds = list(context.ledger.all_rounds(after=trained))
        stages = [from_plain(Measurement, item) for item in reports[-1]["measurements"]]
        unlearned = next(item for item in stages if item.stage == "unlearned")
        followed = [unlearned, *(item for item in stages if item.stage == "recovery")]
        costs = (
            measures.costs_of_rounds(context, after=trained)
            if only_recovers
            else measures.costs_of_reports(reports)
        )
        return {
            **costs,
            "recovery_rounds": sum(r.kind != "unlearning" for r in rounds),
            "stop": reports[-1]["recovery"]["stop_reason"],
            "test_unlearned": unlearned.test.score if unlearned.test else None,
            "forget_unlearned": unlearned.forgotten.score if unlearned.forgotten else None,
            "curve": [r.metrics["test_score"] for r in rounds if "test_score" in r.metrics],
            "forget_curve": [item.forgotten.score for item in followed if item.forgotten]
            if context.settings.measure_every_recovery_round
            else [],
            "figures_before": measures.figures_of(stages[0]),
            "figures_after": measures.figures_of(stages[-1]),
            "findings": reports[-1]["unlearning"]["findings"],
        }

    # --- federations

    def _train(self, title: str, grid: InProcessGrid, settings: RunSettings, *, run_id: int) -> None:
        """Run a federation to its end.

        Raises:
            TrainingFailed: no client's answer entered a training round; figures after it would be of another model.
        """
        try:
            run_federation(grid, _app_run(settings), run_id=run_id, every_round_counts=True)
        except TrainingFailed as exc:
            where = ": ".join(filter(None, (self.setting.name, title)))
            raise TrainingFailed(
                f"Seed {self.seed}, {where}: {exc} The bench ends here and finished parts stay; mend the cause and "
                "give the same command again."
            ) from exc

    def _train_original(self, prepare: Mapping[str, str]) -> Path:
        """Return the directory of a trained federation that keeps at least what `prepare` says."""
        if (found := self._finished_original(prepare)) is not None:
            return found
        directory = self.directory / f"original-{digest(dict(prepare))}"
        with self._alone(directory.name):
            if (directory / FACTS).exists():  # another process has trained it meanwhile
                return directory
            settings = self._settings(directory, prepare="; ".join(prepare.values()))
            grid = self._grid(settings)
            self._train(ORIGINAL, grid, settings, run_id=1)
            with open_federation(grid, _app_run(settings), run_id=1) as context:
                rounds = list(context.ledger.all_rounds())
            facts = {"prepare": dict(prepare), "rounds_in_ledger": rounds[-1].sequence}
            write_atomically(directory / FACTS, json.dumps(facts).encode())
            return directory

    def _finished_original(self, prepare: Mapping[str, str]) -> Path | None:
        for path in sorted(self.directory.glob(f"original-*/{FACTS}")):
            if _serves(_facts(path.parent)["prepare"], prepare):
                return path.parent
        return None

    def _file_requests(
        self, grid: InProcessGrid, settings: RunSettings, case: Case, contender: Contender
    ) -> list[DeletionRequest]:
        with open_federation(grid, _app_run(settings), run_id=2) as context:
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

    def _retrained_directory(self, case: Case) -> Path:
        return self.directory / f"retrained-{digest(case.decisive)}"

    @cached_property
    def _run(self) -> RunSettings:
        return RunSettings.from_run_config(self.run_config)

    def _settings(self, directory: Path, **changes: Any) -> RunSettings:
        return RunSettings.from_run_config({**self.run_config, "state-dir": str(directory), **changes})

    def _grid(self, settings: RunSettings) -> InProcessGrid:
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
        return InProcessGrid(make_clients(), nodes, settings.to_run_config())

    def _own_data(self, client: str) -> dict[str, str]:
        own = self.data.own_directory(client)
        return {} if own is None else {"data-dir": str(own)}

    def _alone(self, name: str) -> AbstractContextManager[None]:
        """Return the lock of what has this name: other processes and experiments share the directory."""
        return alone(self.directory / "locks" / name)

    # --- measures

    def _beside_retrain(self, case: Case, original: FederationState, state: FederationState) -> Row:
        return measures.beside_retrain(
            _task_of(self._run),
            original=original.parameters,
            unlearned=state.parameters,
            retrained=_newest(self._retrained_directory(case)).parameters,
            test=self.data.test,
            forgotten=self.data.forgotten(case),
        )

    def _measured_last(
        self,
        context: FederationContext,
        state: FederationState,
        reports: Sequence[Mapping[str, Any]],
        case: Case,
    ) -> Row:
        """Return the final model's figures: the report's, unless it tells of one of several requests or an
        earlier model.
        """
        told = from_plain(Measurement, reports[-1]["measurements"][-1])
        if len(reports) > 1 or told.round != state.round:
            return self._measure(context, state, case)
        return self._scores(context, state, told, case)

    def _measure(self, context: FederationContext, state: FederationState, case: Case) -> Row:
        context.clients.register()
        context.clients.restrict(state)
        forgets = forget_sets(context.ledger, self.data.targets(case))
        observed = observe_all(context.clients, context.test_set, state.parameters, state.round, forgets)
        measurement = measure(
            stage="recovery",
            round=state.round,
            test=observed.test,
            retained=observed.retained,
            forgotten=merge(observed.forgotten.values()) if observed.forgotten else None,
            seed=context.settings.seed,
        )
        return self._scores(context, state, measurement, case)

    def _scores(
        self, context: FederationContext, state: FederationState, measurement: Measurement, case: Case
    ) -> Row:
        task, model = context.task, state.parameters
        row = measures.scores(measurement)
        row |= measures.backdoor_success(task, model, self.data.test, self.setting.backdoor)
        row |= measures.noise_scores(task, model, self.data.planted())
        if self.experiment.shares_clients:
            audited = oracles.audited_examples(self.data, case)
            row["margins"] = oracles.margins_of(task, model, audited)
        if self.experiment.shadows:
            row["margins"]["had"] = oracles.audited_had(self.data, case)
        return row


def _task_of(settings: RunSettings) -> Task:
    return built_in.SOURCE.prepared(settings.to_run_config())


def _app_run(settings: RunSettings) -> AppRun:
    return AppRun.of(settings.to_run_config(), built_in.SOURCE, built_in.load_test)


def _newest(directory: Path) -> FederationState:
    state = CheckpointStore(directory / "checkpoints").newest()
    assert state is not None, f"{directory.name} was trained before"
    return state


def _storage(state: FederationState, beside: Row) -> Row:
    """Return what lies on disks: one model, and what a method keeps beside it."""
    return {**beside, "storage": state.parameters.nbytes + beside["server_bytes"] + beside["client_bytes"]}


def _report(directory: Path, request_id: str) -> dict[str, Any]:
    path = directory / "reports" / request_id / "report.json"
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return report


def _facts(original: Path) -> dict[str, Any]:
    """Return what was noted of a federation when its training had ended: `prepare` and `rounds_in_ledger`."""
    facts: dict[str, Any] = json.loads((original / FACTS).read_text(encoding="utf-8"))
    return facts


def _serves(prepared: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Return whether a federation prepared so can be shared by those who want this; a training of its own is
    not shared.
    """
    if any(
        item.preparation.replaces_training for item in preparations("; ".join(prepared.values())).values()
    ):
        return dict(prepared) == dict(wanted)
    return all(prepared.get(method) == entry for method, entry in wanted.items())


def _copy(source: str, target: str) -> None:
    """Copy by a hard link for checkpoints, which are only ever replaced; copy what may be written to."""
    if Path(source).parent.name == "checkpoints":
        os.link(source, target)
    else:
        shutil.copy2(source, target)
