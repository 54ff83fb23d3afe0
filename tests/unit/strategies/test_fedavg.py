"""FedAvg among eligible clients: who is asked, what is refused, what comes out."""

import re
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace

import numpy as np
import pytest

from strategies.fedavg import FedAvg
from strategies.round_plan import RoundOutcome, RoundPlan
from strategies.round_rules import RoundRules
from tests.rounds import START, OneRound
from unlearning.errors import UpdateRefused
from unlearning.requests import Exclusions, Granularity, Target
from unlearning.tasks import TaskSettings, make_task


def test_a_round_averages_by_examples():
    """(1·[1,2,3] + 3·[5,6,7]) / 4 = [4,5,6], through real messages."""
    one = OneRound({"a": (1, START), "b": (3, START + 4)})
    np.testing.assert_array_equal(one.run(), [4.0, 5.0, 6.0])
    assert one.outcome.participants == {"a": 1, "b": 3}


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ((2, np.array([1.0, np.nan, 3.0])), "not finite"),
        ((2, np.array([1.0, np.inf, 3.0])), "not finite"),
        ((2, np.array([1.0, 2.0])), "has 3 parameters"),
        ((2, np.ones((3, 1))), "has 3 parameters"),
        ((2, np.array([1.0, 2.0, 3.0], dtype=np.float32)), "float64"),
        ((0, START), "no example"),
    ],
    ids=["nan", "inf", "short", "shape", "dtype", "no-examples"],
)
def test_a_bad_update_is_refused_and_the_round_goes_on(bad, words):
    """The client is named, its update dropped, the others count."""
    one = OneRound({"good": 1, "bad": bad})
    np.testing.assert_array_equal(one.run(), START + 1)
    assert words in one.refused["bad"]


def test_a_client_that_raises_costs_its_update_and_not_the_round():
    """An error reply is no update; where there is none at all there is no model, and the caller keeps what it has."""
    one = OneRound({"good": 1, "bad": RuntimeError("disk full")})
    np.testing.assert_array_equal(one.run(), START + 1)
    assert list(one.outcome.participants) == ["good"]
    assert OneRound({"bad": RuntimeError("disk full")}).run() is None


def test_an_update_over_the_norm_bound_is_refused():
    """The bound is on the change, not on the model."""
    one = OneRound({"good": 0.1, "bad": 10}, max_update_norm=1.0)
    np.testing.assert_allclose(one.run(), START + 0.1)
    assert "17.3" in one.refused["bad"]


def test_a_forgotten_client_is_not_asked():
    """Exclusions decide eligibility."""
    gone = Exclusions().including([Target(Granularity.CLIENT, "b")])
    one = OneRound({"a": 0, "b": 4}, plan=RoundPlan(exclusions=gone))
    np.testing.assert_array_equal(one.run(), START)
    assert list(one.outcome.participants) == ["a"]


@pytest.mark.parametrize("how", ["exclusions", "withheld"])
@pytest.mark.parametrize(("wanted", "gone", "fewest"), [(3, "", 3), (3, "c", 2), (2, "c", 2), (3, "abc", 1)])
def test_a_round_needs_no_more_clients_than_are_left(how, wanted, gone, fewest):
    """But all that are asked for, as long as no client was forgotten: more may come."""
    targets = [Target(Granularity.CLIENT, one) for one in gone] + [Target(Granularity.CLASS, class_label=1)]
    plan = RoundPlan(counts={"a": 1, "b": 1}, **{how: Exclusions().including(targets)})
    assert replace(plan, counts={"a": 1, "b": 1, "c": 1}).fewest(wanted) == fewest
    assert plan.fewest(5) == (2 if gone == "c" else 1 if gone else 5)


def test_clients_that_have_not_trained_yet_are_left_too():
    """A sample of ten can be small; min-clients holds as long as there are so many."""
    gone = Exclusions().including([Target(Granularity.CLIENT, "a")])
    plan = RoundPlan(counts={"a": 1, "b": 1}, exclusions=gone, known=frozenset("abcde"))
    assert [plan.fewest(wanted) for wanted in (1, 3, 9)] == [1, 3, 4]


def test_a_forgotten_client_is_no_more_counted():
    """Whatever sums the counts of examples (weights, steps, shares) sums those that are left."""
    one = OneRound({"a": (1, START), "b": (3, START)})
    one.run()
    strategy = one.strategy
    assert strategy.plan.num_examples == {"a": 1, "b": 3}
    strategy.follow(strategy.plan.including([Target(Granularity.CLIENT, "b")]))
    assert strategy.plan.num_examples == {"a": 1}


def test_the_sample_is_seeded_sorted_and_of_the_right_size():
    """ceil(fraction · eligible), the same for the same seed and round, not always the same clients."""
    strategy = FedAvg(make_task(TaskSettings()), fraction=0.3)
    clients = [str(number) for number in range(10)]
    samples = [strategy.sample(clients, number) for number in range(20)]
    assert all(len(sample) == 3 and sample == sorted(sample) for sample in samples)
    assert samples[0] == strategy.sample(reversed(clients), 0)
    assert len({tuple(sample) for sample in samples}) > 5


class Largest(RoundRules):
    """The model of the client with most examples; client `c` has no turn."""

    keeps_models = True

    def combine(self, before, models):
        return max(models.values(), key=lambda pair: pair[0])[1]

    def takes_part(self, client_id, number):
        return client_id != "c"


def test_a_round_goes_by_its_rules_and_the_outcome_holds_what_they_ask_for():
    """Who is asked, what may enter, what is made of it, and which models are kept."""
    answers = {"a": (1, START), "b": (3, START + 4), "c": (5, START + 9)}
    one, plain = OneRound(answers, plan=RoundPlan(rules=Largest())), OneRound(answers)
    np.testing.assert_array_equal(one.run(), START + 4)
    assert {client: count for client, (count, _) in one.outcome.models.items()} == {"a": 1, "b": 3}
    assert one.outcome.arrays == {"a": {}, "b": {}}
    plain.run()
    assert (plain.outcome.models, plain.outcome.arrays) == ({}, {})


def test_what_the_rules_refuse_does_not_enter():
    """By the client's name, with the rules' reason."""

    class Strict(RoundRules):
        def check(self, sent, returned):
            raise UpdateRefused("Nothing is good enough.")

    one = OneRound({"a": 0}, plan=RoundPlan(rules=Strict()))
    assert one.run() is None
    assert one.outcome == RoundOutcome(refused={"a": "Nothing is good enough."})
    assert one.strategy.plan.num_examples == {}


class Median(FedAvg):
    """A strategy of one's own: the two clients whose ids come first, and the median of their models."""

    def sample(self, eligible, server_round):
        return sorted(eligible)[:2]

    def combine(self, before, models):
        return np.median([model for _, model in models.values()], axis=0)


def test_a_strategy_of_ones_own_overrides_whom_a_round_asks_or_what_is_made_of_the_answers():
    """The rest of the round is FedAvg's: checks, counts and messages."""
    one = OneRound({"a": (1, START), "b": (9, START + 4), "c": (1, START + 50)}, strategy=Median)
    np.testing.assert_array_equal(one.run(), START + 2)
    assert one.outcome.participants == {"a": 1, "b": 9}


def test_whom_a_round_waits_for_is_said(caplog):
    """How many, by which setting, and who is here; then that it is over."""
    caplog.set_level("INFO")
    one = OneRound({"a": 0, "b": 0}, start_clients=3, wait_timeout_s=0.6)
    told: list[str] = []
    one.strategy.await_clients(one.grid, tell=told.append)
    *waiting, last = told
    assert set(waiting) == {"Waiting for 3 client(s) (start-clients), 2 here: a, b."}
    assert last == ""
    assert re.search(r"2 here: a, b\. At most [01] s more \(wait-timeout-s\)\.", caplog.text)


def test_a_round_of_sums_waits_for_as_many_as_a_sum_needs():
    """Also where fewer are left: without the wait one round after the other would be given up at once."""
    gone = Exclusions().including([Target(Granularity.CLIENT, "c")])
    one = OneRound(
        {"a": 0, "b": 0},
        plan=RoundPlan(exclusions=gone, counts={"a": 1, "b": 1}),
        secure_aggregation=True,
        start_clients=1,
        wait_timeout_s=0.3,
    )
    told: list[str] = []
    for _ in range(2):
        one.strategy.await_clients(one.grid, tell=told.append)
    assert told == ["Waiting for 3 client(s) (min-cohort), 2 here: a, b.", ""] * 2


@pytest.mark.parametrize(
    ("heard", "waits"), [(None, 5.0), (datetime.now(UTC), 300.0)], ids=["simulated", "real"]
)
def test_a_simulation_has_all_its_clients_at_once(monkeypatch, caplog, heard, waits):
    """An app that does not set `num-clients` expects ten; real sites may still come."""
    clock = [0.0]
    monkeypatch.setattr(
        "strategies.waiting.time",
        SimpleNamespace(monotonic=lambda: clock[0], sleep=lambda s: clock.append(clock.pop() + s)),
    )
    monkeypatch.setattr("strategies.roster.heard_at", lambda _: heard)
    OneRound({"a": 1, "b": 1}, num_clients=10, wait_timeout_s=300.0).run()
    assert clock[0] == pytest.approx(waits, abs=0.5)
    assert ("The simulation has 2 client(s), not 10 (num-clients" in caplog.text) == (heard is None)


@pytest.mark.parametrize(
    ("own", "why"),
    [
        ({}, "has no random change of inputs"),
        ({"augment": lambda inputs, _: inputs, "train": lambda *_: 0.0}, "trains by its own function"),
        ({"augment": lambda inputs, _: inputs}, ""),
    ],
    ids=["none", "own-training", "used"],
)
def test_augmentation_that_changes_nothing_is_said(caplog, own, why):
    """Rounds go on: the same settings may serve several data sets."""
    FedAvg(replace(make_task(TaskSettings(dataset="digits")), **own), augment=True)
    assert ("augment = true changes nothing" in caplog.text) == bool(why)
    assert why in caplog.text


def test_nothing_is_said_where_nobody_is_waited_for():
    """Nor is the ledger written to."""
    one = OneRound({"a": 0})
    told: list[str] = []
    one.strategy.await_clients(one.grid, tell=told.append)
    assert told == []
