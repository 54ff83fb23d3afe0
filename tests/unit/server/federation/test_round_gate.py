"""A round is compared with the best of the last committed ones; a client that spoils one is left out for a while."""

from dataclasses import replace

import numpy as np

from server.federation.gate import COMPARED_ROUNDS, RoundGate
from server.federation.observing import ServerTestSet
from server.federation.presence import Suspension, sentences, suspend, suspended
from server.federation.state import FederationState
from unlearning.runtime.archive import pack, unpack


class Scores(ServerTestSet):
    """A test set whose score is a model's only parameter."""

    def __init__(self) -> None:
        self.examples = ()  # type: ignore[assignment]
        self.task = type("Task", (), {"score_name": "accuracy"})  # type: ignore[assignment]

    def score(self, parameters, *, without=frozenset()):
        return float(parameters[0])


def gate(state: FederationState, allowed: float = 30.0) -> RoundGate:
    return RoundGate(test_set=Scores(), before=state, classes=frozenset(), max_score_loss=allowed)


def rounds(state: FederationState, *scores: float) -> FederationState:
    """The state after rounds whose models have these scores."""
    for score in scores:
        model, judge = np.array([score]), gate(state)
        is_committed = not judge.problem(model)
        state = replace(state, scores=judge.scores_after(model if is_committed else None))
        state = replace(state, parameters=model) if is_committed else state
    return state


BEGINNING = FederationState(parameters=np.array([0.1]))


def test_a_slow_decline_is_held_like_a_fast_one():
    """Five points a round: the seventh is more than 30 below the best."""
    state = rounds(BEGINNING, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.61, 0.55, 0.5)
    assert state.parameters == [0.61]
    assert "0.5500 after the round, 0.9000 after the best of the last 8" in gate(
        rounds(BEGINNING, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.61)
    ).problem(np.array([0.55]))


def test_a_round_that_loses_what_is_allowed_and_no_more_is_committed():
    """0.9 - 0.6 is over 0.3 in float64."""
    for best in range(30, 101):
        before = replace(BEGINNING, scores=(best / 100,))
        assert gate(before).problem(np.array([(best - 30) / 100])) == ""
        assert gate(before).problem(np.array([(best - 30.01) / 100]))


def test_a_model_that_stays_worse_is_committed_after_ten_rounds():
    """A client with labels of its own has left: nothing will ever be as good again."""
    state = rounds(BEGINNING, *[0.9] * 20)
    assert len(state.scores) == COMPARED_ROUNDS
    assert rounds(state, *[0.5] * 9).parameters == [0.9]
    lower = rounds(state, 0.65, *[0.5] * 9)
    assert lower.parameters == [0.65]
    assert rounds(lower, 0.5).parameters == [0.5]


def test_nothing_is_compared_where_nothing_is_bounded():
    """No scores are kept either."""
    judge = gate(BEGINNING, allowed=0.0)
    assert (judge.problem(np.array([0.0])), judge.scores_after(BEGINNING.parameters)) == ("", ())


def test_a_client_is_left_out_for_twice_as_long_each_time_and_48_rounds_at_most():
    """Every time that it comes back it spoils the next round."""
    known, number, lasted = {}, 1, []
    for _ in range(6):
        known = suspend(known, "2", number)
        lasted.append(known["2"].rounds)
        assert list(suspended(known, number + 1)) == list(suspended(known, known["2"].until)) == ["2"]
        number = known["2"].until + 1
        assert suspended(known, number) == {}
    assert lasted == [3, 6, 12, 24, 48, 48]


def test_what_a_client_did_long_ago_is_forgotten():
    """It begins again at 3 after 48 rounds."""
    known = suspend({}, "2", 1)
    assert suspend(known, "", 52) == known
    assert suspend(known, "", 53) == {}


def test_a_checkpoint_carries_who_is_left_out():
    """And the scores."""
    state = replace(BEGINNING, suspensions=suspend({}, "2", 1), scores=(0.5,))
    found = unpack(FederationState, pack(state))
    assert (found.suspensions, found.scores) == ({"2": Suspension(until=4, rounds=3)}, (0.5,))
    assert "until round 4" in sentences(found.suspensions, 4)["2"]
