"""The bound for FedAvg against measured errors of tangents, on small random convex federations."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.certified.problems import LOGISTIC, blobs
from unlearning.certified import (
    Constants,
    EarlierRelease,
    LocalWork,
    RoundLengths,
    Weighting,
    declared_logistic_constants,
    feature_norm,
    federated_bound,
    train_with_tangents,
    vector_after_round,
)
from unlearning.errors import NumericalError
from unlearning.parameters import Vector, weighted_mean
from unlearning.tasks.task import Examples
from unlearning.training import TrainingSettings, initial_parameters, local_seed, train


@dataclass(frozen=True)
class Federation:
    """Clients with their data, who takes part in each round, and how they train."""

    data: Mapping[str, Examples]
    rounds: tuple[tuple[str, ...], ...]
    training: TrainingSettings
    weighting: Weighting

    @property
    def constants(self) -> Constants:
        radius = max(feature_norm(examples) for examples in self.data.values())
        return declared_logistic_constants(feature_norm=radius, l2=self.training.weight_decay)

    def local(self, client: str, number: int) -> TrainingSettings:
        return replace(self.training, seed=local_seed(0, client, number))

    def num_steps(self, client: str) -> int:
        return self.training.epochs * -(-len(self.data[client]) // self.training.batch_size)


@dataclass
class Run:
    """A federation on its way: its model, every client's vector, and the rounds' lengths."""

    of: Federation
    model: Vector
    vectors: dict[str, Vector]
    lengths: list[RoundLengths]
    number: int = 0

    @classmethod
    def begun(cls, of: Federation) -> "Run":
        return cls(of, initial_parameters(LOGISTIC, 0), {}, [])

    def train(self, rounds: int, without: frozenset[str] = frozenset()) -> None:
        for names in self.of.rounds[self.number : self.number + rounds]:
            self.number += 1
            self._round([name for name in names if name not in without])

    def _round(self, names: list[str]) -> None:
        of, before = self.of, self.model
        if not names:
            return
        units = sorted(self.vectors)
        tangents = np.array([self.vectors[unit] for unit in units]).reshape(len(units), before.size)
        models, carried = {}, {}
        for name in names:
            trained, carried[name] = train_with_tangents(
                LOGISTIC, before, of.data[name], of.local(name, self.number), tangents
            )
            models[name] = (len(of.data[name]), trained.parameters)
        self.model = weighted_mean(models)
        self.lengths.append(
            RoundLengths(
                number=self.number,
                learning_rate=of.training.learning_rate,
                weight_decay=of.training.weight_decay,
                clients={
                    name: LocalWork(
                        num_examples=count,
                        num_steps=of.num_steps(name),
                        distance=float(np.linalg.norm(self.model - local)),
                    )
                    for name, (count, local) in models.items()
                },
                moved=float(np.linalg.norm(self.model - before)),
                vectors={unit: float(np.linalg.norm(self.vectors[unit])) for unit in units},
            )
        )
        zero = np.zeros_like(before)
        for unit in sorted({*units, *names}):
            own = {name: carried[name][units.index(unit)] if unit in units else zero for name in names}
            self.vectors[unit] = vector_after_round(
                self.vectors.get(unit, zero),
                own,
                models,
                unit=unit,
                before=before,
                after=self.model,
                weighting=of.weighting,
            )

    def forget(self, clients: frozenset[str], noise: Vector) -> None:
        self.model = self.model + sum(self.vectors.pop(name) for name in sorted(clients)) + noise


def retrained(
    of: Federation, never: frozenset[str], *, gone_after: int = 99, gone=frozenset(), noise=None
) -> Vector:
    """Training without `never`; the others of `gone` leave after a round, and the noise comes then."""
    model = initial_parameters(LOGISTIC, 0)
    for number, names in enumerate(of.rounds, start=1):
        asked = [name for name in names if not (number > gone_after and name in gone)]
        models = {
            name: (
                len(of.data[name]),
                model
                if name in never
                else train(LOGISTIC, model, of.data[name], of.local(name, number)).parameters,
            )
            for name in asked
            if name not in never or of.weighting is Weighting.FIXED
        }
        if models:
            model = weighted_mean(models)
        if number == gone_after and noise is not None:
            model = model + noise
    return model


def federation(
    seed: int, sizes=(7, 12, 20, 9), rounds: int = 6, weighting=Weighting.RENORMALISED, **training
) -> Federation:
    generator = np.random.default_rng(seed)
    names = [f"c{index}" for index in range(len(sizes))]
    data = {}
    for index, (name, size) in enumerate(zip(names, sizes, strict=True)):
        own = blobs(size, seed=100 * seed + index)
        data[name] = Examples(0.4 * own.inputs + 0.1 * index, own.targets, own.ids)
    taking_part = tuple(
        tuple(name for name in names if generator.random() < 0.7) or (names[0],) for _ in range(rounds)
    )
    given_settings = {"epochs": 1, "batch_size": 5, "learning_rate": 0.3, "weight_decay": 0.3, **training}
    return Federation(data, taking_part, TrainingSettings(**given_settings), weighting)


@given(
    seed=st.integers(0, 10**6),
    sizes=st.lists(st.integers(3, 20), min_size=3, max_size=4),
    num_forgotten=st.integers(1, 3),
    weighting=st.sampled_from(list(Weighting)),
    epochs=st.integers(1, 2),
    learning_rate=st.sampled_from([0.05, 0.3, 0.8]),
    l2=st.sampled_from([0.05, 0.5]),
)
@settings(max_examples=10, deadline=None, derandomize=True)
def test_the_error_never_exceeds_the_bound(
    seed, sizes, num_forgotten, weighting, epochs, learning_rate, l2
) -> None:
    """For random data, sizes, participants, rates and both weightings, of one client and of several."""
    of = federation(seed, sizes, 4, weighting, epochs=epochs, learning_rate=learning_rate, weight_decay=l2)
    run = Run.begun(of)
    run.train(4)
    gone = frozenset(sorted(run.vectors)[:num_forgotten])
    exact = retrained(of, gone)
    error = np.linalg.norm(run.model + sum(run.vectors[name] for name in gone) - exact)
    assert error <= federated_bound(of.constants, run.lengths, gone, weighting).value + 1e-12


@pytest.mark.parametrize("weighting", list(Weighting))
def test_of_one_client_the_bound_is_of_second_order(weighting) -> None:
    """A client of a tenth of the examples has a bound far below the distance that it is to hide."""
    of = federation(3, (4, 40, 40, 40), weighting=weighting, learning_rate=0.1)
    of = replace(of, rounds=(tuple(of.data),) * 6)
    run = Run.begun(of)
    run.train(6)
    length = float(np.linalg.norm(run.vectors["c0"]))
    bound = federated_bound(of.constants, run.lengths, frozenset({"c0"}), weighting).value
    assert 0 < bound < 0.5 * length


def test_the_bound_holds_for_a_second_deletion_with_noise_at_the_first() -> None:
    """Both are compared with the federation that never had either, with the same noise added at the same time."""
    of = federation(5, (6, 10, 20, 15), rounds=6)
    first, second = frozenset({"c0"}), frozenset({"c1"})
    noise = 0.3 * np.random.default_rng(1).standard_normal(initial_parameters(LOGISTIC, 0).size)
    run = Run.begun(of)
    run.train(3)
    run.forget(first, noise)
    run.train(3, without=first)
    unlearned = run.model + run.vectors["c1"]
    both = first | second
    exact = retrained(of, both, gone_after=3, gone=first, noise=noise)
    bound = federated_bound(of.constants, run.lengths, both, Weighting.RENORMALISED).value
    assert np.linalg.norm(unlearned - exact) <= bound


def test_an_earlier_release_adds_its_sensitivity_which_training_contracts() -> None:
    """It enters after its round; the later, the less of it has worn off."""
    of = federation(2)
    run = Run.begun(of)
    run.train(6)

    def bound(*earlier: EarlierRelease) -> float:
        gone = frozenset({"c0"})
        return federated_bound(of.constants, run.lengths, gone, Weighting.RENORMALISED, earlier=earlier).value

    plain = bound()
    late = bound(EarlierRelease(number=6, sensitivity=0.01))
    early = bound(EarlierRelease(number=1, sensitivity=0.01))
    assert late == pytest.approx(plain + 0.01, rel=1e-12)
    assert plain < early < late


def test_two_clients_need_more_than_the_bounds_of_each() -> None:
    """What their weights miss of each other is in it."""
    of = federation(4)
    run = Run.begun(of)
    run.train(6)
    one, other, both = (
        federated_bound(of.constants, run.lengths, frozenset(names), Weighting.RENORMALISED).value
        for names in ({"c0"}, {"c1"}, {"c0", "c1"})
    )
    assert both > one + other


@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param((("c0", "c1", "c3"),), id="what the round adds"),
        pytest.param((("c0", "c3"), ("c1", "c3")), id="what is carried"),
    ],
)
def test_what_two_weights_miss_of_each_other_is_covered(rounds) -> None:
    """In one round both are off although nothing is carried yet; in two only the carried one is."""
    of = federation(6, (4, 60, 3, 40), weight_decay=0.5)
    of = replace(of, rounds=rounds)
    run = Run.begun(of)
    run.train(len(rounds))
    gone = frozenset({"c0", "c1"})
    error = np.linalg.norm(run.model + run.vectors["c0"] + run.vectors["c1"] - retrained(of, gone))
    bound = federated_bound(of.constants, run.lengths, gone, Weighting.RENORMALISED).value
    assert 1e-3 < error <= bound


def test_a_round_of_the_forgotten_alone_costs_nothing() -> None:
    """Its vector takes all of it back, exactly."""
    work = LocalWork(num_examples=5, num_steps=3, distance=0.0)
    alone = RoundLengths(
        number=1, learning_rate=0.1, weight_decay=0.1, clients={"u": work}, moved=2.0, vectors={"u": 3.0}
    )
    constants = declared_logistic_constants(feature_norm=2.0, l2=0.1)
    assert federated_bound(constants, [alone], frozenset("u"), Weighting.RENORMALISED).value == 0


def test_steps_too_large_for_the_constants_have_no_bound() -> None:
    """The message says what to change; no number is made up."""
    work = LocalWork(num_examples=5, num_steps=400, distance=1.0)
    one = RoundLengths(
        number=1, learning_rate=5.0, weight_decay=0.1, clients={"v": work}, moved=1.0, vectors={"u": 1.0}
    )
    constants = declared_logistic_constants(feature_norm=10.0, l2=0.1)
    with pytest.raises(NumericalError, match="Scale the features"):
        federated_bound(constants, [one] * 3, frozenset("u"), Weighting.RENORMALISED)
