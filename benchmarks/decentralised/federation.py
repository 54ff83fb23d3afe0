"""Ten peers in one process, by turns: their data, their graph, and what they are asked to forget."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from benchmarks.data import sites_and_test
from benchmarks.decentralised.in_process import InProcessNetwork
from client.peer.journal import Journal, PeerModel
from client.peer.learner import Round, SiteLearner
from client.peer.peer import Peer
from client.peer.record import PeerRules
from unlearning.decentralised.corrections import CorrectionSettings
from unlearning.decentralised.graphs import Graph, erdos_renyi, ring
from unlearning.parameters import Vector
from unlearning.requests import Forget, Granularity, Target
from unlearning.tasks import TaskSettings, make_task
from unlearning.tasks.task import Examples, Task, forgotten_mask
from unlearning.training import TrainingSettings, initial_parameters

NAMES = tuple(str(index) for index in range(10))
ALPHA = 0.3
EDGE_PROBABILITY = 0.4
SHARE = 0.1
"""Of everybody's samples, in one request of each peer."""
SEQUENCE_SHARE, SEQUENCE_LENGTH = 0.2, 3
"""Of everybody's samples, in that many requests of each peer, one after the other."""
CLASS = 0


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A data set, its model and its sizes, and how corrections are computed.

    max_examples: of training, at all peers together; 0 for all. client_corrections: for a whole client, whose
    correction needs the others' curvature, and a whole matrix is too large to be sent. compared: other ways to
    compute corrections.
    """

    dataset: str
    model: str
    max_examples: int
    rounds: int
    batch_size: int
    learning_rate: float
    corrections: CorrectionSettings
    client_corrections: CorrectionSettings
    compared: tuple[CorrectionSettings, ...] = ()


@dataclass(frozen=True)
class Recording(SiteLearner):
    """Keeps the peer's last move, as PDUDT needs it."""

    moves: list[Vector] = field(default_factory=list)

    def move(self, step: Round) -> Vector:
        """Return as the site's learner does, and remembered."""
        self.moves[:] = [super().move(step)]
        return self.moves[0]


@dataclass(frozen=True, kw_only=True)
class Federation:
    """Ten peers with their data, on a graph. leaver: the client that is asked to go."""

    experiment: Experiment
    settings: TaskSettings
    task: Task
    sites: Mapping[str, Examples]
    test: Examples
    graph: Graph
    leaver: str

    def network(
        self,
        *,
        corrections: CorrectionSettings | None = None,
        sites: Mapping[str, Examples] | None = None,
        graph: Graph | None = None,
        rounds: int | None = None,
        starts: Mapping[str, Vector] | None = None,
        begun: int = 0,
    ) -> InProcessNetwork:
        """Return peers before the first round, or with these models after `begun` rounds."""
        experiment, graph = self.experiment, graph or self.graph
        rules = PeerRules(rounds=experiment.rounds if rounds is None else rounds, mixes_first=True)
        start = initial_parameters(self.task, self.settings.seed)
        training = TrainingSettings(
            batch_size=experiment.batch_size,
            learning_rate=experiment.learning_rate,
            seed=self.settings.seed,
        )
        peers = []
        for name in graph.nodes:
            journal = Journal()
            if starts is not None:
                journal.put_model(PeerModel(round=begun, vector=starts[name], has_trained=True))
            learner = Recording(
                peer=name,
                task=self.task,
                examples=(sites or self.sites)[name],
                training=training,
                corrections=corrections or experiment.corrections,
            )
            peers.append(Peer(name, graph, learner, journal, rules, start))
        return InProcessNetwork(peers)


@dataclass(frozen=True, kw_only=True)
class Trained:
    """After training: models (10, d), what the leaver's moves account for in them (10, d), accuracy by round."""

    models: Vector
    influence: Vector
    curve: NDArray[np.float64]

    def starts(self) -> dict[str, Vector]:
        """Return the models by peer."""
        return dict(zip(NAMES, self.models, strict=True))


def made_federation(
    experiment: Experiment, *, partition: str, topology: str, seed: int, data_dir: str
) -> Federation:
    """Return the federation of one seed, which decides data, graph, start and who leaves.

    Raises:
        ConfigurationError, DataError: the data is missing or the experiment does not fit it.
    """
    settings = TaskSettings(
        dataset=experiment.dataset,
        model=experiment.model,
        partition=partition,
        alpha=ALPHA,
        num_clients=len(NAMES),
        data_dir=data_dir,
        max_examples=experiment.max_examples,
        seed=seed,
    )
    sites, test = sites_and_test(settings)
    generator = np.random.default_rng(seed)
    return Federation(
        experiment=experiment,
        settings=settings,
        task=make_task(settings),
        sites=sites,
        test=test,
        graph=ring(NAMES) if topology == "ring" else erdos_renyi(NAMES, EDGE_PROBABILITY, generator),
        leaver=NAMES[int(np.random.default_rng(seed).integers(len(NAMES)))],
    )


def targets(federation: Federation, level: Granularity) -> dict[str, Target]:
    """Return what is asked for at which peer: a tenth of everybody's samples, one class, or one client."""
    if level is Granularity.CLASS:
        return {"0": Target(level, class_label=CLASS)}
    if level is Granularity.CLIENT:
        return {federation.leaver: Target(level, federation.leaver)}
    return {name: Target(level, name, ids[0]) for name, ids in draw_ids(federation, SHARE, 1).items()}


def draw_ids(federation: Federation, share: float, parts: int) -> dict[str, list[frozenset[str]]]:
    """Return for every peer `share` of its samples at random, in `parts` parts; one sample a part at
    least.
    """
    generator = np.random.default_rng(federation.settings.seed)
    drawn = {}
    for name, examples in federation.sites.items():
        ids = generator.permutation(examples.ids)[: max(parts, round(share * len(examples)))]
        drawn[name] = [frozenset(part.tolist()) for part in np.array_split(ids, parts)]
    return drawn


def forgets_of(asked: Mapping[str, Target], level: Granularity) -> dict[str, Forget]:
    """Return what goes at which peer."""
    if level is Granularity.CLASS:
        return dict.fromkeys(NAMES, next(iter(asked.values())).forget)
    return {name: target.forget for name, target in asked.items()}


def retained_examples(federation: Federation, forgets: Mapping[str, Forget]) -> dict[str, Examples]:
    """Return every peer's examples without those that go."""
    return {
        name: examples.select(~forgotten_mask(examples, forgets.get(name, Forget())))
        for name, examples in federation.sites.items()
    }
