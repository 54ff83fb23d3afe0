"""What an experiment file may say: which federation, what is forgotten, by which methods, how often.

name: fashion-mnist-cnn-small
title: Forgetting in ten clients, FashionMNIST, small CNN
run: {dataset: fashion-mnist, model: cnn, num-clients: 10, rounds: 10}     # run settings
seeds: [0, 1, 2]
cases:
  - {name: one client, clients: ["0"]}
  - {name: half of a client's samples, clients: ["0"], share: 0.5}
  - {name: a class, class: 3}
methods:
  - natural
  - {method: pga, prepare: pga, parameters: {max_distance: 5}}
published:
  source: PUF, Table 1 (CIFAR-10, ResNet-18)
  columns: [forget accuracy Δ, bytes ×]
  rows: {pga: [3.2, 17.3]}
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from strategies.run_config import RunSettings
from unlearning.errors import ConfigurationError, RequestError
from unlearning.methods import check_supports, method_named, preparations, validated_parameters
from unlearning.requests import Granularity, Target

SHIPPED = Path(__file__).parent / "experiments"


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Case(_Strict):
    """What is forgotten: whole clients, a share of each client's samples, or a class."""

    name: str = Field(min_length=1)
    clients: tuple[str, ...] = ()
    share: float = Field(default=1.0, gt=0, le=1, description="of each client's samples")
    class_label: int | None = Field(default=None, alias="class", ge=0)

    @property
    def granularity(self) -> Granularity:
        """At which level it forgets."""
        if self.class_label is not None:
            return Granularity.CLASS
        return Granularity.CLIENT if self.share == 1 else Granularity.SAMPLE

    def targets(self, sample_ids: Mapping[str, Sequence[str]]) -> list[Target]:
        """The deletion targets; the first share of each client's ids in order where it forgets samples."""
        if self.class_label is not None:
            return [Target(Granularity.CLASS, class_label=self.class_label)]
        if self.share == 1:
            return [Target(Granularity.CLIENT, client) for client in self.clients]
        return [
            Target(
                Granularity.SAMPLE,
                client,
                frozenset(sample_ids[client][: max(1, round(self.share * len(sample_ids[client])))]),
            )
            for client in self.clients
        ]


class Contender(_Strict):
    """A method of the comparison, with what it needs prepared and its parameters."""

    method: str
    title: str = ""
    prepare: str = ""
    parameters: Mapping[str, Any] = Field(default_factory=dict)

    @property
    def key(self) -> str:
        """Its name in files and results."""
        return (self.title or self.method).lower().replace(" ", "-")


class Published(_Strict):
    """Figures of a paper, to stand beside ours."""

    source: str
    columns: tuple[str, ...]
    rows: Mapping[str, tuple[float | str, ...]]


def _contender(value: Any) -> Any:
    return {"method": value} if isinstance(value, str) else value


class Experiment(_Strict):
    """One experiment file."""

    name: str = Field(pattern=r"[a-z0-9][a-z0-9.-]*")
    title: str
    about: str = ""
    run: Mapping[str, Any]
    seeds: tuple[int, ...] = Field(min_length=1)
    cases: tuple[Case, ...] = Field(min_length=1)
    methods: tuple[Annotated[Contender, BeforeValidator(_contender)], ...] = Field(min_length=1)
    published: Published | None = None

    @classmethod
    def read(cls, path: Path) -> "Experiment":
        """The experiment in a file.

        Raises:
            ConfigurationError: lists everything that is wrong with it.
        """
        try:
            value = yaml.safe_load(path.read_text(encoding="utf-8"))
            experiment = cls.model_validate(value)
        except OSError as exc:
            raise ConfigurationError([f"{path} cannot be read: {exc.strerror}."]) from exc
        except (yaml.YAMLError, UnicodeError) as exc:
            raise ConfigurationError([f"{path} is no YAML: {exc}"]) from exc
        except ValidationError as exc:
            raise ConfigurationError(
                [f"{'.'.join(map(str, error['loc'])) or path}: {error['msg']}." for error in exc.errors()]
            ) from exc
        wrong = list(experiment.problems())
        if wrong:
            raise ConfigurationError(wrong)
        return experiment

    def problems(self) -> Iterable[str]:
        """One sentence for each thing that is wrong; no data is read."""
        keys = [contender.key for contender in self.methods]
        yield from (
            f"methods: {key} is there twice; give one a title." for key in {*keys} if keys.count(key) > 1
        )
        settings = None
        try:
            settings = RunSettings.from_run_config(self.run)
        except ConfigurationError as exc:
            yield from (f"run: {problem}" for problem in exc.problems)
        for contender in self.methods:
            try:
                method = method_named(contender.method)
                validated_parameters(method, contender.parameters)
                prepared = preparations(contender.prepare)
            except (RequestError, ConfigurationError) as exc:
                yield f"methods, {contender.key}: {exc}"
                continue
            if method.info.preparation is not None and contender.method not in prepared:
                yield f'methods, {contender.key}: it needs prepare: "{contender.method}".'
        for case in self.cases:
            if (case.class_label is None) == (not case.clients):
                yield f"cases, {case.name}: give either clients or a class."
            if settings is not None:
                unknown = [c for c in case.clients if c not in map(str, range(settings.num_clients))]
                yield from (f"cases, {case.name}: there is no client {client}." for client in unknown)

    def serves(self, contender: Contender, case: Case) -> bool:
        """Whether the method, as it is prepared for, serves the case, and as many targets at once."""
        method = method_named(contender.method)
        prepared = preparations(contender.prepare).get(contender.method)
        try:
            for target in case.targets({client: ["0", "1"] for client in case.clients}):
                check_supports(method, target)
                if prepared is not None and prepared.preparation.refusal(prepared.options, target):
                    return False
        except RequestError:
            return False
        return method.info.several_at_once or len(case.clients) <= 1


def shipped() -> dict[str, Path]:
    """The experiments that come with the project, by name."""
    return {path.stem: path for path in sorted(SHIPPED.glob("*.yaml"))}


def found(name_or_path: str) -> Path:
    """The file of an experiment: a path, or the name of one that comes with the project.

    Raises:
        ConfigurationError: there is none; the message lists those there are.
    """
    if name_or_path in shipped():
        return shipped()[name_or_path]
    path = Path(name_or_path)
    if path.exists():
        return path
    raise ConfigurationError(
        [f"There is no experiment {name_or_path!r}. Give a file, or one of: {', '.join(shipped())}."]
    )
