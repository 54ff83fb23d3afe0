"""What an experiment file may say: which federations, what is forgotten, by which methods, how often.

name: two-hospitals
title: Two of ten hospitals leave
run: {dataset: digits, model: mlp, num-clients: 10, rounds: 12}     # run settings
settings:                                                           # optional: several federations
  - {name: IID}
  - {name: label skew, run: {partition: dirichlet, alpha: 0.3}}
seeds: [0, 1, 2]
oracles: 100                                                  # optional, instead of seeds: `benchmarks.bench.oracles`
shadows: 16                                                   # or this: `benchmarks.bench.shadows`
cases:
  - {name: two clients, clients: ["0", "1"]}
  - {name: half of a client's samples, clients: ["0"], share: 0.5}
  - {name: a class, class: 3}
  - {name: mixed, clients: ["0"], mixed: 0.2}                       # only with oracles or shadows
methods:
  - natural
  - {method: pga, prepare: pga, parameters: {max_distance: 5}}
columns: [test, forget, bytes]                                      # optional: one table of these
published:                                                          # optional: a paper's rows, below ours
  - {source: "PUF, Table III", columns: [forget, bytes], rows: {pga: [3.2, 17.3×]}}
sizes:                                                              # optional: two-hospitals-small, …-full
  small: {run: {max-examples: 500}}
  full: {run: {rounds: 200}}
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from benchmarks.bench.batched_training import suits
from benchmarks.bench.cases import Case, Contender, Published, Setting, Strict
from benchmarks.bench.columns import COLUMNS, ORIGINAL, RETRAIN, is_retrain
from benchmarks.bench.experiment_files import read_values, shipped_experiments
from benchmarks.bench.own_app import app_in
from benchmarks.bench.u_lira import FEWEST_PAIRS
from strategies import built_in
from strategies.settings.task_source import TaskSource
from unlearning.errors import ConfigurationError, RequestError
from unlearning.methods.eligibility import FederationProfile, check_eligible
from unlearning.methods.registry import check_supports, method_named, preparations, validated_parameters
from unlearning.requests import Granularity, Target


def _contender(value: Any) -> Any:
    return {"method": value} if isinstance(value, str) else value


class Experiment(Strict):
    """One experiment file."""

    name: str = Field(pattern=r"[a-z0-9][a-z0-9.-]*")
    title: str
    about: str = ""
    run: Mapping[str, Any]
    settings: tuple[Setting, ...] = Field(default=(Setting(),), min_length=1)
    seeds: tuple[int, ...] = Field(min_length=1)
    oracles: int = Field(default=0, ge=0, description="retrained models a case, and as many unlearned ones")
    shadows: int = Field(default=0, ge=0, description="federations with one half of what is forgotten each")
    relearn: int = Field(
        default=0,
        ge=0,
        description="the most rounds on the forgotten data after which each model is looked at",
    )
    cases: tuple[Case, ...] = Field(min_length=1)
    methods: tuple[Annotated[Contender, BeforeValidator(_contender)], ...] = Field(min_length=1)
    columns: tuple[str, ...] = ()
    published: tuple[Published, ...] = ()
    pictures: bool = Field(default=True, description="whether figures are drawn beside the tables")
    app: str = Field(
        default="", description="the directory of an app of one's own; empty for the built-in tasks"
    )

    @model_validator(mode="before")
    @classmethod
    def _seeds_of_number(cls, value: Any) -> Any:
        if isinstance(value, dict) and "seeds" not in value:
            number = value.get("oracles") or value.get("shadows")
            if isinstance(number, int):
                return {**value, "seeds": tuple(range(number))}
        return value

    @classmethod
    def read(cls, path: Path, size: str = "") -> "Experiment":
        """Return the experiment in a file, in one of its sizes where it has several.

        What a size says replaces what the file says; run settings are replaced one by one.

        Raises:
            ConfigurationError: lists everything that is wrong with it.
        """
        try:
            experiment = cls.model_validate(read_values(path, size))
        except ValidationError as exc:
            raise ConfigurationError(
                [f"{'.'.join(map(str, error['loc'])) or path}: {error['msg']}." for error in exc.errors()]
            ) from exc
        return experiment.checked()

    def checked(self) -> "Experiment":
        """Return the experiment itself.

        Raises:
            ConfigurationError: lists everything that is wrong with it.
        """
        if wrong := list(self.problems()):
            raise ConfigurationError(wrong)
        return self

    def of_number(self, number: int) -> "Experiment":
        """Return the experiment with so many shadow federations where it has some, else with so many oracles.

        Raises:
            ConfigurationError: it cannot have so many.
        """
        changes = {"shadows" if self.shadows else "oracles": number, "seeds": tuple(range(number))}
        return self.model_copy(update=changes).checked()

    @property
    def source(self) -> TaskSource:
        """Whose function makes the task."""
        return app_in(self.app).source if self.app else built_in.SOURCE

    @property
    def shares_clients(self) -> bool:
        """Whether all its seeds have the same clients."""
        return bool(self.oracles or self.shadows)

    def run_of(self, setting: Setting) -> dict[str, Any]:
        """Return the run settings there: the experiment's with the setting's own over them."""
        return {**self.run, **setting.run}

    def shared_prepare(self) -> dict[str, str]:
        """Return what all methods need that share one training, by method; see `Contender.preparing`."""
        return {
            method: entry
            for contender in self.methods
            if not contender.trains_alone
            for method, entry in contender.preparing.items()
        }

    def problems(self) -> Iterable[str]:
        """Yield one sentence for each thing that is wrong; no data is read."""
        yield from _twice("methods", [contender.name for contender in self.methods])
        yield from _twice("settings", [setting.name for setting in self.settings])
        yield from _twice("cases", [case.name for case in self.cases])
        yield from _twice("columns", self.columns, "name it once")
        yield from _twice("seeds", list(map(str, self.seeds)), "name it once")
        yield from (f"seeds: from 0 to {2**31 - 1}, not {one}." for one in self.seeds if not 0 <= one < 2**31)
        yield from self._problems_of_shared_clients()
        yield from (of_methods := list(self._problems_of_methods()))
        for setting in self.settings:
            where = f"settings, {setting.name}" if setting.name else "run"
            yield from (of_setting := list(self._problems_of_setting(setting, where)))
            if not of_methods and not of_setting:
                yield from self._refusals(setting, where)
        for case in self.cases:
            yield from _twice(f"cases, {case.name}", case.clients, "name it once")
            if (case.class_label is None) == (not case.clients):
                yield f"cases, {case.name}: give either clients or a class."
            if case.mixed is not None and (case.class_label is not None or case.share < 1):
                yield f"cases, {case.name}: mixed stands with clients alone, without share or class."
        yield from (
            f"columns: there is no {column!r}; known are {', '.join(COLUMNS)}."
            for column in {*self.columns, *(name for item in self.published for name in item.columns)}
            if column not in COLUMNS
        )
        yield from self._problems_of_published()

    def _problems_of_shared_clients(self) -> Iterable[str]:
        if self.oracles and self.shadows:
            yield "oracles, shadows: give one of the two; the clients of shadow federations have a half only."
            return
        number = self.oracles or self.shadows
        if number and self.seeds != tuple(range(number)):
            name = "oracles" if self.oracles else "shadows"
            yield f"seeds: with {name}: {number} they are 0 to {number - 1}; leave them out."
        if self.shadows and (self.shadows % 2 or self.shadows < 2 * FEWEST_PAIRS):
            yield f"shadows: they come in pairs; give an even number from {2 * FEWEST_PAIRS}, not {self.shadows}."
        if self.shadows and len(self.cases) > 1:
            yield "shadows: each trains on a half of what is forgotten, so give one case only."
        mixed = [case.name for case in self.cases if case.mixed is not None]
        if mixed and not number:
            yield f"cases, {mixed[0]}: mixed is for oracles or shadows, experiments whose seeds share their clients."

    def _problems_of_methods(self) -> Iterable[str]:
        prepared: dict[str, str] = {}
        for contender in self.methods:
            if contender.name == ORIGINAL or is_retrain(contender.name):
                yield f"methods, {contender.name}: the tables have a row of that name; give it a title."
            try:
                method = method_named(contender.method)
                validated_parameters(method, contender.parameters)
                preparing = contender.preparing
            except (RequestError, ConfigurationError) as exc:
                yield f"methods, {contender.name}: {exc}"
                continue
            if self.oracles and contender.retraining:
                yield (
                    f"methods, {contender.name}: it is compared with a Retrain of its own kind, of which there are no "
                    "oracles. Leave it out."
                )
            if method.info.preparation is not None and contender.method not in preparing:
                yield f'methods, {contender.name}: it needs prepare: "{contender.method}".'
            for name, entry in {} if contender.trains_alone else preparing.items():
                if prepared.setdefault(name, entry) != entry:
                    yield (
                        f"methods, {contender.name}: {entry!r} and {prepared[name]!r} cannot share one training."
                    )

    def _problems_of_setting(self, setting: Setting, where: str) -> Iterable[str]:
        try:
            run = self.source.read(self.run_of(setting)).run
            task = self.source.prepared(self.run_of(setting))
        except ConfigurationError as exc:
            yield from (f"{where}: {problem}" for problem in exc.problems)
            return
        mixed = any(case.mixed is not None for case in self.cases)
        if mixed and (run.fraction < 1 or not suits(task, run.training(1))):
            yield (
                f"{where}: mixed needs a first pass of many models trained at once: a linear head or an MLP, plain "
                "SGD, all clients in every round."
            )
        if self.app and (setting.backdoor or setting.noise or self.shares_clients):
            yield f"{where}: an own app's data stays as it is: leave out backdoor, noise, oracles and shadows."
        known = set(map(str, range(run.num_clients)))
        named = {client for case in self.cases for client in case.clients}
        yield from (
            f"{where}: {case.name} forgets every client, and none is left to train."
            for case in self.cases
            if case.granularity is Granularity.CLIENT and known <= {*case.clients}
        )
        planting = [item.client for item in (setting.backdoor, setting.noise) if item is not None]
        if len(set(planting)) < len(planting):
            yield f"{where}: client {planting[0]} plants both a backdoor and noise; give them to two clients."
        named.update(planting)
        yield from (f"{where}: there is no client {client}." for client in sorted(named - known))

    def _refusals(self, setting: Setting, where: str) -> Iterable[str]:
        """Yield which methods cannot be prepared for in a setting, or refuse all that is asked of them there."""
        known: dict[str, FederationProfile | None] = {}
        for contender in self.methods:
            entries = contender.preparing if contender.trains_alone else self.shared_prepare()
            prepare = "; ".join(entries.values())
            if prepare not in known:
                try:
                    known[prepare] = self._profile({**self.run_of(setting), "prepare": prepare})
                except ConfigurationError as exc:
                    known[prepare] = None
                    yield from (f"{where}, {contender.name}: {problem}" for problem in exc.problems)
            if (profile := known[prepare]) is None:
                continue
            method, prepared = method_named(contender.method), preparations(prepare)
            try:
                for case in (one for one in self.cases if self.serves(contender, one)):
                    for target in _targets(case):
                        check_eligible(method, target, profile, prepared)
            except RequestError as exc:
                yield f"{where}, {contender.name}: {exc}"

    def _profile(self, values: Mapping[str, Any]) -> FederationProfile:
        run, prepared = self.source.read(values).run, preparations(str(values["prepare"]))
        task = replace(self.source.prepared(values), load_pretrained=None)  # which may have to be downloaded
        return run.profile(task, prepare=run.prepare, prepared_since=dict.fromkeys(prepared, 0))

    def _problems_of_published(self) -> Iterable[str]:
        names = {ORIGINAL, RETRAIN, *(contender.name for contender in self.methods)}
        for item in self.published:
            where = f"published, {item.source}"
            yield from (
                f"{where}: there is no row {name!r} of ours to put it below."
                for name in item.rows
                if name not in names
            )
            yield from (
                f"{where}, {name}: it has {len(values)} values for {len(item.columns)} columns."
                for name, values in item.rows.items()
                if len(values) != len(item.columns)
            )
            if item.settings and not {*item.settings} & {setting.name for setting in self.settings}:
                yield f"{where}: there is no setting {' or '.join(map(repr, item.settings))}."
            if item.case not in {None, *(case.name for case in self.cases)}:
                yield f"{where}: there is no case {item.case!r}."

    def serves(self, contender: Contender, case: Case) -> bool:
        """Return whether the method, as it is prepared for, serves the case, and as many targets at once."""
        method = method_named(contender.method)
        prepared = preparations(contender.prepare).get(contender.method)
        try:
            for target in _targets(case):
                check_supports(method, target)
                if prepared is not None and prepared.refusal(target):
                    return False
        except RequestError:
            return False
        return method.info.several_at_once or len(case.clients) <= 1


def _targets(case: Case) -> list[Target]:
    """Return a case's targets, with made-up sample ids: whether a method serves them does not depend on these."""
    return case.targets({client: ["0", "1"] for client in case.clients})


def found(name_or_path: str) -> Experiment:
    """Return an experiment: by the name of one that comes with the project, or a file, perhaps with `:SIZE`.

    Raises:
        ConfigurationError: there is none, with a list of those there are; or see `Experiment.read`.
    """
    known = shipped_experiments()
    if name_or_path in known:
        return Experiment.read(*known[name_or_path])
    path, _, size = name_or_path.partition(":")
    if Path(path).exists():
        return Experiment.read(Path(path), size)
    raise ConfigurationError(
        [f"There is no experiment {name_or_path!r}. Give a file, or one of: {', '.join(known)}."]
    )


def _twice(where: str, names: Sequence[str], advice: str = "give each a name of its own") -> Iterable[str]:
    yield from (
        f"{where}: {name or 'one without a name'} is there twice; {advice}."
        for name in sorted(set(names))
        if names.count(name) > 1
    )
