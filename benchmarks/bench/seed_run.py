"""One seed of one setting, part by part: train, retrain without the forgotten data, or forget by a method.

Original is trained once a seed and shared by all methods that do not train in a way of their own; each
method starts from a copy of all that the original federation keeps, files its requests as anybody's are admitted and
recovers until the retrained model's test score is reached (PUF's rule) or `recovery-max-rounds` have passed.
"""

import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.bench import measures, oracles
from benchmarks.bench.batched_training import suits, train_federations
from benchmarks.bench.cases import Case, Contender, Setting
from benchmarks.bench.columns import ORIGINAL, RETRAIN, Row
from benchmarks.bench.experiment import Experiment
from benchmarks.bench.federations import ClientBroke, SeedFederations, facts_of, newest
from benchmarks.bench.parts import ORACLES, Part, row_path
from benchmarks.bench.provenance import load, made_here
from benchmarks.persistence.relearning import relearn_time
from server.deletion.open_deletion import forget_sets
from server.federation.context import FederationContext
from server.federation.observing import ServerTestSet, measuring_messages, read_all
from server.federation.state import FederationState
from strategies.settings.run_config import RunSettings
from unlearning.methods.registry import method_named
from unlearning.requests import Status
from unlearning.runtime.durable_files import write_atomically
from unlearning.runtime.json_codec import from_plain
from unlearning.tasks.task import Task
from unlearning.verification.figures import Measurement
from unlearning.verification.measurement import measure
from unlearning.verification.observations import merge


class SeedRun:
    """One seed of one setting: its rows, and the federations that they are measured on."""

    def __init__(self, work: Path, experiment: Experiment, setting: Setting, seed: int) -> None:
        self.experiment, self.setting, self.seed = experiment, setting, seed
        self.work = work
        self.federations = SeedFederations(work, experiment, setting, seed)
        self.directory, self.data = self.federations.directory, self.federations.data

    def finished_row(self, part: Part) -> Row | None:
        """Return the row of a part that was finished before."""
        path = self._row_path(part)
        if not path.exists():
            return None
        named = {"seed": self.seed, "setting": part.setting.name, "case": part.case.name, "method": part.name}
        return {**json.loads(path.read_text(encoding="utf-8")), **named}

    def margins_path(self, part: Part) -> Path:
        """Return the file of the margins of a part's model, in an experiment with oracles."""
        return self._row_path(part).with_suffix(".npz")

    def row(self, part: Part) -> Row:
        """Return the row of a part, computed unless it was finished before; others may compute other parts meanwhile.

        Raises:
            TrainingFailed: a client's code raised, or no client's answer entered a training round.
        """
        if (known := self.finished_row(part)) is not None:
            return known
        path = self._row_path(part)
        with self.federations.alone(path.stem):
            if self.finished_row(part) is None:
                started = time.monotonic()
                try:
                    row = self._compute(part, path.with_suffix(""))
                except ClientBroke as exc:
                    raise self.federations.ended(part.title, f"{exc}.") from exc
                row["wall_seconds"] = round(time.monotonic() - started, 1)
                if found := row.pop("margins", None):
                    oracles.save(self.margins_path(part), found)
                row |= {"made": made_here(), "load": load()}
                write_atomically(path, json.dumps(row, indent=1).encode())
        known = self.finished_row(part)
        assert known is not None, "it was written just now"
        return known

    def _row_path(self, part: Part) -> Path:
        return row_path(self.directory, self.experiment, part)

    def _compute(self, part: Part, directory: Path) -> Row:
        if part.contender is not None:
            return self._forgotten(part.case, part.contender, directory)
        if part.name == ORACLES:
            return self._oracles(part)
        return self._original(part.case) if part.name == ORIGINAL else self._retrain(part)

    # --- the four kinds of parts

    def _oracles(self, part: Part) -> Row:
        """Return the margins of several oracles: a model in a row."""
        settings = self.federations.run
        task = self.federations.task_of(settings)
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
        directory = self.federations.original(self.experiment.shared_prepare())
        row = self._of_training(directory, self.federations.settings(directory), case)
        retrained = self.row(Part(self.setting, case, RETRAIN))
        return (
            row
            | self._beside_retrain(case, newest(directory), newest(directory))
            | measures.faithfulness(row, row, retrained)
        )

    def _retrain(self, part: Part) -> Row:
        settings = self.federations.retrain(part.case, part.prepare)
        directory = self.federations.retrained_directory(part.case, part.prepare)
        row = self._of_training(directory, settings, part.case)
        if self.experiment.relearn:
            original = newest(self.federations.original(self.experiment.shared_prepare()))
            row |= self._relearning(part.case, original, newest(directory), part.prepare)
        return row

    def _of_training(self, directory: Path, settings: RunSettings, case: Case) -> Row:
        state = newest(directory)
        with (
            self.federations.alone(directory.name),
            self.federations.open(self.federations.grid(settings), settings, run_id=1) as context,
        ):
            return {
                **self._measure(context, state, case),
                **measures.costs_of_rounds(context.ledger, context.federation),
                **_storage(state, {"server_bytes": 0, "client_bytes": 0}),
                "recovery_rounds": None,
            }

    def _forgotten(self, case: Case, contender: Contender, directory: Path) -> Row:
        prepare = contender.preparing if contender.trains_alone else self.experiment.shared_prepare()
        original = self.federations.original(prepare)
        retraining = contender.retraining
        retrained = self.row(Part(self.setting, case, contender.retrain, prepare=retraining))
        shutil.rmtree(directory, ignore_errors=True)
        with self.federations.alone(original.name):
            shutil.copytree(original, directory, copy_function=_copy)
        settings = self.federations.settings(
            directory,
            **{
                "prepare": "; ".join(facts_of(original)["prepare"].values()),
                "recovery-target": max(self._recovery_target(case, retrained, retraining), 1e-6),
            },
        )
        grid, title = self.federations.grid(settings), f"{case.name}: {contender.name}"
        filed = self.federations.file_requests(grid, settings, case, contender)
        self.federations.train(title, grid, settings, run_id=2)
        # Recovery may stop before its first round; PUF's Natural is training on, so it takes one at least.
        only_recovers = not method_named(contender.method).info.moves_model
        if only_recovers and not _report(directory, filed[0].id)["recovery"]["rounds"]:
            settings = replace(settings, rounds=settings.rounds + 1)
            self.federations.train(title, grid, settings, run_id=2)
        state = newest(directory)
        with self.federations.open(grid, settings, run_id=2) as context:
            done = [context.ledger.requests.get(request.id) for request in filed]
            wrong = [request for request in done if request.status is not Status.COMPLETED]
            if wrong:  # a finding too: some methods do not survive every federation
                shutil.rmtree(directory)
                return {"failed": f"{wrong[0].status}: {wrong[0].reason}", "attacks": {}}
            reports = [_report(directory, request.id) for request in done]
            row = {
                **self._measured_last(context, state, reports, case),
                **_of_deletion(context, reports, original, only_recovers=only_recovers),
                **_storage(newest(original), measures.stored_bytes(original, contender.method)),
                **self._beside_retrain(case, newest(original), state, retraining),
            }
        shutil.rmtree(directory)  # the row is all that is left of it; histories are large
        row["figures"] = row.pop("figures_after") | row["figures"]
        # the federation's own Original: another kind of training has another score
        before = from_plain(Measurement, reports[0]["measurements"][0])
        return row | measures.faithfulness({"test": before.score("test")}, row, retrained)

    def _recovery_target(self, case: Case, retrained: Row, prepare: str = "") -> float:
        """Return Retrain's score on what recovery is judged by: the test examples without the forgotten class."""
        if case.class_label is None:
            return retrained["test"] or 0.0
        test_set = ServerTestSet(self._task(prepare), self.data.test, self.federations.run)
        model = newest(self.federations.retrained_directory(case, prepare)).parameters
        return test_set.score(model, without=frozenset({case.class_label})) or 0.0

    # --- measures

    def _task(self, prepare: str) -> Task:
        """Return what a federation learns that is trained with this preparation."""
        return self.federations.task_of(self.federations.settings(self.directory, prepare=prepare))

    def _beside_retrain(
        self, case: Case, original: FederationState, state: FederationState, prepare: str = ""
    ) -> Row:
        found = measures.beside_retrain(
            self._task(prepare),
            original=original.parameters,
            unlearned=state.parameters,
            retrained=newest(self.federations.retrained_directory(case, prepare)).parameters,
            test=self.data.test,
            forgotten=self.data.forgotten(case),
        )
        return found | self._relearning(case, original, state, prepare)

    def _relearning(self, case: Case, original: FederationState, state: FederationState, prepare: str) -> Row:
        """Return after how many rounds a model relearns what it forgot; above the most where it does not in these."""
        most = self.experiment.relearn
        if not most:
            return {}
        found = relearn_time(
            self._task(prepare),
            state.parameters,
            original=original.parameters,
            forgotten=self.data.forgotten(case),
            training=self.federations.run.training(1),
            most_rounds=most,
        )
        counted = {"relearn_loss": found.loss, "relearn_score": found.score}
        return {name: most + 1 if number is None else number for name, number in counted.items()}

    def _measured_last(
        self,
        context: FederationContext,
        state: FederationState,
        reports: Sequence[Mapping[str, Any]],
        case: Case,
    ) -> Row:
        """Return the final model's figures: the report's, unless that tells of one of several requests or of before."""
        told = from_plain(Measurement, reports[-1]["measurements"][-1])
        if len(reports) > 1 or told.round != state.round:
            return self._measure(context, state, case)
        return self._scores(context, state, told, case)

    def _measure(self, context: FederationContext, state: FederationState, case: Case) -> Row:
        context.clients.register()
        context.clients.restrict(state)
        forgets = forget_sets(context.ledger, self.data.targets(case))
        clients, model = context.clients, state.parameters
        done = clients.exchange(measuring_messages(clients, model, state.round, forgets))
        observed = read_all(clients, context.test_set, model, forgets, done)
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


def _of_deletion(
    context: FederationContext,
    reports: Sequence[Mapping[str, Any]],
    original: Path,
    *,
    only_recovers: bool,
) -> Row:
    """Return what unlearning and recovery cost, and how they went."""
    trained = facts_of(original)["rounds_in_ledger"]
    rounds = list(context.ledger.all_rounds(after=trained))
    stages = [from_plain(Measurement, item) for item in reports[-1]["measurements"]]
    unlearned = next(item for item in stages if item.stage == "unlearned")
    followed = [unlearned, *(item for item in stages if item.stage == "recovery")]
    costs = (
        measures.costs_of_rounds(context.ledger, context.federation, after=trained)
        if only_recovers
        else measures.costs_of_reports(reports)
    )
    return {
        **costs,
        "recovery_rounds": sum(r.kind != "unlearning" for r in rounds),
        "stop": reports[-1]["recovery"]["stop_reason"],
        "test_unlearned": unlearned.score("test"),
        "forget_unlearned": unlearned.score("forgotten"),
        "curve": [r.metrics["test_score"] for r in rounds if "test_score" in r.metrics],
        "forget_curve": [item.forgotten.score for item in followed if item.forgotten]
        if context.settings.measure_every_recovery_round
        else [],
        "figures_before": measures.figures_of(stages[0]),
        "figures_after": measures.figures_of(stages[-1]),
        "findings": reports[-1]["unlearning"]["findings"],
    }


def _storage(state: FederationState, beside: Row) -> Row:
    """Return what lies on disks: one model, and what a method keeps beside it."""
    return {**beside, "storage": state.parameters.nbytes + beside["server_bytes"] + beside["client_bytes"]}


def _report(directory: Path, request_id: str) -> dict[str, Any]:
    path = directory / "reports" / request_id / "report.json"
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return report


def _copy(source: str, target: str) -> None:
    """Copy by a hard link for checkpoints, which are only ever replaced; copy what may be written to."""
    if Path(source).parent.name == "checkpoints":
        os.link(source, target)
    else:
        shutil.copy2(source, target)
