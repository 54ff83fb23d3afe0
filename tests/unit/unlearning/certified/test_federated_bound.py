"""The bound for FedAvg against measured errors of tangents, on small random convex federations."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.unlearning.certified.problems import LOGISTIC, blobs
from unlearning.certified import (
    Arithmetic,
    Constants,
    EarlierRelease,
    Ground,
    LocalWork,
    RoundLengths,
    Weighting,
    declared_logistic_constants,
    feature_norm,
    federated_bound,
    train_with_tangents,
    vector_after_round,
)
from unlearning.certified.local_steps import LocalSteps
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
    def ground(self) -> Ground:
        radius = max(feature_norm(LOGISTIC, examples) for examples in self.data.values())
        return ground_of(radius, self.training.weight_decay, self.training.batch_size)

    def local(self, client: str, number: int) -> TrainingSettings:
        return replace(self.training, seed=local_seed(0, client, number))

    def num_steps(self, client: str) -> int:
        return self.training.epochs * -(-len(self.data[client]) // self.training.batch_size)


def ground_of(radius: float, l2: float, batch_size: int = 5) -> Ground:
    """Logistic regression of four numbers and three classes."""
    arithmetic = Arithmetic(num_inputs=5, num_classes=3, feature_norm=radius, batch_size=batch_size)
    constants = declared_logistic_constants(feature_norm=radius, l2=l2)
    return Ground(constants=constants, arithmetic=arithmetic)


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
                clients={
                    name: LocalWork(
                        num_examples=count,
                        num_steps=of.num_steps(name),
                        distance=float(np.linalg.norm(self.model - local)),
                    )
                    for name, (count, local) in models.items()
                },
                moved=float(np.linalg.norm(self.model - before)),
                norm=float(np.linalg.norm(before)),
                ground=of.ground,
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
    assert error <= federated_bound(run.lengths, gone, weighting).value + 1e-12


@pytest.mark.parametrize("weighting", list(Weighting))
def test_of_one_client_the_bound_is_of_second_order(weighting) -> None:
    """A client of a tenth of the examples has a bound far below the distance that it is to hide."""
    of = federation(3, (4, 40, 40, 40), weighting=weighting, learning_rate=0.1)
    of = replace(of, rounds=(tuple(of.data),) * 6)
    run = Run.begun(of)
    run.train(6)
    length = float(np.linalg.norm(run.vectors["c0"]))
    bound = federated_bound(run.lengths, frozenset({"c0"}), weighting).value
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
    released = EarlierRelease(number=3, sensitivity=0.0, clients=first)  # the same noise in both
    bound = federated_bound(run.lengths, both, Weighting.RENORMALISED, earlier=[released]).value
    assert np.linalg.norm(unlearned - exact) <= bound


def test_an_earlier_release_adds_its_sensitivity_which_training_contracts() -> None:
    """It enters after its round; the later, the less of it has worn off."""
    of = federation(2)
    run = Run.begun(of)
    run.train(6)

    def bound(*earlier: EarlierRelease) -> float:
        gone = frozenset({"c0"})
        return federated_bound(run.lengths, gone, Weighting.RENORMALISED, earlier=earlier).value

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
        federated_bound(run.lengths, frozenset(names), Weighting.RENORMALISED).value
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
    bound = federated_bound(run.lengths, gone, Weighting.RENORMALISED).value
    assert 1e-3 < error <= bound


def one_round(number: int = 1, **given) -> RoundLengths:
    values = {
        "learning_rate": 0.1,
        "clients": {"v": LocalWork(num_examples=5, num_steps=3, distance=1.0)},
        "moved": 1.0,
        "norm": 1.0,
        "vectors": {"u": 1.0},
        "ground": ground_of(2.0, 0.1),
    }
    return RoundLengths(number=number, **{**values, **given})


U = frozenset("u")
FIRST = one_round(clients={"u": LocalWork(num_examples=1, num_steps=3, distance=1.0)}, vectors={})


def test_a_round_of_the_forgotten_alone_costs_rounding_only() -> None:
    """Its vector takes all of it back, exactly."""
    alone = [replace(FIRST, vectors={}), replace(FIRST, number=2, vectors={"u": 3.0})]
    assert 0 < federated_bound(alone, U, Weighting.RENORMALISED).value < 1e-10


def test_steps_too_large_for_the_constants_have_no_bound() -> None:
    """The message says what to change; no number is made up."""
    work = {"v": LocalWork(num_examples=5, num_steps=400, distance=1.0)}
    steep = one_round(learning_rate=5.0, clients=work, ground=ground_of(10.0, 0.1))
    with pytest.raises(NumericalError, match="Scale the features"):
        federated_bound([FIRST, *[steep] * 3], U, Weighting.RENORMALISED)


def test_a_vector_without_a_length_has_no_bound() -> None:
    """A length that is not there is not taken for 0."""
    with pytest.raises(
        NumericalError, match=r"No length is kept of the vector of client\(s\) u before round 2"
    ):
        federated_bound([FIRST, one_round(2, vectors={})], U, Weighting.RENORMALISED)


def test_a_vector_of_which_no_training_is_recorded_has_no_bound() -> None:
    """The rounds before are not known."""
    with pytest.raises(NumericalError, match="no round is kept in which they trained"):
        federated_bound([one_round(7)], U, Weighting.RENORMALISED)


def test_a_round_of_which_nothing_is_known_has_no_bound_once_the_forgotten_has_trained() -> None:
    """Before that both trainings are the same, whatever it was."""
    unknown = one_round(2, ground=None, unmet=("Why.",), vectors={})
    assert federated_bound([unknown], U, Weighting.RENORMALISED).value == 0
    with pytest.raises(NumericalError, match=r"Of round 2 nothing is proven\. Why\."):
        federated_bound([FIRST, replace(unknown, vectors={"u": 1.0})], U, Weighting.RENORMALISED)


def test_each_round_is_bounded_by_its_own_constants() -> None:
    """Nearly no decay in the middle: at least as large as with the decay of the others, and said to be piecewise."""
    decays = [0.3, 1e-3, 0.3]
    rounds = [FIRST, *(one_round(2 + at, ground=ground_of(2.0, l2)) for at, l2 in enumerate(decays))]
    mixed = federated_bound(rounds, U, Weighting.RENORMALISED)
    same = [FIRST, *(one_round(2 + at, ground=ground_of(2.0, 0.3)) for at in range(3))]
    assert mixed.value > federated_bound(same, U, Weighting.RENORMALISED).value
    assert "over 3 sets of constants" in mixed.source
    assert mixed.constants is None


def test_trainings_of_different_lengths_are_as_far_apart_as_the_farthest_pair() -> None:
    """Of 1 to 60 steps those of 9 and 43 differ more than those of 1 and 60, each bounded step for step."""
    steps = LocalSteps.of(
        Constants(
            gradient_bound=1.0,
            smoothness=0.08529438292143462,
            strong_convexity=0.02960540904000958,
            hessian_lipschitz=1.0,
            source="",
        ),
        1.0,
    )
    pairs = [(few, most) for few in range(1, 61) for most in range(few, 61)]
    assert all(steps.apart(few, most) <= steps.apart(1, 60) for few, most in pairs)
