"""A small federation that has learnt, in which a method under test carries out one deletion as often as a rule asks."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from unlearning.local import Learnt, Sites, begin, exchange, learn, problem_of
from unlearning.methods.method import (
    ClientSite,
    Instruction,
    Instructions,
    Method,
    Problem,
    Replies,
    Reply,
    UnlearningState,
)
from unlearning.methods.preparation import Preparation
from unlearning.parameters import Vector
from unlearning.requests import Granularity, Target
from unlearning.runtime.stores import MemoryStore
from unlearning.tasks.losses import classification_measures, cross_entropy
from unlearning.tasks.task import Examples, Task
from unlearning.training import TrainingSettings

MAX_EXCHANGES = 100
ROUNDS = 3

TASK = Task(
    name="three classes in the plane",
    num_classes=3,
    score_name="accuracy",
    build_model=lambda: nn.Linear(2, 3),
    loss=cross_entropy,
    per_example=classification_measures,
)
TRAINING = TrainingSettings(epochs=1, batch_size=4, learning_rate=0.1, seed=0)
NORMALISED = replace(TASK, build_model=lambda: nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 3)))
SPREAD = 10.0
"""So many times as spread as the others' are the inputs of client a, where the model has running statistics."""
CLASS = 2
SAMPLES, OTHER_SAMPLES = frozenset({"a/patient-1", "a/patient-4"}), frozenset({"a/patient-0", "a/patient-2"})
TARGETS = {
    Granularity.CLIENT: Target(Granularity.CLIENT, "a"),
    Granularity.SAMPLE: Target(Granularity.SAMPLE, "a", SAMPLES),
    Granularity.CLASS: Target(Granularity.CLASS, class_label=CLASS),
}


class Endless(Exception):
    """The method had not finished after as many exchanges as it may have here."""


def sites() -> dict[str, Examples]:
    """Return three clients' examples of three classes."""
    generator = torch.Generator().manual_seed(0)
    found = {}
    for client, count in (("a", 7), ("b", 9), ("c", 12)):
        labels = torch.arange(count) % 3
        centres = torch.tensor([[1.0, 0.0], [-1.0, 1.0], [0.0, -1.0]])[labels]
        inputs = centres + 0.1 * torch.randn(count, 2, generator=generator)
        found[client] = Examples(
            inputs, labels, np.array([f"{client}/patient-{row}" for row in range(count)])
        )
    return found


class Deletion:
    """One deletion by a method; `last` is the state in which it ends.

    normalised: by a model with running statistics, which those of client a's inputs are far from.
    """

    def __init__(self, method: Method, granularity: Granularity, *, normalised: bool = False) -> None:
        self.method = method
        self.target = TARGETS[granularity]
        self.sites: Sites = sites()
        self._task, self._training = TASK, TRAINING
        if normalised:
            a = self.sites["a"]
            self.sites = {**self.sites, "a": Examples(SPREAD * a.inputs, a.targets, a.ids)}
            # a batch of one example has no variance
            self._task, self._training = NORMALISED, replace(TRAINING, batch_size=100)
        start = begin(self._task, self._training, self._prepared())
        self.learnt: Learnt = learn(self._task, self.sites, start, rounds=ROUNDS)

    @cached_property
    def recorded(self) -> "Recorder":
        """A plain run, with all that was sent and answered."""
        recorder = Recorder(self.method)
        self.run(recorder, problem=self.recorded_problem, between=recorder.note)
        return recorder

    @cached_property
    def recorded_problem(self) -> Problem:
        """The problem of the plain run, with the store that it wrote to."""
        return self.problem()

    @property
    def last(self) -> UnlearningState:
        """The last state of the plain run."""
        return self.recorded.states[-1]

    def problem(self, target: Target | None = None) -> Problem:
        """Return the problem of the deletion, or of forgetting another target; each has a new store to write to."""
        learnt = self.learnt
        task, wanted = learnt.learns(self._task), [target or self.target]
        given = problem_of(self.method, task, wanted, self.sites, self._training)
        name = self.method.info.name
        return replace(
            given,
            rounds_trained=ROUNDS,
            round=learnt.next_round,
            kept=learnt.kept_for(name, MemoryStore()),
            noise_key=bytes(32),
        )

    def run(
        self,
        method: Method | None = None,
        *,
        problem: Problem | None = None,
        between: Callable[[UnlearningState], UnlearningState] = lambda state: state,
        sites: Sites | None = None,
        stores: Mapping[str, MemoryStore] | None = None,
    ) -> UnlearningState:
        """Carry it out to its end; `between` is what happens to the state between two exchanges.

        Raises:
            Endless: it had not come to an end.
        """
        method, problem = method or self.method, problem or self.problem()
        kept = self.learnt.kept_at_sites(method.info.name) if stores is None else stores
        kept = {client: store.copy() for client, store in kept.items()}
        state = between(method.begin(problem, self.learnt.parameters))
        while not state.finished:
            if state.exchanges >= MAX_EXCHANGES:
                raise Endless
            following, _ = exchange(method, problem, state, sites or self.sites, kept)
            state = between(following)
        return state

    def _prepared(self) -> dict[str, Preparation]:
        """Return the method's preparation with options under which the target can be forgotten."""
        preparation = self.method.info.preparation
        if preparation is None:
            return {}
        prepared = preparation()
        if prepared.refusal(self.target):
            of_class, of_samples = {"class": CLASS}, {"samples": ",".join(sorted(SAMPLES | OTHER_SAMPLES))}
            chosen = of_class if self.target.class_label is not None else of_samples
            prepared = preparation.model_validate(chosen)
        return {self.method.info.name: prepared}


class Wrapped(Method[Any, Any]):
    """A method as another one is, but for what a subclass changes, of each call or of all (`call`)."""

    def __init__(self, inner: Method) -> None:
        self.inner = inner
        self.info = inner.info
        self.Parameters = inner.Parameters

    def call(self, name: str, **given: Any) -> Any:
        """Do as the other."""
        return getattr(self.inner, name)(**given)

    def begin(self, problem: Problem, parameters: Vector) -> UnlearningState:
        """Do as the other."""
        result: UnlearningState = self.call("begin", problem=problem, parameters=parameters)
        return result

    def configure(self, problem: Problem, state: UnlearningState) -> Instructions:
        """Do as the other."""
        result: Instructions = self.call("configure", problem=problem, state=state)
        return result

    def client_step(self, instruction: Instruction, site: ClientSite) -> Reply:
        """Do as the other."""
        result: Reply = self.call("client_step", instruction=instruction, site=site)
        return result

    def aggregate(self, problem: Problem, state: UnlearningState, replies: Replies) -> UnlearningState:
        """Do as the other."""
        result: UnlearningState = self.call("aggregate", problem=problem, state=state, replies=replies)
        return result


class Recorder(Wrapped):
    """A method as another one is, of which a run keeps its states, instructions and replies by client."""

    def __init__(self, inner: Method) -> None:
        super().__init__(inner)
        self.states: list[UnlearningState] = []
        self.instructions: list[Instructions] = []
        self.replies: list[Replies] = []

    def note(self, state: UnlearningState) -> UnlearningState:
        """Keep a state."""
        self.states.append(state)
        return state

    def call(self, name: str, **given: Any) -> Any:
        """Keep what is asked and answered."""
        if name == "aggregate":
            self.replies.append(dict(given["replies"]))
        result = super().call(name, **given)
        if name == "configure":
            self.instructions.append(result)
        return result
