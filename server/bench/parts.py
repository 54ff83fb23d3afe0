"""One seed of an experiment, part by part: train, retrain without the forgotten data, or forget by a method.

The server and client code is the deployment's; the Grid runs the clients one after the other in this process.
Original is trained once a seed and shared by all methods that do not train in a way of their own; each
method starts from a copy of all that the original federation keeps, files its requests through the door and
recovers until the retrained model's test score is reached (PUF's rule) or `recovery-max-rounds` have passed.
"""

import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from flwr.clientapp import ClientApp
from flwr.supercore.object_ref import load_app

from server.admission import admit
from server.app import open_driver, run_federation
from server.bench.experiment import Case, Contender, Experiment
from server.checkpoints import CheckpointStore
from server.deletion import concerned
from server.driver import Driver
from server.state import FederationState
from strategies.in_process_grid import InProcessGrid
from strategies.run_config import RunSettings
from unlearning.durable_files import write_atomically
from unlearning.errors import ConfigurationError
from unlearning.methods import preparations
from unlearning.parameters import Vector
from unlearning.requests import Exclusions, Status, Target
from unlearning.tasks import load_server_test, load_site, make_task
from unlearning.tasks.task import Examples, Task
from unlearning.training import initial_parameters, predict
from unlearning.verification.equivalence import (
    kl_divergence,
    logit_mse,
    parameter_gap,
    prediction_agreement,
)
from unlearning.verification.measurement import Measurement, measure
from unlearning.verification.observations import merge

Row = dict[str, Any]

CLIENT_APP = "client.app:app"
"""The component as pyproject.toml names it; Flower loads it by this name too."""

ORIGINAL, RETRAIN = "original", "retrain"
COMPARED_EXAMPLES = 2_000
"""On so many test examples the outputs of a method are compared with Retrain's."""

DEFAULTS: Mapping[str, Any] = {
    "wait-timeout-s": 1.0,
    "evaluate-every": 1,
    "measure-every-recovery-round": False,
}


@dataclass(frozen=True, slots=True)
class Part:
    """One row of the results: a case and who forgets; `contender` is None for Original and Retrain."""

    case: Case
    name: str
    contender: Contender | None = None

    @property
    def key(self) -> str:
        """Its name in files."""
        return f"{self.case.name}--{self.name}".replace(" ", "-").replace("'", "").replace("/", "-")


def parts_of(experiment: Experiment) -> list[Part]:
    """All parts of one seed in their order: what is compared with comes before what is compared."""
    parts = [Part(case, name) for case in experiment.cases for name in (ORIGINAL, RETRAIN)]
    return parts + [
        Part(case, contender.key, contender)
        for case in experiment.cases
        for contender in experiment.methods
        if experiment.serves(contender, case)
    ]


class SeedRun:
    """One seed of an experiment, in a directory of its own."""

    def __init__(self, directory: Path, experiment: Experiment, seed: int) -> None:
        self.directory = directory
        self.experiment = experiment
        self.run_config = {**DEFAULTS, **experiment.run, "seed": seed}
        self._test: Examples | None = None
        directory.mkdir(parents=True, exist_ok=True)

    def row(self, part: Part) -> Row:
        """The row of a part, from the directory if it is there already."""
        path = self.directory / f"{part.key}.json"
        if path.exists():
            known: Row = json.loads(path.read_text(encoding="utf-8"))
            return known
        started = time.monotonic()
        if part.contender is not None:
            row = self._forgotten(part.case, part.contender)
        elif part.name == ORIGINAL:
            row = self._original(part.case)
        else:
            row = self._retrained(part.case)
        row = {
            "seed": self.run_config["seed"],
            "case": part.case.name,
            "method": part.name,
            **row,
            "wall_seconds": round(time.monotonic() - started, 1),
        }
        write_atomically(path, json.dumps(row, indent=1).encode())
        return row

    # --- the three kinds of parts

    def _original(self, case: Case) -> Row:
        name, settings, grid = self._train_original(self._shared_prepare(), ORIGINAL)
        state = self._newest(name)
        with open_driver(grid, settings, run_id=1) as driver:
            return {
                **self._measured(driver, state, self._targets(case)),
                **_ledger_costs(driver),
                "recovery_rounds": None,
            }

    def _retrained(self, case: Case) -> Row:
        targets = self._targets(case)
        name = f"{RETRAIN}-{_safe(case.name)}"
        settings = self._settings(name)
        store = CheckpointStore(self.directory / name / "checkpoints")
        if store.newest() is None:
            start = initial_parameters(make_task(settings.task()), settings.seed)
            store.save(FederationState(parameters=start, exclusions=Exclusions().including(targets)), token=0)
        grid = self._grid(settings)
        state = run_federation(grid, settings, run_id=1)
        with open_driver(grid, settings, run_id=1) as driver:
            return {
                **self._measured(driver, state, targets),
                **_ledger_costs(driver),
                "recovery_rounds": None,
            }

    def _forgotten(self, case: Case, contender: Contender) -> Row:
        prepared = preparations(contender.prepare)
        if any(item.preparation.replaces_training for item in prepared.values()):
            prepare, original = contender.prepare, f"{ORIGINAL}-{contender.key}"
        else:
            prepare, original = self._shared_prepare(), ORIGINAL
        self._train_original(prepare, original)
        storage = {
            "server_bytes": _size(self.directory / original / "kept" / contender.method),
            "client_bytes": sum(
                _size(path)
                for path in (self.directory / original / "clients").glob(f"*/kept/{contender.method}")
            ),
        }
        retrained = self.row(Part(case, RETRAIN))
        name = f"{_safe(case.name)}--{contender.key}"
        shutil.rmtree(self.directory / name, ignore_errors=True)
        shutil.copytree(self.directory / original, self.directory / name, copy_function=_copy)
        settings = self._settings(
            name, **{"prepare": prepare, "recovery-target": max(retrained["test"], 1e-6)}
        )
        grid = self._grid(settings)
        with open_driver(grid, settings, run_id=2) as driver:
            before = driver.ledger.rounds(limit=100_000)[-1].sequence
            filed = [
                admit(
                    driver.ledger,
                    target,
                    method=contender.method,
                    parameters=contender.parameters,
                    submitted_by="benchmark",
                    idempotency_key=str(uuid4()),
                    now=driver.now(),
                )
                for target in self._targets(case)
            ]
        run_federation(grid, settings, run_id=2)
        # Recovery may stop before its first round; PUF's Natural is training on, so it takes one at least.
        is_natural = contender.method == "natural"
        if is_natural and not _recovery_rounds(self.directory / name, filed[0].id):
            settings = self._settings(name, prepare=prepare, rounds=settings.rounds + 1)
            run_federation(grid, settings, run_id=2)
        state = self._newest(name)
        with open_driver(grid, settings, run_id=2) as driver:
            done = [driver.ledger.get(request.id) for request in filed]
            wrong = [request for request in done if request.status is not Status.COMPLETED]
            if wrong:  # a finding too: some methods do not survive every federation
                return {"failed": f"{wrong[0].status}: {wrong[0].reason}", "attacks": {}}
            reports = [
                json.loads((driver.state_dir / "reports" / request.id / "report.json").read_text())
                for request in done
            ]
            unlearned = next(item for item in reports[-1]["measurements"] if item["stage"] == "unlearned")
            rounds = [r for r in driver.ledger.rounds(limit=100_000) if r.sequence > before]
            row = {
                **self._measured(driver, state, self._targets(case)),
                **(_ledger_costs(driver, after=before) if is_natural else _report_costs(reports)),
                **storage,
                "recovery_rounds": sum(r.kind != "unlearning" for r in rounds),
                "stop": reports[-1]["recovery"]["stop_reason"],
                "test_unlearned": unlearned["test"]["score"],
                "forget_unlearned": (unlearned["forgotten"] or {}).get("score"),
                "curve": [r.metrics["test_score"] for r in rounds if "test_score" in r.metrics],
                "findings": reports[-1]["unlearning"]["findings"],
                **self._equivalence(driver.task, state.parameters, case),
            }
        shutil.rmtree(self.directory / name)  # the row is all that is left of it; histories are large
        return row

    # --- what they share

    def _train_original(self, prepare: str, name: str) -> tuple[str, RunSettings, InProcessGrid]:
        settings = self._settings(name, prepare=prepare)
        grid = self._grid(settings)
        newest = CheckpointStore(self.directory / name / "checkpoints").newest()
        if newest is None or newest.training_rounds < settings.rounds:
            run_federation(grid, settings, run_id=1)
        return name, settings, grid

    def _shared_prepare(self) -> str:
        """What all methods need that do not train in a way of their own."""
        wanted: dict[str, str] = {}
        for contender in self.experiment.methods:
            for method, item in preparations(contender.prepare).items():
                if not item.preparation.replaces_training:
                    wanted[method] = contender.prepare
        return "; ".join(wanted.values())

    def _settings(self, name: str, **changes: Any) -> RunSettings:
        values = {**self.run_config, "state-dir": str(self.directory / name), **changes}
        return RunSettings.from_run_config(values)

    def _grid(self, settings: RunSettings) -> InProcessGrid:
        count, clients = settings.num_clients, Path(settings.state_dir) / "clients"
        nodes = [
            {
                "partition-id": number,
                "num-partitions": count,
                "client-id": str(number),
                "state-dir": str(clients / str(number)),
            }
            for number in range(count)
        ]
        app = load_app(CLIENT_APP, ConfigurationError, None)
        assert isinstance(app, ClientApp)
        return InProcessGrid(app, nodes, settings.model_dump(by_alias=True))

    def _targets(self, case: Case) -> list[Target]:
        task = RunSettings.from_run_config(self.run_config).task()
        ids = {client: load_site(task, int(client)).train.ids.tolist() for client in case.clients}
        return case.targets(ids)

    def _newest(self, name: str) -> FederationState:
        state = CheckpointStore(self.directory / name / "checkpoints").newest()
        assert state is not None, f"{name} was trained before"
        return state

    def _measured(self, driver: Driver, state: FederationState, targets: Sequence[Target]) -> Row:
        driver.register_clients()
        driver.restrict(state)
        forgets = concerned(driver, targets)
        observed = driver.observe_all(state, state.parameters, forgets)
        return _row_of(
            measure(
                stage="recovery",
                round=state.round,
                test=observed.test,
                retained=observed.retained,
                forgotten=merge(observed.forgotten.values()) if observed.forgotten else None,
                seed=driver.settings.seed,
            )
        )

    def _equivalence(self, task: Task, parameters: Vector, case: Case) -> Row:
        retrained = self._newest(f"{RETRAIN}-{_safe(case.name)}").parameters
        if retrained.size != parameters.size:
            return {}  # an ensemble has another length
        if self._test is None:
            self._test = load_server_test(RunSettings.from_run_config(self.run_config).task())
        row: Row = {"parameter_gap": parameter_gap(retrained, parameters)}
        if self._test is not None:
            some = self._test.select(np.arange(min(len(self._test), COMPARED_EXAMPLES)))
            ours, theirs = predict(task, parameters, some), predict(task, retrained, some)
            row |= {
                "kl": kl_divergence(theirs, ours),
                "logit_mse": logit_mse(theirs, ours),
                "agreement": prediction_agreement(theirs, ours),
            }
        return row


def _row_of(measurement: Measurement) -> Row:
    row: Row = {
        name: None if value is None else value.score
        for name, value in (
            ("test", measurement.test),
            ("retained", measurement.retained),
            ("forget", measurement.forgotten),
        )
    }
    figures = {name: figure.to_json() for name, figure in measurement.figures.items()}
    return {**row, "attacks": dict(measurement.attacks), "figures": figures}


def _ledger_costs(driver: Driver, *, after: int = 0) -> Row:
    """Of the rounds after the one with this sequence number, as they were measured."""
    rounds = [record for record in driver.ledger.rounds(limit=100_000) if record.sequence > after]
    examples = sum(r.metrics["num_examples"] for r in rounds)
    return {
        "bytes": sum(r.metrics["bytes_sent"] + r.metrics["bytes_received"] for r in rounds),
        "seconds": sum(r.metrics["seconds"] for r in rounds),
        "flops": examples * driver.settings.local_epochs * driver.federation.flops_per_example,
        "server_bytes": 0,
        "client_bytes": 0,
    }


def _report_costs(reports: Sequence[Mapping[str, Any]]) -> Row:
    """Of unlearning and recovery; requests that were served together share their costs.

    Bytes and seconds were measured; floating-point operations are those of the closed formulas.
    """
    row: Row = {"bytes": 0, "seconds": 0.0, "flops": 0.0}
    seen: set[frozenset[str]] = set()
    for report in reports:
        together = frozenset({report["request"]["id"], *report["request"]["served_with"]})
        if together in seen:
            continue
        seen.add(together)
        for phase in (report["unlearning"], report["recovery"]):
            row["bytes"] += (phase["bytes_sent"] or 0) + (phase["bytes_received"] or 0)
            row["seconds"] += phase["seconds"] or 0.0
        row["flops"] += sum(formula["formula_flops"] or 0.0 for formula in report["formulas"])
    return row


def _recovery_rounds(directory: Path, request_id: str) -> int:
    report = json.loads((directory / "reports" / request_id / "report.json").read_text())
    return int(report["recovery"]["rounds"])


def _copy(source: str, target: str) -> None:
    """A hard link where the file is never written in place; the ledger is copied."""
    if Path(source).name.startswith("ledger.db"):
        shutil.copy2(source, target)
    else:
        os.link(source, target)


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("**/*.npz"))


def _safe(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name)
