"""What one seed of an experiment is made of, in order, and the names under which finished parts are kept.

    WORK/DATASET-MODEL-DIGEST/seed-0/          one federation and seed; all experiments share it that train alike
        original-DIGEST/ …                     a trained federation, with what methods keep of it
        retrained-DIGEST/                      one that never saw what a case forgets
        CASE--METHOD-DIGEST.json               a finished row

The directory's digest changes with all settings that decide the training, a row's with everything that
decides the row; parts of another configuration are never mixed in.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bench.cases import Case, Contender, Setting
from benchmarks.bench.columns import ORIGINAL, RETRAIN
from benchmarks.bench.experiment import Experiment
from benchmarks.bench.own_app import app_in

DEFAULTS: Mapping[str, Any] = {
    "wait-timeout-s": 1.0,
    "evaluate-every": 1,
    "measure-every-recovery-round": False,
}

ORACLES = "oracles"
"""The part that trains oracles; its row is in no table."""

AT_ONCE = 5
"""Oracles that are trained in one part: what a stopped run loses at most."""

FIRST_ORACLE = 1_000_000
"""Added to a seed: an oracle shares none with any other model."""

_AFTER_TRAINING = {
    "recovery-max-rounds",
    "recovery-tolerance",
    "measure-every-recovery-round",
    "attack-samples",
    "max-attempts",
    "wait-timeout-s",
}
"""Settings that do not touch the trained models."""


def of_any_machine(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings without where the data lies on one machine, which concerns nobody else."""
    return {name: value for name, value in run.items() if name != "data-dir"}


@dataclass(frozen=True, slots=True)
class Part:
    """One row of the results: a case and who forgets; `contender` is None for Original, Retrain and oracles.

    seeds: of the oracles that are trained together. prepare: of a retraining of a method's own kind.
    """

    setting: Setting
    case: Case
    name: str
    contender: Contender | None = None
    seeds: tuple[int, ...] = ()
    prepare: str = ""

    @property
    def title(self) -> str:
        """For people who watch."""
        return ": ".join(filter(None, (self.setting.name, self.case.name, self.name)))


def parts_of(experiment: Experiment, setting: Setting, seed: int) -> list[Part]:
    """Return all parts of one seed and setting in their order: what is compared with comes before what is compared."""
    parts = [Part(setting, case, name) for case in experiment.cases for name in (ORIGINAL, RETRAIN)]
    if seeds := _oracle_seeds(experiment, seed):
        parts += [Part(setting, case, ORACLES, seeds=seeds) for case in experiment.cases]
    served = [
        (case, contender)
        for case in experiment.cases
        for contender in experiment.methods
        if experiment.serves(contender, case)
    ]
    parts += [
        Part(setting, case, contender.retrain, prepare=contender.retraining)
        for case, contender in served
        if contender.retraining
    ]
    return parts + [Part(setting, case, contender.name, contender) for case, contender in served]


def _oracle_seeds(experiment: Experiment, seed: int) -> tuple[int, ...]:
    """Return the seeds of the oracles that are trained with a seed's parts: several with every fifth, else none.

    So there are a few more oracles than seeds where the number is no multiple of five, and more seeds only add some.
    """
    if not experiment.oracles or seed % AT_ONCE:
        return ()
    return tuple(range(FIRST_ORACLE + seed, FIRST_ORACLE + seed + AT_ONCE))


def seed_directory(work: Path, experiment: Experiment, setting: Setting, seed: int) -> Path:
    """Return where the federations of one setting and seed are."""
    run = experiment.run_of(setting)
    decisive = {name: value for name, value in of_any_machine(run).items() if name not in _AFTER_TRAINING}
    backdoor = setting.backdoor.model_dump() if setting.backdoor else None
    key: list[Any] = [decisive, backdoor]
    if setting.noise:
        key.append({"noise": setting.noise.model_dump()})
    if experiment.shares_clients:
        key.append("the same clients in every seed")
    if experiment.shadows:
        key.append({"of each a half": experiment.cases[0].decisive})
    name = f"{run.get('dataset', 'digits')}-{run.get('model', 'logistic')}"
    if experiment.app:
        app = app_in(experiment.app)
        name = f"app-{app.name}"
        key.append({"code": app.code})
    return work / f"{safe(name)}-{digest(key)}" / f"seed-{seed}"


def shared_directory(work: Path, experiment: Experiment, setting: Setting) -> Path:
    """Return what all experiments share whose seeds have the same clients: the directory of those with oracles."""
    whole = experiment.model_copy(update={"oracles": 1, "shadows": 0})
    return seed_directory(work, whole, setting, 0).parent


def row_path(directory: Path, experiment: Experiment, part: Part) -> Path:
    """Return the file of a finished row."""
    decisive = of_any_machine({**DEFAULTS, **experiment.run_of(part.setting)})
    contender: Any = (
        part.contender.model_dump(mode="json", exclude={"title"}) if part.contender else part.name
    )
    key = [decisive, part.case.decisive, contender, *part.seeds, *([part.prepare] if part.prepare else [])]
    if experiment.relearn:  # rows of before keep their files
        key.append({"relearn": experiment.relearn})
    return directory / f"{safe(part.case.name)}--{safe(part.name)}-{digest(key)}.json"


def digest(value: Any) -> str:
    """Return eight characters that change with the value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]


def safe(name: str) -> str:
    """Return the name, as part of a file's name."""
    return "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in name)
