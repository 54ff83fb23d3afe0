"""A peer's configuration file (YAML or TOML), checked as a whole before anything starts."""

import tomllib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from client.peer.record import PeerRules
from strategies.addresses import is_address
from strategies.settings.groups import AbsolutePath
from strategies.settings.run_config import TYPED
from strategies.tls_files import TlsFiles, is_loopback
from unlearning.buffers import buffer_positions
from unlearning.certified.noise_certificate import unmet_assumptions
from unlearning.certified.sensitivity import Constants, logistic_constants, trajectory_norm
from unlearning.decentralised.calibration import NoiseSettings
from unlearning.decentralised.corrections import CorrectionSettings, PeerCurvature
from unlearning.decentralised.graphs import Graph, complete, erdos_renyi, from_edges, ring
from unlearning.decentralised.mixing import check_mixing, metropolis_weights
from unlearning.errors import ConfigurationError, NumericalError
from unlearning.methods.preparation import no_truth_for_numbers
from unlearning.parameters import Vector, norm
from unlearning.tasks.settings import LearntTask, TaskSettings, problems
from unlearning.tasks.task import Task
from unlearning.training import TrainingSettings

_CORRECTION_FACTOR = 3.0
"""Corrections on digits moved models by 0.1 to 0.9 of the untrained one's length, and by 3 where they overshot."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, **TYPED)
    _numbers = no_truth_for_numbers


class GraphSection(_Section):
    """The graph of the peers. edges: for the kind `edges`. probability, seed: for `erdos-renyi`.

    neighbours: of this peer, where it joins a federation; the graph is then that of the other `peers`.
    """

    kind: Literal["ring", "complete", "erdos-renyi", "edges"] = "ring"
    edges: tuple[tuple[str, str], ...] = ()
    probability: float = Field(default=0.5, gt=0, le=1)
    seed: int = Field(default=0, ge=0)
    neighbours: tuple[str, ...] = ()


class TrainingSection(_Section):
    """A peer's training. rounds: 0 for no end. local_steps: SGD steps a round; 0 for `local_epochs` epochs."""

    rounds: int = Field(default=0, ge=0)
    local_steps: int = Field(default=0, ge=0)
    local_epochs: int = Field(default=1, ge=1)
    batch_size: int = Field(default=32, ge=1)
    learning_rate: float = Field(default=0.1, gt=0)
    momentum: float = Field(default=0.0, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)
    seed: int = Field(default=0, ge=0, lt=2**31)


class DeletionSection(_Section):
    """The correction of deletions. epsilon: 0 for no noise. sensitivity: where the task has no bound."""

    curvature: PeerCurvature = PeerCurvature.HESSIAN
    damping: float = Field(default=0.0, ge=0)
    shared_curvature: bool = False
    as_published: bool = False
    fine_tuning_rounds: int = Field(default=1, ge=0)
    epsilon: float = Field(default=0.0, ge=0)
    delta: float = Field(default=1e-5, gt=0, lt=1)
    sensitivity: float | None = Field(default=None, ge=0)
    statistics_timeout_s: float = Field(default=3600.0, gt=0)


class LimitsSection(_Section):
    """Bounds on what one peer may bring to the others; see `PeerRules`.

    count_factor: a peer's number of examples counts up to this multiple of the median. correction_norm: 0 for three
    times the length of the untrained model, at least 3. feature_norm: no example's inputs, with a 1 for the bias, are
    longer; 0 where that is not known.
    """

    neighbours: int = Field(default=32, ge=1)
    requests: int = Field(default=1_000, ge=0)
    count_factor: float = Field(default=10.0, ge=1)
    correction_norm: float = Field(default=0.0, ge=0)
    feature_norm: float = Field(default=0.0, ge=0)
    class_requests_from: tuple[str, ...] = ()


class TlsSection(_Section):
    """PEM files, all three. The certificate's common name is the peer's id."""

    ca: Path
    certificate: Path
    key: Path


class PeerConfig(_Section):
    """One peer's file. All but the first five settings are the same at every peer.

    peer: this peer's id. listen: where it listens (host:port); empty: its own address. partition_id: which part of
    the task's data is its own; site_dir: a directory with its own data instead. tls: PEM files; the certificate's
    common name is the peer's id.
    peers: the address by id of every peer that begins the federation, and of this one. members: who may join later.
    federation: its name, which items are signed with; another name is another federation of the same certificates.
    round_timeout_s: after which a round goes on without neighbours that are silent. start_timeout_s: after which the
    first begins without members that have never spoken.
    """

    peer: Annotated[str, Field(min_length=1)]
    state_dir: AbsolutePath
    listen: str = ""
    partition_id: int = Field(default=0, ge=0)
    site_dir: AbsolutePath | None = None
    tls: TlsSection | None = None
    peers: dict[str, str] = Field(min_length=1)
    members: tuple[str, ...] = ()
    federation: str = ""
    num_partitions: int = Field(default=0, ge=0)
    graph: GraphSection = GraphSection()
    task: LearntTask = LearntTask()
    training: TrainingSection = TrainingSection()
    deletion: DeletionSection = DeletionSection()
    limits: LimitsSection = LimitsSection()
    start_timeout_s: float = Field(default=3600.0, gt=0)
    round_timeout_s: float = Field(default=600.0, gt=0)
    exchange_timeout_s: float = Field(default=60.0, gt=0)

    @property
    def bind(self) -> str:
        """Where this peer listens."""
        return self.listen or self.peers[self.peer]

    def make_graph(self) -> Graph:
        """Return the configured graph.

        Raises:
            ConfigurationError: it cannot be made.
        """
        neighbours, peers = self.graph.neighbours, set(self.peers)
        if neighbours:
            peers.discard(self.peer)
            return self._graph_of(peers).join(self.peer, neighbours)
        return self._graph_of(peers)

    def _graph_of(self, peers: set[str]) -> Graph:
        match self.graph.kind:
            case "ring":
                return ring(peers)
            case "complete":
                return complete(peers)
            case "erdos-renyi":
                generator = np.random.default_rng(self.graph.seed)
                return erdos_renyi(peers, self.graph.probability, generator)
            case "edges":
                return from_edges(peers, self.graph.edges)

    def task_settings(self) -> TaskSettings:
        """Return the task, its data dealt out among `num-partitions`, or among all peers."""
        return TaskSettings(**asdict(self.task), num_clients=self.num_partitions or len(self.peers))

    def training_settings(self) -> TrainingSettings:
        """Return the settings of one round's local training."""
        of_rounds = {"rounds", "local_steps", "local_epochs"}
        local = self.training.model_dump(exclude=of_rounds)
        return TrainingSettings(epochs=self.training.local_epochs, **local)

    def corrections(self) -> CorrectionSettings:
        """Return how corrections are computed."""
        deletion = self.deletion
        return CorrectionSettings(
            curvature=deletion.curvature,
            l2=self.training.weight_decay,
            damping=deletion.damping,
            as_published=deletion.as_published,
        )

    def noise(self) -> NoiseSettings | None:
        """Return the budget of a deletion; None for no noise."""
        deletion = self.deletion
        if not deletion.epsilon:
            return None
        return NoiseSettings(
            epsilon=deletion.epsilon,
            delta=deletion.delta,
            sensitivity=deletion.sensitivity,
            as_published=deletion.as_published,
        )

    def tls_files(self) -> TlsFiles | None:
        """Return the certificates, if there are any."""
        if self.tls is None:
            return None
        return TlsFiles(self.tls.ca, self.tls.certificate, self.tls.key, names=("ca", "certificate", "key"))

    def rules(self, task: Task, start: Vector) -> PeerRules:
        """Return what all peers agree on. start: the untrained model (d,)."""
        deletion, limits = self.deletion, self.limits
        return PeerRules(
            rounds=self.training.rounds,
            fine_tuning_rounds=deletion.fine_tuning_rounds,
            shared_curvature=deletion.shared_curvature,
            weighs_examples=not deletion.as_published,
            mixes_first=self.training.local_steps != 1,
            buffers=tuple(buffer_positions(task).tolist()),
            members=frozenset(self.members),
            max_neighbours=limits.neighbours,
            max_requests=limits.requests,
            class_requests_from=frozenset(limits.class_requests_from),
            correction_norm=limits.correction_norm or _CORRECTION_FACTOR * max(1.0, norm(start)),
            constants=self._constants(task, start),
            shares_matrices=deletion.curvature is not PeerCurvature.FISHER_DIAGONAL,
            count_factor=limits.count_factor,
        )

    def _constants(self, task: Task, start: Vector) -> Constants | None:
        """Return the constants that bound corrections; None where no feature norm is given, or there are none."""
        longest, l2 = self.limits.feature_norm, self.training.weight_decay
        if not longest or unmet_assumptions(task, l2):
            return None
        return logistic_constants(
            feature_norm=longest,
            weight_norm=trajectory_norm(start_norm=norm(start), feature_norm=longest, l2=l2),
            l2=l2,
            features_from="limits.feature-norm",
        )


def read_config(path: Path) -> PeerConfig:
    """Return the configuration in `path`: TOML where it ends in .toml, else YAML.

    Raises:
        ConfigurationError: it cannot be read, or settings are wrong; lists all.
    """
    try:
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text) if path.suffix == ".toml" else yaml.safe_load(text)
    # ValueError: also of a date that is none
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as exc:
        raise ConfigurationError([f"{path} cannot be read: {exc}"]) from exc
    if not isinstance(values, Mapping):
        raise ConfigurationError([f"{path} does not hold a table of settings."])
    return validate_config(values)


def validate_config(values: Mapping[str, Any]) -> PeerConfig:
    """Return the configuration of these values.

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
    for address in filter(None, (config.listen, *config.peers.values())):
        if not is_address(address):
            found.append(f"peers, listen: {address!r} is not of the form HOST:PORT, or [HOST]:PORT for IPv6.")
    if config.peer not in config.peers:
        found.append(f"peers: this peer, {config.peer!r}, must be among them, with its address.")
        raise ConfigurationError(found)
    found += [*_graph_problems(config), *_tls_problems(config)]
    deletion = config.deletion
    if deletion.epsilon and not config.limits.correction_norm:
        found.append(
            "limits.correction-norm: with noise it must be given, for peers take no larger correction, and how long "
            "one is depends on the noise: try it on a copy (`moves_model_by` in the status), and leave room."
        )
    if deletion.as_published and deletion.epsilon >= 1:
        found.append("deletion.epsilon: the published noise is proven for epsilon below 1 only.")
    if found:
        raise ConfigurationError(found)
    return config


def _graph_problems(config: PeerConfig) -> list[str]:
    strange = set(config.graph.neighbours) - (set(config.peers) - {config.peer})
    if strange:
        return [f"graph.neighbours: {min(strange)!r} is not another of the peers, with its address."]
    try:
        if len(config.peers) > 1:
            check_mixing(metropolis_weights(config.make_graph()))
    except ConfigurationError as exc:
        return [f"graph: {problem}" for problem in exc.problems]
    except NumericalError as exc:
        return [f"graph: {exc}"]
    return []


def _tls_problems(config: PeerConfig) -> list[str]:
    files = config.tls_files()
    if files is None:
        beyond = [address for address in (config.bind, *config.peers.values()) if not is_loopback(address)]
        return [f"tls: it is needed beyond this machine, and {beyond[0]} is."] if beyond else []
    try:
        files.read()
    except ConfigurationError as exc:
        return list(exc.problems)
    return []
