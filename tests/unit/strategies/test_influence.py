"""One client's influence on the mean is its count times the length of its change; over its bound it must do no harm."""

import math
from dataclasses import dataclass
from statistics import median

import numpy as np
import pytest

from strategies.aggregation import Combined
from strategies.averaging import Averaging
from strategies.round_plan import RoundOutcome, RoundPlan
from strategies.round_rules import RoundRules
from strategies.update_limits import AGREEMENT, CountLimits, Excess, Limits, agrees, excess, influences
from tests.rounds import START, OneRound
from unlearning.buffers import Change
from unlearning.methods.method import Reply
from unlearning.methods.registry import preparations
from unlearning.parameters import Vector, weighted_mean
from unlearning.tasks import TaskSettings, make_task

TASK = make_task(TaskSettings())
ZERO = np.zeros(2)
EAST, WEST, NORTH = np.array([1.0, 0.0]), np.array([-1.0, 0.0]), np.array([0.0, 1.0])


def of_others(others: int, own: float) -> dict[str, float]:
    return {**{str(number): 1.0 for number in range(others)}, "own": own}


@pytest.mark.parametrize(
    ("others", "own", "bound"), [(2, 1.5, 1), (4, 2, 4 / 3), (6, 2.5, 2), (9, 9, 3), (29, 81, 3)]
)
def test_the_bound_is_three_medians_and_less_in_a_small_federation(others, own, bound):
    """A third of what all others have by it, but not below the median itself."""
    assert excess(of_others(others, own), 3.0) == Excess("own", own, pytest.approx(bound))
    assert excess(of_others(others, bound), 3.0) is None


def test_there_is_no_bound_for_two_clients_nor_for_a_factor_of_zero_nor_where_most_had_nothing_to_change():
    """Of two it cannot be known which one is wrong."""
    assert excess(of_others(1, 100.0), 3.0) is None
    assert excess(of_others(9, 100.0), 0.0) is None
    assert excess({"a": 0.0, "b": 0.0, "c": 1.0}, 3.0) is None


def test_the_client_with_the_most_influence_is_furthest_over_its_bound():
    """As an oracle says that looks at every client by itself, in 200 random rounds."""
    random = np.random.default_rng(1)
    for _ in range(200):
        found = {
            str(n): float(value) for n, value in enumerate(random.lognormal(0, 2, random.integers(3, 12)))
        }
        over = {
            name: value
            / (median(v for o, v in found.items() if o != name) * max(1, min(3, (len(found) - 1) / 3)))
            for name, value in found.items()
        }
        worst = max(over, key=lambda name: over[name])
        one = excess(found, 3.0)
        assert (one.client if one else None) == (worst if over[worst] > 1 else None)
        if one:
            assert one.influence / one.bound == pytest.approx(over[worst])


def test_influence_is_the_weight_times_the_length():
    """In float64: a length beyond float32 is no infinity."""
    changes = {"a": Change(np.array([3.0, 4.0])), "b": Change(np.full(4, 3e38, dtype=np.float32))}
    assert influences({"a": 7, "b": 1}, changes) == {"a": 35.0, "b": pytest.approx(6e38)}


@pytest.mark.parametrize(
    ("own", "expected"), [(EAST, True), (NORTH, False), (WEST, False), (EAST + NORTH, True), (0 * EAST, True)]
)
def test_a_change_agrees_that_points_where_the_weighted_sum_of_the_others_points(own, expected):
    """2 × east and 1 × west are east."""
    changes = {"a": Change(EAST), "b": Change(WEST), "own": Change(own)}
    assert agrees("own", {"a": 2, "b": 1, "own": 9}, changes) is expected


def test_whether_a_change_agrees_does_not_depend_on_how_long_the_changes_are():
    """As the cosine in float64 says; in float32 the squares of the longest would be infinite, of the shortest 0."""
    random = np.random.default_rng(3)
    for seed in range(40):
        vectors = random.normal(0.03 * seed - 0.6, 1, (3, 200_000)) * 10.0 ** random.uniform(-30, 34, (3, 1))
        own, one, other = (Change(vector.astype(np.float32)) for vector in vectors)
        total = 2.0 * one.after.astype(np.float64) + 5.0 * other.after
        cosine = own.after.astype(np.float64) @ total / np.linalg.norm(total) / own.norm
        found = agrees("own", {"own": 9, "one": 2, "other": 5}, {"own": own, "one": one, "other": other})
        assert abs(cosine - AGREEMENT) < 1e-4 or found == (cosine >= AGREEMENT), (seed, cosine)


@dataclass
class Server:
    """A judge whose loss is the distance from a goal, and which commits nothing that is further than `furthest`."""

    goal: Vector
    furthest: float = math.inf
    tests: int = 0

    def loss(self, model: Vector) -> float | None:
        self.tests += 1
        return float(np.linalg.norm(model - self.goal))

    def problem(self, model: Vector) -> str:
        return "it is too far" if np.linalg.norm(model - self.goal) > self.furthest else ""


def averaged(
    changes: dict[str, tuple[int, Vector]],
    judge: Server | None = None,
    factor: float = 3.0,
    allowed: str = "",
) -> RoundOutcome:
    counts = CountLimits(own={allowed: 1000})
    limits = Limits(task=TASK, max_norm=0.0, norm_factor=0.0, influence_factor=factor, counts=counts)
    averaging = Averaging(
        combine=lambda models: Combined(model=weighted_mean(models)),
        rules=RoundRules(),
        limits=limits,
        judge=judge,
    )
    entering = {name: Reply(vector=change, num_examples=count) for name, (count, change) in changes.items()}
    return averaging.outcome(entering, {name: Change(change) for name, (_, change) in changes.items()})


NINE = {str(number): (100, EAST) for number in range(9)}


@pytest.mark.parametrize("judge", [None, Server(goal=2 * EAST)])
def test_a_site_with_nine_times_the_data_counts_in_full_where_it_trains_as_the_others_do(judge):
    """With test examples and without: (9·100·1 + 900·2) / 1800."""
    outcome = averaged({**NINE, "large": (900, 2 * EAST)}, judge)
    np.testing.assert_array_equal(outcome.model, 1.5 * EAST)
    assert outcome.held_back == {}


@pytest.mark.parametrize("judge", [None, Server(goal=2 * EAST)])
@pytest.mark.parametrize(
    ("count", "length", "kept"), [(900, 2.0, 150), (900, 9.0, 33), (100, 9.0, 33), (900, 1.0, 300)]
)
def test_a_client_that_pulls_back_keeps_the_influence_of_three(judge, count, length, kept):
    """Its count is 300 / length, and that is what the outcome says and what the model is."""
    outcome = averaged({**NINE, "bad": (count, length * WEST)}, judge)
    assert outcome.participants == {**dict.fromkeys(NINE, 100), "bad": kept}
    np.testing.assert_allclose(outcome.model, (900 - kept * length) / (900 + kept) * EAST)
    assert list(outcome.held_back) == ["bad"]


def test_the_servers_test_examples_decide_where_there_are_some():
    """A change that points elsewhere may help, and one that points like the others may do harm."""
    helps = averaged({**NINE, "odd": (900, 2 * NORTH)}, Server(goal=NORTH))
    assert helps.held_back == {}
    harms = averaged({**NINE, "far": (900, 9 * EAST)}, Server(goal=EAST))
    assert "the test loss is 4 with it and 2.22e-16 without it" in harms.held_back["far"]


def test_a_test_is_done_only_for_a_client_over_the_bound():
    """Two: of the model with it and of that without it."""
    judge = Server(goal=EAST)
    averaged(NINE, judge)
    assert judge.tests == 0
    averaged({**NINE, "large": (900, EAST)}, judge)
    assert judge.tests == 2


def test_a_client_whose_count_an_operator_allows_is_believed_where_nothing_can_be_tested():
    """`client-example-limits` names it."""
    assert averaged({**NINE, "odd": (900, NORTH)}, allowed="odd").held_back == {}
    assert list(averaged({**NINE, "odd": (900, NORTH)}).held_back) == ["odd"]


def test_a_client_that_spoils_the_round_even_with_less_weight_is_left_out_of_it():
    """The model with a third of its count may not be committed either."""
    outcome = averaged({**NINE, "bad": (100, 9 * WEST)}, Server(goal=EAST, furthest=0.3))
    assert (outcome.culprit, outcome.problem, outcome.held_back) == ("bad", "", {})
    assert outcome.participants == dict.fromkeys(NINE, 100)
    outcome.log()


def test_no_client_is_said_to_be_in_a_round_and_not_in_it():
    """In 1,000 random rounds, of which a good part hold a client back and a good part leave one out."""
    random, held, left_out, both = np.random.default_rng(5), 0, 0, 0
    for _ in range(1000):
        changes = {
            str(name): (int(random.integers(1, 200)), random.lognormal(0, 1) * random.standard_normal(2))
            for name in range(random.integers(1, 7))
        }
        outcome = averaged(changes, Server(goal=EAST, furthest=random.uniform(0.2, 3)))
        outcome.log()
        inside, refused = {*outcome.participants}, {*outcome.refused}
        assert inside | refused == {*changes}
        assert not inside & refused
        assert {*outcome.held_back} <= inside
        held, left_out = held + bool(outcome.held_back), left_out + bool(outcome.culprit)
        both += bool(outcome.held_back) and bool(outcome.culprit)
    assert min(held, left_out, both) >= 10


def test_a_client_of_whose_count_nothing_is_left_is_refused():
    """One example of 40 times the others' influence."""
    outcome = averaged({**dict.fromkeys(NINE, (1, EAST)), "bad": (1, 40 * WEST)})
    np.testing.assert_allclose(outcome.model, EAST)
    assert list(outcome.refused) == ["bad"]
    assert outcome.held_back == {}


def test_a_round_that_may_not_be_committed_is_averaged_without_the_client_that_spoils_it():
    """Of several without which it passes the one is left out that the test set misses least."""
    judge = Server(goal=EAST, furthest=0.6)
    changes = {**dict.fromkeys("abc", (100, EAST)), "meek": (100, ZERO), "bad": (100, 3 * WEST)}
    outcome = averaged(changes, judge, factor=0.0)
    assert (outcome.culprit, outcome.problem) == ("bad", "")
    assert "it is too far" in outcome.refused["bad"]
    np.testing.assert_array_equal(outcome.model, 0.75 * EAST)


def test_a_round_that_no_one_client_spoils_is_not_committed():
    """Two pull back, or only two have answered."""
    judge = Server(goal=EAST, furthest=0.6)
    for names in ("abc", "ab"):
        outcome = averaged({name: (100, 3 * WEST if name in "bc" else EAST) for name in names}, judge, 0.0)
        assert (outcome.culprit, outcome.problem) == ("", "it is too far")


def test_a_method_that_does_not_average_has_no_bound():
    """SISA's shards are models of their own; FedEraser's rounds are ordinary ones."""
    assert not RoundRules(prepared=preparations("sisa")).averages
    assert not RoundRules(prepared=preparations("exact-ridge")).averages
    assert RoundRules(prepared=preparations("federaser; pga")).averages
    assert RoundRules(prepared=preparations("hf-online feature_norm=1")).averages


def test_a_round_under_flowers_own_loop_has_the_bound_too():
    """Nothing is tested there: it is by direction."""
    one = OneRound({**dict.fromkeys("abcd", (100, START + 1)), "bad": (900, START - 2)})
    one.run()
    assert one.outcome.participants["bad"] == 66
    np.testing.assert_allclose(one.outcome.model, START + (400 - 132) / 466)


def test_a_suspended_client_is_in_no_sample():
    """The others are asked, also where `min-clients` wants more."""
    one = OneRound({"a": 1, "b": 1, "bad": 9}, plan=RoundPlan(suspended=frozenset({"bad"})), min_clients=3)
    assert list(one.messages()) == ["a", "b"]
