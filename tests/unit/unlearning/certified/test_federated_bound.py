"""The bound for FedAvg against measured errors of tangents, on small random convex federations."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.certified.random_federation import Noise, Released, Settings
from tests.unit.unlearning.certified.problems import LOGISTIC, ScriptedFederation, blobs
from unlearning.certified.federated_bound import _addition_rounding, federated_bound
from unlearning.certified.linear_head import feature_norm
from unlearning.certified.local_steps import LocalSteps
from unlearning.certified.round_lengths import (
    EarlierRelease,
    LocalWork,
    Premises,
    RoundLengths,
    declared_logistic_constants,
)
from unlearning.certified.rounding import Arithmetic
from unlearning.certified.sensitivity import Constants, Weighting
from unlearning.errors import NumericalError
from unlearning.methods.hf_online_kept import kept_rounds, kept_vector
from unlearning.methods.hf_online_vectors import CarryVectors
from unlearning.parameters import Vector
from unlearning.tasks.task import Examples
from unlearning.training import TrainingSettings, initial_parameters


def premises_of(radius: float, l2: float, batch_size: int = 5) -> Premises:
    """Logistic regression of four numbers and three classes."""
    arithmetic = Arithmetic(num_inputs=5, num_classes=3, feature_norm=radius, batch_size=batch_size)
    constants = declared_logistic_constants(feature_norm=radius, l2=l2)
    return Premises(constants=constants, arithmetic=arithmetic)


class Federation(ScriptedFederation):
    """A federation whose vectors and records are looked at."""

    def vector(self, client: str) -> Vector:
        found = kept_vector(self.settings.options, self.store, client)
        assert found is not None
        return found

    def error(self, gone: frozenset[str]) -> float:
        """How far the model with the vectors added is from exact retraining."""
        unlearned = self.model + sum(self.vector(client) for client in sorted(gone - self.forgotten))
        return float(np.linalg.norm(unlearned - self.retrain_without(gone)))

    def bound(self, gone: frozenset[str], *earlier: EarlierRelease) -> float:
        lengths = [one.lengths for one in kept_rounds(self.settings.options, self.store)]
        return federated_bound(lengths, gone, self.settings.options.weighting, earlier=earlier).value


def federation(seed: int, sizes=(7, 12, 20, 9), weighting=Weighting.RENORMALISED, **training) -> Federation:
    data = {}
    for index, size in enumerate(sizes):
        own = blobs(size, seed=100 * seed + index)
        data[f"c{index}"] = Examples(0.4 * own.inputs + 0.1 * index, own.targets, own.ids)
    radius = max(feature_norm(LOGISTIC, examples) for examples in data.values())
    given_settings = {"epochs": 1, "batch_size": 5, "learning_rate": 0.3, "weight_decay": 0.3, **training}
    start = Settings(
        training=TrainingSettings(**given_settings),
        options=CarryVectors(weighting=weighting, feature_norm=radius),
    )
    return Federation(np.random.default_rng(seed), data, start, initial_parameters(LOGISTIC, 0))


@pytest.mark.parametrize("weighting", list(Weighting))
@given(
    seed=st.integers(0, 10**6),
    sizes=st.lists(st.integers(3, 20), min_size=3, max_size=4),
    num_forgotten=st.integers(1, 3),
    epochs=st.integers(1, 2),
    learning_rate=st.sampled_from([0.05, 0.3, 0.8]),
    l2=st.sampled_from([0.05, 0.5]),
)
@settings(max_examples=6, deadline=None, derandomize=True)
def test_the_error_never_exceeds_the_bound(
    seed, sizes, num_forgotten, weighting, epochs, learning_rate, l2
) -> None:
    """For random data, sizes, participants, rates and both weightings, of one client and of several."""
    of = federation(seed, sizes, weighting, epochs=epochs, learning_rate=learning_rate, weight_decay=l2)
    of.do_random_rounds(4)
    trained = {client for one in of.history for client in one.clients}
    gone = frozenset(sorted(trained)[:num_forgotten])
    assert of.error(gone) <= of.bound(gone) + 1e-12


@pytest.mark.parametrize("weighting", list(Weighting))
def test_of_one_client_the_bound_is_of_second_order(weighting) -> None:
    """A client of a tenth of the examples has a bound far below the distance that it is to hide."""
    of = federation(3, (4, 40, 40, 40), weighting=weighting, learning_rate=0.1)
    of.do_rounds(*[tuple(of.data)] * 6)
    length, gone = float(np.linalg.norm(of.vector("c0"))), frozenset({"c0"})
    assert 0 < of.error(gone) <= of.bound(gone) < 0.5 * length


def test_the_bound_holds_for_a_second_deletion_with_noise_at_the_first() -> None:
    """Both are compared with the federation that never had either, with the same noise added at the same time."""
    of = federation(5, (6, 10, 20, 15))
    first, both = frozenset({"c0"}), frozenset({"c0", "c1"})
    noise = 0.3 * np.random.default_rng(1).standard_normal(of.model.size)
    of.do_random_rounds(3)
    of.delete(first, lambda: Noise(sigma=0.3, vector=noise))
    at = len(of.history) - 1
    of.history[at] = Released(model=of.retrain_without(first, until=at) + noise, forgotten=first)
    of.do_random_rounds(3)
    released = EarlierRelease(number=4, sensitivity=0.0, clients=first)  # the same noise in both
    assert 0 < of.error(both) <= of.bound(both, released)


def test_an_earlier_release_adds_its_sensitivity_which_training_contracts() -> None:
    """It enters after its round; the later, the less of it has worn off."""
    of, gone = federation(2), frozenset({"c0"})
    of.do_random_rounds(6)
    plain = of.bound(gone)
    late = of.bound(gone, EarlierRelease(number=6, sensitivity=0.01))
    early = of.bound(gone, EarlierRelease(number=1, sensitivity=0.01))
    assert late == pytest.approx(plain + 0.01, rel=1e-12)
    assert plain < early < late


def test_two_clients_need_more_than_the_bounds_of_each() -> None:
    """What their weights miss of each other is in it."""
    of = federation(4)
    of.do_random_rounds(6)
    one, other, both = (of.bound(frozenset(names)) for names in ({"c0"}, {"c1"}, {"c0", "c1"}))
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
    of, gone = federation(6, (4, 60, 3, 40), weight_decay=0.5), frozenset({"c0", "c1"})
    of.do_rounds(*rounds)
    assert 1e-3 < of.error(gone) <= of.bound(gone)


def one_round(number: int = 1, **given) -> RoundLengths:
    values = {
        "learning_rate": 0.1,
        "clients": {"v": LocalWork(num_examples=5, num_steps=3, distance=1.0)},
        "moved": 1.0,
        "norm": 1.0,
        "vectors": {"u": 1.0},
        "premises": premises_of(2.0, 0.1),
    }
    return RoundLengths(number=number, **{**values, **given})


U = frozenset("u")
FIRST = one_round(clients={"u": LocalWork(num_examples=1, num_steps=3, distance=1.0)}, vectors={})


def test_a_round_of_the_forgotten_alone_costs_rounding_only() -> None:
    """Its vector takes all of it back, exactly."""
    alone = [replace(FIRST, vectors={}), replace(FIRST, number=2, vectors={"u": 3.0})]
    assert 0 < federated_bound(alone, U, Weighting.RENORMALISED).value < 1e-10


STEEP = one_round(
    learning_rate=5.0,
    clients={"v": LocalWork(num_examples=5, num_steps=400, distance=1.0)},
    premises=premises_of(10.0, 0.1),
)
UNKNOWN = one_round(2, premises=None, unmet=("Why.",))
NOT_BOUNDED = {
    "steps too large for the constants": [FIRST, STEEP, STEEP, STEEP],
    "a vector without a length, which is not 0": [FIRST, one_round(2, vectors={})],
    "a vector of which no training is recorded": [one_round(7)],
    "a round of which nothing is known": [FIRST, UNKNOWN],
}


@pytest.mark.parametrize("rounds", NOT_BOUNDED.values(), ids=NOT_BOUNDED)
def test_what_is_not_known_has_no_bound(rounds) -> None:
    """No number is made up."""
    with pytest.raises(NumericalError):
        federated_bound(rounds, U, Weighting.RENORMALISED)


def test_a_round_before_the_forgotten_first_trained_needs_no_record() -> None:
    """Both trainings are the same until then, whatever it was."""
    assert federated_bound([replace(UNKNOWN, vectors={})], U, Weighting.RENORMALISED).value == 0


def test_each_round_is_bounded_by_its_own_constants() -> None:
    """Nearly no decay in the middle: at least as large as with the decay of the others, and said to be piecewise."""
    decays = [0.3, 1e-3, 0.3]
    rounds = [FIRST, *(one_round(2 + at, premises=premises_of(2.0, l2)) for at, l2 in enumerate(decays))]
    mixed = federated_bound(rounds, U, Weighting.RENORMALISED)
    same = [FIRST, *(one_round(2 + at, premises=premises_of(2.0, 0.3)) for at in range(3))]
    assert mixed.value > federated_bound(same, U, Weighting.RENORMALISED).value
    assert "over 3 sets of constants" in mixed.source
    assert mixed.constants is None


def steps_between(
    smallest: float, largest: float, rate: float, *, hessian_lipschitz: float = 1.0
) -> LocalSteps:
    """Return steps at a rate on losses whose curvature is between two bounds."""
    constants = Constants(
        gradient_bound=1.0,
        smoothness=largest,
        strong_convexity=smallest,
        hessian_lipschitz=hessian_lipschitz,
        source="",
    )
    return LocalSteps.of(constants, rate)


def test_trainings_of_different_lengths_are_as_far_apart_as_the_farthest_pair() -> None:
    """Of 1 to 60 steps those of 9 and 43 differ more than those of 1 and 60, each bounded step for step."""
    steps = steps_between(0.02960540904000958, 0.08529438292143462, 1.0)
    pairs = [(few, most) for few in range(1, 61) for most in range(few, 61)]
    assert all(steps.apart(few, most) <= steps.apart(1, 60) for few, most in pairs)


@pytest.mark.parametrize("rate", [0.1, 0.5, 1.0, 1.8, 2.5])
def test_the_bounds_on_local_steps_hold_for_every_curvature_between_the_constants(rate: float) -> None:
    """On quadratic losses in one dimension the derivative is Π (1 − ηh), λ ≤ h ≤ S; of one step the bounds are met."""
    smallest, largest = 0.2, 1.0
    steps = steps_between(smallest, largest, rate)
    rho = max(abs(1 - rate * smallest), abs(1 - rate * largest))
    curvatures = np.linspace(smallest, largest, 5)
    derivatives = {0: np.ones(1)}
    for count in range(1, 5):
        derivatives[count] = np.outer(derivatives[count - 1], 1 - rate * curvatures).ravel()
        assert steps.contraction(count) == pytest.approx(np.abs(derivatives[count]).max())
        assert np.abs(1 - derivatives[count]).max() <= steps.from_identity(count) * (1 + 1e-12)
        for fewest in range(1, count + 1):
            found = [derivatives[number] for number in range(fewest, count + 1)]
            apart = max(one.max() for one in found) - min(one.min() for one in found)
            assert apart <= steps.apart(fewest, count) * (1 + 1e-12)
    assert steps.from_identity(1) == pytest.approx(min(1 + rho, rate * largest))


@pytest.mark.parametrize("rate", [0.1, 0.5, 1.0, 1.8, 2.5])
def test_the_bounds_on_local_steps_are_their_formulas(rate: float) -> None:
    """The largest of k ρ^(k−1) is found by trying each k; where steps grow (ρ ≥ 1) there is only 2 ρ^K."""
    smallest, largest = 0.2, 1.0
    steps = steps_between(smallest, largest, rate, hessian_lipschitz=3.0)
    rho = max(abs(1 - rate * smallest), abs(1 - rate * largest))
    for fewest, most in ((1, 1), (1, 3), (2, 12), (6, 12), (11, 12)):
        together = max(count * rho ** (count - 1) for count in range(fewest, most + 1))
        rest = rate * largest * sum(rho**count for count in range(most - fewest))
        expected = min(2 * rho**fewest, together * rate * (largest - smallest) + rho**fewest * rest)
        assert steps.apart(fewest, most) == pytest.approx(expected if rho < 1 else 2 * rho**most)
    assert steps.curvature(1) == pytest.approx(rate * 3.0)
    assert steps.curvature(3) == pytest.approx(rate * 3.0 * (rho**2 + rho * rho**2 + rho**4))


def by_the_legend(rounds, gone, weighting) -> float:
    """Compute e after rounds in each of which some client stays, as the module's docstring has it, without rounding."""
    e = x = 0.0
    for one in rounds:
        total = sum(work.num_examples for work in one.clients.values())
        w = {client: work.num_examples / total for client, work in one.clients.items()}
        a = {unit: one.vectors.get(unit, 0.0) for unit in gone}
        x = min(x, e + sum(a.values()))
        of, steps = LocalSteps.of(one.premises.constants, one.learning_rate), one.clients
        counts = [work.num_steps for work in steps.values()]
        stay, leave = [c for c in w if c not in gone], [c for c in w if c in gone]
        w_gone = sum(w[u] for u in leave)
        added = {u: w[u] / (1 - w[u]) * steps[u].distance for u in leave}
        if weighting is Weighting.RENORMALISED:
            v = {c: w[c] / (1 - w_gone) for c in stay}
            following = sum(v[c] * of.contraction(steps[c].num_steps) * e for c in stay)
            following += sum(v[c] * of.curvature(steps[c].num_steps) * x**2 / 2 for c in stay)
            for u in gone:
                own = w.get(u, 0.0)
                following += (w_gone - own) / (1 - own) * of.apart(min(counts), max(counts)) * a[u]
            following += sum((w_gone - w[u]) / (1 - w_gone) * added[u] for u in leave)
            x = sum(v[c] * of.contraction(steps[c].num_steps) * x for c in stay)
            x += sum(w[u] / (1 - w_gone) * steps[u].distance for u in leave)
        else:
            following = sum(w[c] * of.contraction(steps[c].num_steps) for c in stay) * e + w_gone * e
            following += sum(w[c] * of.curvature(steps[c].num_steps) * x**2 / 2 for c in stay)
            following += sum(w[u] * of.from_identity(steps[u].num_steps) for u in leave) * sum(a.values())
            x = sum(w[c] * of.contraction(steps[c].num_steps) * x for c in stay) + w_gone * x
            x += sum(w[u] * (one.moved + steps[u].distance) for u in leave)
        e = following
    return e


@pytest.mark.parametrize("weighting", list(Weighting))
@pytest.mark.parametrize("seed", range(8))
def test_the_bound_is_the_recursion_of_the_legend(seed: int, weighting: Weighting) -> None:
    """Of records with all numbers unlike: three of five clients forgotten, each away at times, and one of them."""
    generator = np.random.default_rng(seed)
    gone, vectors, rounds = {"a", "b", "c"}, {}, []
    for number in range(1, 7):
        away = {str(name) for name in generator.choice(["a", "b", "c", "d"], size=2, replace=False)}
        clients = {
            name: LocalWork(
                num_examples=int(generator.integers(1, 9)),
                num_steps=int(generator.integers(1, 6)),
                distance=float(generator.uniform(0.1, 1.0)),
            )
            for name in "abcde"
            if name not in away
        }
        rate = float(generator.choice([0.05, 0.3]))
        premises = premises_of(float(generator.uniform(0.5, 1.5)), 0.2)
        moved = float(generator.uniform(0.1, 1.0))
        values = {"learning_rate": rate, "clients": clients, "moved": moved, "vectors": dict(vectors)}
        rounds.append(one_round(number, **values, premises=premises))
        vectors |= {name: float(generator.uniform(0.1, 2.0)) for name in clients if name in gone}
    found = federated_bound(rounds, frozenset(gone), weighting).value
    assert found == pytest.approx(by_the_legend(rounds, gone, weighting), rel=1e-6)
    first = next(at for at, one in enumerate(rounds) if "a" in one.clients)
    of_one = federated_bound(rounds[first:], frozenset("a"), weighting).value
    assert of_one == pytest.approx(by_the_legend(rounds[first:], {"a"}, weighting), rel=1e-6, abs=1e-9)


def test_a_round_of_several_forgotten_clients_alone_by_hand() -> None:
    """Retraining leaves the model as it was: what the round moved, what it adds to each vector, what was carried."""
    work = {
        "u": LocalWork(num_examples=3, num_steps=2, distance=0.5),
        "w": LocalWork(num_examples=1, num_steps=4, distance=0.25),
    }
    both = frozenset(work)
    alone = [
        one_round(1, clients={"u": work["u"], "v": work["u"]}, vectors={}, moved=0.7),
        one_round(2, clients=work, vectors={"u": 0.3}, moved=0.7),
    ]
    before = federated_bound(alone[:1], both, Weighting.RENORMALISED).value
    most = LocalSteps.of(alone[0].premises.constants, 0.1).contraction(2)
    expected = before + 0.7 + (3 * 0.5 + 0.25 / 3) + (1 + most) * 0.3
    assert federated_bound(alone, both, Weighting.RENORMALISED).value == pytest.approx(expected, rel=1e-6)
    single = [alone[0], one_round(2, clients={"w": work["w"]}, vectors={"u": 0.3}, moved=0.7)]
    most = LocalSteps.of(alone[0].premises.constants, 0.1).contraction(4)
    assert federated_bound(single, both, Weighting.RENORMALISED).value == pytest.approx(
        before + (1 + most) * 0.3, rel=1e-6
    )


@pytest.mark.parametrize("alone", [False, True])
def test_the_rounding_of_the_addition_by_hand(alone: bool) -> None:
    """2u (|U|+2) of the longest that is added: the model, what is carried, and what the last round adds to it."""
    work = {"u": LocalWork(num_examples=3, num_steps=2, distance=0.5)}
    if not alone:
        work["v"] = LocalWork(num_examples=1, num_steps=4, distance=0.25)
    last = one_round(clients=work, moved=0.7, norm=2.0, vectors={"u": 0.3})
    most = max(1.0, LocalSteps.of(last.premises.constants, 0.1).contraction(2))
    added = (1.0 if alone else 0.75 / 0.25) * (0.7 + 0.5)
    expected = 2 * 2.0**-53 * (1 + 2) * (2.0 + 0.7 + most * 0.3 + added)
    assert _addition_rounding([last], U, {"u"}) == pytest.approx(expected, rel=1e-7, abs=0)
    assert _addition_rounding([last], U, set()) == 0.0


def test_the_rounding_of_the_addition_is_in_the_bound(monkeypatch) -> None:
    """It is too small to be seen in the sum, so it is made large."""
    found = federated_bound([FIRST], U, Weighting.RENORMALISED).value
    monkeypatch.setattr("unlearning.certified.federated_bound._addition_rounding", lambda *_: 0.5)
    assert federated_bound([FIRST], U, Weighting.RENORMALISED).value == pytest.approx(found + 0.5)
