"""A random convex federation whose settings change at restarts, its deletions, and the retraining that each stands for.

Clients join late, take part or not, and train with whatever is set by then; `prepare` goes off and on, releases rest on
a proof or not, attempts fail after their noise was drawn. The classes that carry vectors, keep records and state
Δ are those of the live federation. What Δ is compared with is made here, from nothing but the history.

The reference of a deletion is the federation that never had anyone who is forgotten by then: the same start, batches,
participants, and at each earlier release the noise with which its own reference gives the model that was released.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from unlearning.certified.linear_head import feature_norm
from unlearning.certified.privacy_accountant import AccountedRelease
from unlearning.certified.sensitivity import Sensitivity, Weighting, measured_sensitivity
from unlearning.local import Learnt, learn
from unlearning.methods.hf_online_bound import KeptBound
from unlearning.methods.hf_online_kept import kept_vector
from unlearning.methods.hf_online_vectors import CarryVectors
from unlearning.parameters import Vector, content_hash, weighted_mean
from unlearning.requests import Exclusions, Granularity, Target
from unlearning.runtime.stores import MemoryStore
from unlearning.tasks import TaskSettings, make_task
from unlearning.tasks.task import Examples, Task
from unlearning.training import TrainingSettings, initial_parameters, local_seed, train

METHOD = "hf-online"
INPUTS, CLASSES = 4, 3
TASKS = {
    dtype: make_task(TaskSettings(dataset="npz", num_classes=CLASSES, input_shape=str(INPUTS), dtype=dtype))
    for dtype in ("float64", "float32")
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """What was stated of a deletion, and what is true: Δ, whether it is certified, and the distance to retraining."""

    delta: float | None
    is_certified: bool
    distance: float
    unmet: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What an operator may change at a restart."""

    training: TrainingSettings
    options: CarryVectors
    is_prepared: bool = True
    dtype: str = "float64"


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What a round was, for retraining: who took part, and as what was set."""

    number: int
    clients: tuple[str, ...]
    settings: Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """A release that the model went on from: its model, and all that were forgotten by then."""

    model: Vector
    forgotten: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """What a release adds (d,), drawn with σ, and what becomes of it.

    is_declared: an operator declares Δ in place of what is proven. is_given_up: the attempt fails after the release.
    """

    sigma: float
    vector: Vector
    is_declared: bool = False
    is_given_up: bool = False


@dataclass
class RandomFederation:
    """One federation, drawn from a seed; `run` gives what was stated of its deletions."""

    generator: np.random.Generator
    data: Mapping[str, Examples]
    settings: Settings
    model: Vector
    number: int = 0
    store: MemoryStore = field(default_factory=MemoryStore)
    exclusions: Exclusions = field(default_factory=Exclusions)
    releases: list[AccountedRelease] = field(default_factory=list)
    history: list[Round | Released] = field(default_factory=list)
    forgotten: frozenset[str] = frozenset()

    @classmethod
    def draw(cls, seed: int) -> "RandomFederation":
        """Return a federation of three to five clients before its first round."""
        generator = np.random.default_rng(seed)
        sizes = generator.integers(2, 25, size=generator.integers(3, 6))
        scale = float(generator.choice([0.01, 0.1, 0.4, 1.0]))
        data = {f"c{at}": _examples(generator, int(size), scale) for at, size in enumerate(sizes)}
        return cls(generator, data, _first(generator, data), _start())

    def run(self, rounds: int = 7) -> list[Stated]:
        """Return rounds, restarts and deletions in a random order."""
        stated = []
        for _ in range(rounds):
            if self.generator.random() < 0.15:
                self.settings = self._change_one()
            self.number += 1
            self._round()
            if self.generator.random() < 0.3:
                stated += self._deletion()
        return stated + self._deletion()

    def _change_one(self) -> Settings:
        """Return one setting changes; half of the time a harmless one."""
        training, options = self.settings.training, self.settings.options
        draw = self.generator.choice
        changes: list[Callable[[], Settings]] = [
            lambda: self._with(training=replace(training, learning_rate=float(draw([0.01, 0.1, 0.4])))),
            lambda: self._with(training=replace(training, weight_decay=float(draw([0.02, 0.2, 0.6])))),
            lambda: self._with(training=replace(training, epochs=int(draw([1, 2, 3])))),
            lambda: self._with(training=replace(training, batch_size=int(draw([2, 5, 50])))),
            lambda: self._with(options=options.model_copy(update={"feature_norm": 2 * _radius(self.data)})),
            lambda: self._with(options=options.model_copy(update={"feature_norm": 0.0})),
            lambda: self._with(options=options.model_copy(update={"weighting": _other(options.weighting)})),
            lambda: self._with(training=replace(training, weight_decay=0.0)),
            lambda: self._with(training=replace(training, momentum=float(draw([0.0, 0.5])))),
            lambda: self._with(is_prepared=not self.settings.is_prepared),
            lambda: self._with(dtype=str(draw(["float64", "float32"]))),
        ]
        likely = 5
        if self.generator.random() < 0.6:
            return changes[int(self.generator.integers(likely))]()
        return changes[int(self.generator.integers(likely, len(changes)))]()

    def _with(self, **changes: object) -> Settings:
        return replace(self.settings, **changes)  # type: ignore[arg-type]  # each is of its field's type

    def _round(self) -> None:
        there = [
            client for at, client in enumerate(self.data) if at < 2 or self.number > at
        ]  # the third joins in round 3, and so on
        asked = tuple(
            client for client in there if client not in self.forgotten and self.generator.random() < 0.7
        )
        if asked:
            self.train(asked)

    def train(self, asked: tuple[str, ...]) -> None:
        """Do an ordinary round among these clients, as set now."""
        one = Round(number=self.number, clients=asked, settings=self.settings)
        self.history.append(one)
        prepared = {METHOD: self.settings.options}
        before = Learnt(
            parameters=self.model,
            training=self.settings.training,
            rounds=self.number - 1,
            prepared=prepared if self.settings.is_prepared else {},
            stores={METHOD: self.store},
            forgotten=self.exclusions,
        )
        after = learn(self._task(one), {client: self.data[client] for client in asked}, before)
        self.model, self.store = after.parameters, after.stores.get(METHOD, self.store)

    def _deletion(self) -> list[Stated]:
        """Forget one client or two."""
        candidates = [client for client in self.data if client not in self.forgotten]
        count = min(len(candidates) - 1, int(self.generator.integers(1, 3)))
        if count < 1:
            return []
        targets = frozenset(self.generator.choice(candidates, size=count, replace=False).tolist())
        return self.delete(targets, self._noise)

    def _noise(self) -> Noise:
        sigma = float(self.generator.choice([0.0, 0.01, 0.1, 1.0], p=[0.05, 0.35, 0.3, 0.3]))
        return Noise(
            sigma=sigma,
            is_declared=self.generator.random() < 0.05,
            vector=sigma * self.generator.standard_normal(self.model.size),
            is_given_up=self.generator.random() < 0.15,
        )

    def delete(self, targets: frozenset[str], draw: Callable[[], Noise]) -> list[Stated]:
        """Forget these clients: what is stated of it, and what is true; nothing where it is refused."""
        vectors = {client: kept_vector(self.settings.options, self.store, client) for client in targets}
        had_trained = {client for one in self.history if isinstance(one, Round) for client in one.clients}
        if any(vector is None and client in had_trained for client, vector in vectors.items()):
            return []
        before = self.model
        clean = before.astype(np.float64) + sum(
            vector for _, vector in sorted(vectors.items()) if vector is not None
        )
        self.number += 1
        found, unmet = self._state(targets)
        forgotten = self.forgotten | targets
        distance = float(np.linalg.norm(clean - self.retrain_without(forgotten)))
        self._release(targets, clean, draw(), found, unmet)
        return [
            Stated(
                delta=None if found is None else found.value,
                is_certified=found is not None and found.is_bound and not unmet,
                distance=distance,
                unmet=unmet,
            )
        ]

    def _state(self, targets: frozenset[str]) -> tuple[Sensitivity | None, tuple[str, ...]]:
        """Return as the server states it."""
        bound = KeptBound(self.settings.options, self.store, _start)
        return bound(targets, content_hash(self.model), self.releases, declared=None, unmet=())

    def _release(
        self,
        targets: frozenset[str],
        clean: Vector,
        noise: Noise,
        found: Sensitivity | None,
        unmet: tuple[str, ...],
    ) -> None:
        if noise.is_declared:
            found, unmet = measured_sensitivity(1e-9, "made up"), ("Declared.",)
        model = clean + noise.vector
        self.releases.append(
            AccountedRelease(
                name=f"r-{len(self.releases)}",
                number=self.number,
                sigma=noise.sigma,
                sensitivity=found,
                unmet=unmet,
                clients=tuple(sorted(targets)),
                before=content_hash(self.model),
                after=content_hash(model),
            )
        )
        if noise.is_given_up:  # the model goes on as it was
            return
        self.model, self.forgotten = model, self.forgotten | targets
        self.history.append(Released(model=model, forgotten=self.forgotten))
        gone = [Target(Granularity.CLIENT, client) for client in targets]
        self.exclusions = self.exclusions.including(gone)
        forgotten = Exclusions().including(gone)
        self.settings.options.erase(self.store, forgotten, until=self.number, rewritten=False)

    def retrain_without(self, never: frozenset[str], until: int | None = None) -> Vector:
        """Return the federation that never had these clients, up to an entry of the history; (d,) in
        float64.
        """
        model = _start()
        for at, one in enumerate(self.history[:until]):
            if isinstance(one, Round):
                model = self._average(one, model, never)
            else:
                model = model + (one.model - self.retrain_without(one.forgotten, until=at))
        return model

    def _average(self, one: Round, model: Vector, never: frozenset[str]) -> Vector:
        """Return the model after an ordinary round without some clients."""
        sent_back = one.settings.options.weighting is Weighting.FIXED
        models = {}
        for client in one.clients:
            examples = self.data[client]
            if client not in never:
                training = replace(one.settings.training, seed=local_seed(0, client, one.number))
                trained = train(self._task(one), model, examples, training)
                models[client] = (len(examples), trained.parameters)
            elif sent_back:
                models[client] = (len(examples), model)
        return weighted_mean(models) if models else model

    def _task(self, one: Round) -> Task:
        return TASKS[one.settings.dtype]


def _start() -> Vector:
    return initial_parameters(TASKS["float64"], 0)


def _first(generator: np.random.Generator, data: Mapping[str, Examples]) -> Settings:
    training = TrainingSettings(
        epochs=int(generator.integers(1, 3)),
        batch_size=int(generator.choice([2, 5, 50])),
        learning_rate=float(generator.choice([1e-7, 1e-3, 0.05, 0.3])),
        weight_decay=float(generator.choice([0.05, 0.2, 1.0])),
    )
    options = CarryVectors(
        weighting=Weighting.RENORMALISED if generator.random() < 0.7 else Weighting.FIXED,
        feature_norm=_radius(data),
    )
    return Settings(training=training, options=options)


def _examples(generator: np.random.Generator, count: int, scale: float) -> Examples:
    inputs = torch.from_numpy(scale * (generator.standard_normal((count, INPUTS)) + generator.normal()))
    targets = torch.from_numpy(generator.integers(CLASSES, size=count))
    return Examples(inputs, targets, np.asarray([str(at) for at in range(count)]))


def _radius(data: Mapping[str, Examples]) -> float:
    return max(feature_norm(TASKS["float64"], examples) for examples in data.values())


def _other(weighting: Weighting) -> Weighting:
    return Weighting.FIXED if weighting is Weighting.RENORMALISED else Weighting.RENORMALISED
