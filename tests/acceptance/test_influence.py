"""One client within all limits on counts and lengths that pulls the model away: the others' training goes on.

Each federation is the real server and client code on the in-process grid; one client forges what it trained.
"""

import re
from collections.abc import Callable
from itertools import chain, repeat
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

from server.federation.presence import Suspension
from strategies.messages import VECTOR, vector_of
from tests.acceptance.test_hostile_clients import HOSTILE, Hostile, absent
from tests.cases import LONG
from tests.federation import InProcessFederation, client
from tests.hostile import HONEST, Forge
from unlearning.parameters import Vector, content_hash
from unlearning.requests import Status

TEN = {"num_clients": 10, "partition": "iid", "rounds": 15}
Direction = Callable[[Vector], Vector]


def flipped(change: Vector) -> Vector:
    return -change


def constant(change: Vector) -> Vector:
    """The same direction in every round, at the length of the honest change."""
    direction = np.random.default_rng(7).standard_normal(change.size).astype(change.dtype)
    return direction * np.float32(np.linalg.norm(change) / np.linalg.norm(direction))


def pulling(count: float, length: float, direction: Direction = flipped) -> Forge:
    """The honest answer, but with `count` times its count and a change of `length` times its length."""

    def forge(asked: Message, honest: RecordDict) -> Message:
        is_update = asked.metadata.message_type == "train.unlearn"
        start = np.float32(0) if is_update else vector_of(asked.content["arrays"])
        change = vector_of(honest["arrays"]) - start
        metrics = dict(honest["metrics"])
        metrics["num-examples"] = int(count * metrics["num-examples"])
        array = Array(start + np.float32(length) * direction(change))
        return Message(
            RecordDict(
                {
                    **honest,
                    "arrays": ArrayRecord({**honest["arrays"], VECTOR: array}),
                    "metrics": MetricRecord(metrics),
                }
            ),
            reply_to=asked,
        )

    return forge


def score(one: InProcessFederation) -> float:
    return float([*one.ledger.all_rounds()][-1].metrics["test_score"])


def metrics(one: InProcessFederation, name: str) -> list[Any]:
    return [record.metrics.get(name) for record in one.ledger.all_rounds()]


@pytest.fixture(scope="module")
def honest_score(tmp_path_factory) -> float:
    one = InProcessFederation(tmp_path_factory.mktemp("honest"), TEN)
    one.run()
    found = score(one)
    one.close()
    return found


@pytest.mark.parametrize(
    "forge",
    [
        pytest.param(pulling(9, 2), marks=LONG),
        pulling(9, 3, constant),
    ],
)
@pytest.mark.slow
def test_one_client_of_ten_does_not_keep_the_others_from_learning(federation, honest_score, forge):
    """After 15 rounds the model is nearly as good as where the client is honest."""
    one = federation(**TEN)
    Hostile(one, repeat(forge), ("train",))
    one.run()
    assert score(one) > honest_score - 0.04


FIVE = {
    **TEN,
    "num_clients": 5,
    "rounds": 5,
    "recovery_max_rounds": 2,
    "max_examples": 700,
    "attack_samples": 20,
}
SPOILING = {**FIVE, "max_influence_factor": 0.0}
"""Without the bound on influence only the gate is left."""


def participants(one: InProcessFederation) -> list[bool]:
    """Whether the hostile client was in each round after the fifth."""
    return [HOSTILE in names for names in metrics(one, "participants")[5:]]


def test_a_round_is_committed_without_the_one_client_that_spoils_it(federation):
    """It is named, and then left out for three rounds: the model is that of the others to the bit."""
    one, other = (federation(name=name, **SPOILING) for name in ("with", "without"))
    one.run()
    other.run()
    Hostile(one, repeat(pulling(9, 6)), ("train",))
    Hostile(other, repeat(absent), ("train",))
    state = one.run(rounds=9)
    sixth = [*one.ledger.all_rounds()][5].metrics
    assert "max-round-score-loss allows 30 points" in sixth["refused"][HOSTILE]
    assert (sixth["left_out"], sixth.get("not_committed")) == ({HOSTILE: 9}, None)
    assert content_hash(state.parameters) == content_hash(other.run(rounds=9).parameters)


@pytest.mark.slow
def test_a_client_that_spoils_rounds_again_is_left_out_for_longer(federation):
    """For 3, 6 and 12 rounds, whatever is restarted in between; meanwhile the others learn."""
    one = federation(**SPOILING)
    one.run()
    Hostile(one, repeat(pulling(9, 6)), ("train",))
    for rounds in (7, 12, 20):
        state = one.run(rounds=rounds)
        assert "left out of rounds until" in one.ledger.facts()["left-out"][HOSTILE]
    told = [found and found[HOSTILE] for found in metrics(one, "left_out")[5:]]
    assert told == [9, 9, 9, None, 16, 16, 16, 16, 16, 16, None, 29, 29, 29, 29]
    assert state.suspensions[HOSTILE] == Suspension(until=29, rounds=12)
    assert participants(one) == [False] * 15
    assert score(one) > 0.85


def test_a_client_is_asked_again_after_its_rounds_and_trains_as_before(federation):
    """It spoiled one round; the ledger's fact and the records say no more of it afterwards."""
    one = federation(**SPOILING)
    one.run()
    Hostile(one, chain([pulling(9, 6)], repeat(HONEST)), ("train",))
    one.run(rounds=10)
    assert participants(one) == [False] * 4 + [True]
    assert one.ledger.facts()["left-out"] == {}
    assert "left_out" not in [*one.ledger.all_rounds()][-1].metrics


@pytest.mark.parametrize("kinds", [("train.unlearn",), pytest.param(("train",), marks=LONG)])
def test_a_deletion_gets_through_without_the_client_that_pulls_away(federation, kinds):
    """In an exchange of FedOSD, whose mean weighs no counts, and in recovery rounds; the report names it."""
    settings = SPOILING if kinds == ("train",) else FIVE
    one = federation(**{**settings, "max_score_loss": 15.0, "max_attempts": 1, "recovery_target": 0.99})
    one.run()
    Hostile(one, repeat(pulling(1, 7) if kinds == ("train.unlearn",) else pulling(9, 6)), kinds)
    request = one.forget(client("4"), "fedosd", rounds=6)
    finding = (
        "answers that were refused" if kinds == ("train.unlearn",) else "clients that were left out of rounds"
    )
    found = one.report(request.id)["unlearning"]["findings"][finding]
    assert list(found) == [HOSTILE]
    if kinds == ("train.unlearn",):
        # Seven times as long as it would be; the bound is about as long as the others are.
        (times,) = set(re.findall(r"Its length is (\S+) times", str(found)))
        assert 5 < float(times) < 10


def test_a_recovery_does_not_wait_for_a_client_that_is_left_out(federation):
    """It is asked again after a number of rounds, so rounds have to pass: here as those of recovery."""
    one = federation(**SPOILING, max_score_loss=0.0)
    one.run()
    Hostile(one, chain([pulling(9, 6)], repeat(HONEST)), ("train",))
    one.run(rounds=6)
    others = [one.file(client(name)) for name in "01234" if name != HOSTILE]
    one.run(rounds=7)
    assert {one.ledger.requests.get(other.id).status for other in others} == {Status.COMPLETED}
    recovery = one.report(others[0].id)["recovery"]
    assert recovery["rounds"] == 0
    assert recovery["stop_reason"].endswith("; of 2 recovery rounds 2 left the model as it was")


@pytest.mark.slow
def test_honest_clients_with_other_labels_train_as_without_the_bound(federation):
    """To the bit: some of five are over the bound, and do no harm."""
    odd = {**FIVE, "partition": "dirichlet", "alpha": 0.5, "max_examples": 0, "rounds": 8}
    one, other = federation(**odd), federation(name="without", **odd, max_influence_factor=0.0)
    assert content_hash(one.run().parameters) == content_hash(other.run().parameters)
