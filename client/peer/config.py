"""A peer's configuration file (YAML or TOML), checked as a whole before anything starts."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from client.peer.node import PeerRules
from strategies.sessions.endpoint import Tls
from unlearning.decentralised import (
    CorrectionSettings,
    Graph,
    NoiseSettings,
    PeerCurvature,
    check_mixing,
    complete,
    erdos_renyi,
    from_edges,
    metropolis_weights,
    ring,
)
from unlearning.errors import ConfigurationError, NumericalError
from unlearning.tasks import TaskSettings, problems
from unlearning.tls_files import is_loopback, read_pem
from unlearning.training import TrainingSettings


class _Section(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=lambda name: name.replace("_", "-"),
        populate_by_name=True,
        allow_inf_nan=False,
    )


class GraphSection(_Section):
    """Who is beside whom. edges: for the kind `edges`. probability, seed: for `erdos-renyi`."""

    kind: Literal["ring", "complete", "erdos-renyi", "edges"] = "ring"
    edges: tuple[tuple[str, str], ...] = ()
    probability: float = Field(default=0.5, gt=0, le=1)
    seed: int = Field(default=0, ge=0)


class TaskSection(_Section):
    """What is learnt; the names of `TaskSettings`."""

    dataset: str = "digits"
    model: str = "logistic"
    partition: str = "iid"
    alpha: float = 0.5
    seed: int = 0
    data_dir: str = ""
    dtype: str = "float32"
    num_classes: int = 0
    input_shape: str = ""
    max_examples: int = 0


class TrainingSection(_Section):
    """How a peer trains. rounds: 0 for ever. local_steps: SGD steps a round; 0 for `local_epochs` epochs."""

    rounds: int = Field(default=0, ge=0)
    local_steps: int = Field(default=0, ge=0)
    local_epochs: int = Field(default=1, ge=1)
    batch_size: int = Field(default=32, ge=1)
    learning_rate: float = Field(default=0.1, gt=0)
    momentum: float = Field(default=0.0, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)
    seed: int = Field(default=0, ge=0, lt=2**31)


class DeletionSection(_Section):
    """How deletions are corrected. epsilon: 0 for no noise. sensitivity: where the task has no bound."""

    curvature: PeerCurvature = PeerCurvature.HESSIAN
    damping: float = Field(default=0.0, ge=0)
    shared_curvature: bool = False
    as_published: bool = False
    fine_tuning_rounds: int = Field(default=1, ge=0)
    epsilon: float = Field(default=0.0, ge=0)
    delta: float = Field(default=1e-5, gt=0, lt=1)
    sensitivity: float | None = Field(default=None, ge=0)
    statistics_timeout_s: float = Field(default=3600.0, gt=0)


class TlsSection(_Section):
    """PEM files. The certificate's common name is the peer's id."""

    ca: Path
    certificate: Path
    key: Path


class PeerConfig(_Section):
    """One peer's file. All but the first five settings are the same at every peer.

    peer: this peer's id. listen: where it listens (host:port); empty: its own address. partition_id: which part of
    the task's data is its own; site_dir: a directory with its own data instead.
    peers: every peer's address by id, this one's too. round_timeout_s: after which a round goes on without
    neighbours that are silent.
    """

    peer: Annotated[str, Field(min_length=1)]
    state_dir: Path
    listen: str = ""
    partition_id: int = Field(default=0, ge=0)
    site_dir: Path | None = None
    tls: TlsSection | None = None
    peers: dict[str, str] = Field(min_length=1)
    num_partitions: int = Field(default=0, ge=0)
    graph: GraphSection = GraphSection()
    task: TaskSection = TaskSection()
    training: TrainingSection = TrainingSection()
    deletion: DeletionSection = DeletionSection()
    round_timeout_s: float = Field(default=600.0, gt=0)
    exchange_timeout_s: float = Field(default=60.0, gt=0)

    @property
    def bind(self) -> str:
        """Where this peer listens."""
        return self.listen or self.peers[self.peer]

    def make_graph(self) -> Graph:
        """The configured graph.

        Raises:
            ConfigurationError: it cannot be made.
        """
        match self.graph.kind:
            case "ring":
                return ring(self.peers)
            case "complete":
                return complete(self.peers)
            case "erdos-renyi":
                generator = np.random.default_rng(self.graph.seed)
                return erdos_renyi(self.peers, self.graph.probability, generator)
            case "edges":
                return from_edges(self.peers, self.graph.edges)

    def task_settings(self) -> TaskSettings:
        """The task, its data dealt out among `num-partitions`, or as many as there are peers."""
        return TaskSettings(**self.task.model_dump(), num_clients=self.num_partitions or len(self.peers))

    def training_settings(self) -> TrainingSettings:
        """Local training of one round."""
        training = self.training
        return TrainingSettings(
            epochs=training.local_epochs,
            batch_size=training.batch_size,
            learning_rate=training.learning_rate,
            momentum=training.momentum,
            weight_decay=training.weight_decay,
            seed=training.seed,
        )

    def corrections(self) -> CorrectionSettings:
        """How corrections are computed."""
        deletion = self.deletion
        return CorrectionSettings(
            curvature=deletion.curvature,
            l2=self.training.weight_decay,
            damping=deletion.damping,
            as_published=deletion.as_published,
        )

    def noise(self) -> NoiseSettings | None:
        """The budget of a deletion; None for no noise."""
        deletion = self.deletion
        if not deletion.epsilon:
            return None
        return NoiseSettings(
            epsilon=deletion.epsilon,
            delta=deletion.delta,
            sensitivity=deletion.sensitivity,
            as_published=deletion.as_published,
        )

    def rules(self) -> PeerRules:
        """What all peers agree on."""
        return PeerRules(
            rounds=self.training.rounds,
            fine_tuning_rounds=self.deletion.fine_tuning_rounds,
            shared_curvature=self.deletion.shared_curvature,
            weighs_examples=not self.deletion.as_published,
            mixes_first=self.training.local_steps != 1,
        )

    def tls_files(self) -> Tls | None:
        """The certificates, if there are any."""
        return None if self.tls is None else Tls(self.tls.ca, self.tls.certificate, self.tls.key)


def read_config(path: Path) -> PeerConfig:
    """The configuration in `path`: TOML where it ends in .toml, else YAML.

    Raises:
        ConfigurationError: it cannot be read, or settings are wrong; lists all.
    """
    try:
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text) if path.suffix == ".toml" else yaml.safe_load(text)
    except (OSError, UnicodeError, tomllib.TOMLDecodeError, yaml.YAMLError) as exc:
        raise ConfigurationError([f"{path} cannot be read: {exc}"]) from exc
    if not isinstance(values, Mapping):
        raise ConfigurationError([f"{path} does not hold a table of settings."])
    return checked_config(values)


def checked_config(values: Mapping[str, Any]) -> PeerConfig:
    """The configuration of these values.

    Raises:
        ConfigurationError: settings are wrong; lists all.
    """
    try:
        config = PeerConfig.model_validate(dict(values))
    except ValidationError as exc:
        raise ConfigurationError(
            [f"{'.'.join(map(str, error['loc']))}: {error['msg']}." for error in exc.errors()]
        ) from exc
    found = [f"task: {problem}" for problem in problems(config.task_settings())]
    if config.peer not in config.peers:
        found.append(f"peers: this peer, {config.peer!r}, must be among them, with its address.")
        raise ConfigurationError(found)
    try:
        if len(config.peers) > 1:
            check_mixing(metropolis_weights(config.make_graph()))
    except ConfigurationError as exc:
        found += [f"graph: {problem}" for problem in exc.problems]
    except NumericalError as exc:
        found.append(f"graph: {exc}")
    if config.tls is None:
        beyond = [address for address in (config.bind, *config.peers.values()) if not is_loopback(address)]
        if beyond:
            found.append(f"tls: it is needed beyond this machine, and {beyond[0]} is.")
    else:
        try:
            read_pem(config.tls.model_dump())
        except ConfigurationError as exc:
            found += exc.problems
    deletion = config.deletion
    if deletion.as_published and deletion.epsilon >= 1:
        found.append("deletion.epsilon: the published noise is proven for epsilon below 1 only.")
    if found:
        raise ConfigurationError(found)
    return config
