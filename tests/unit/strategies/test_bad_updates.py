"""A bad update is refused and recorded, and the round goes on with the others.

The round runs on the in-process grid; what a client answers is decided, and afterwards forged, by the test.
"""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message

from strategies import PUFRegular
from strategies.exchange import Exchange, exchange
from strategies.messages import VECTOR, model_record, vector_of
from strategies.round_plan import RoundPlan
from strategies.update_limits import over_the_median
from tests.raising import raises
from tests.rounds import START, OneRound
from unlearning.buffers import Change
from unlearning.errors import MethodFailed, UpdateRefused
from unlearning.methods.method import Reply
from unlearning.requests import Granularity, Target


def test_an_update_far_over_the_median_norm_is_refused():
    """Norms 1, 2, 3 and 100 (times √3): the median is 2.5, so a factor of 5 allows 12.5."""
    one = OneRound({"a": 1, "b": 2, "c": 3, "bad": 100}, max_norm_factor=5.0)
    np.testing.assert_allclose(one.run(), START + 2)
    assert list(one.refused) == ["bad"]
    assert "5 times the median 4.33" in one.refused["bad"]


@pytest.mark.parametrize(("bound", "expected"), [(0, 7.0), (3, 7.0), (2, 1.0)])
def test_a_client_that_counts_too_many_examples_is_refused(bound, expected):
    """Its count is its weight: three examples that add 9 against one that adds 1 make 7."""
    one = OneRound({"a": 1, "greedy": (3, START + 9)}, max_client_examples=bound)
    np.testing.assert_allclose(one.run(), START + expected)
    reasons = {"greedy": "It counts 3 examples, max-client-examples allows 2."}
    assert one.refused == (reasons if bound == 2 else {})


def test_a_made_up_count_sets_no_model_by_default():
    """One of four that counts a billion examples would be the average."""
    honest = {"a": (90, START + 1), "b": (100, START + 1), "c": (110, START + 1)}
    one = OneRound({**honest, "liar": (10**9, START + 9)})
    np.testing.assert_allclose(one.run(), START + 1)
    assert one.refused["liar"] == (
        "It counts 1,000,000,000 examples, max-count-factor allows 10 times the median 105. If the site is so large, "
        'let it in by client-example-limits="liar=1000000000".'
    )


def test_a_count_is_compared_with_those_known_from_other_rounds():
    """A round of two, one of whom lies, has a median of their own making."""
    plan = RoundPlan(counts={"c": 100, "d": 100, "e": 100})
    one = OneRound({"a": (100, START + 1), "liar": (1001, START + 9)}, plan=plan)
    np.testing.assert_allclose(one.run(), START + 1)
    one.answers = {"a": (1000, START + 1), "liar": (1000, START + 9)}
    np.testing.assert_allclose(one.run(), START + 5)


def test_an_operator_lets_one_large_site_in():
    """The limit is the client's own, in place of both bounds."""
    answers = {"a": 0, "b": 0, "c": 0, "large": (97, START + 10)}
    one = OneRound(answers, max_client_examples=2, client_example_limits="large=97; other=5")
    np.testing.assert_allclose(one.run(), START + 9.7)
    over = OneRound(answers, client_example_limits="large=96")
    np.testing.assert_allclose(over.run(), START)
    assert over.refused["large"] == "It counts 97 examples, client-example-limits allows this client 96."


def test_a_factor_of_zero_bounds_nothing():
    """As an operator may want it."""
    one = OneRound({"a": 1, "b": 2, "c": 3, "bad": 98}, max_norm_factor=0.0)
    np.testing.assert_allclose(one.run(), START + 26)
    assert one.refused == {}


def test_the_bound_is_a_strict_multiple_of_the_median():
    """An update right at the bound is let in."""
    changes = {name: Change(np.array([value])) for name, value in (("a", 1.0), ("b", -2.0), ("c", 4.0))}
    assert over_the_median(changes, 2.0) == {}
    assert list(over_the_median(changes, 1.99)) == ["c"]


def test_a_median_of_zero_bounds_nothing():
    """Otherwise the one client that has learnt something would be refused."""
    changes = {"a": Change(np.zeros(2)), "b": Change(np.zeros(2)), "c": Change(np.ones(2))}
    assert over_the_median(changes, 2.0) == {}


def test_an_update_that_is_not_finite_does_not_spoil_the_median():
    """It is refused before the median is taken."""
    one = OneRound({"a": 1, "b": 1, "c": 1, "nan": float("nan"), "large": 50}, max_norm_factor=5.0)
    np.testing.assert_allclose(one.run(), START + 1)
    assert set(one.refused) == {"nan", "large"}


def test_an_update_that_comes_twice_counts_once():
    """A replay would give its sender a greater weight."""
    one = OneRound({"a": 0, "b": 4})
    np.testing.assert_allclose(one.run(lambda answers: [*answers, answers[1]]), START + 2)
    assert "already" in one.refused["b"]


def test_an_answer_of_the_last_round_is_refused_in_this_one():
    """The model that it was trained on is another."""
    one, old = OneRound({"a": 1, "b": 1}), []
    one.run(lambda answers: old.extend(answers) or answers)
    np.testing.assert_allclose(one.run(lambda answers: [answers[0], old[1]], number=2), START + 1)
    assert "round 1" in one.refused["b"]
    assert list(one.outcome.participants) == ["a"]


def test_an_update_of_an_unknown_node_is_refused():
    """Nobody knows whose examples are in it."""
    one = OneRound({"a": 1, "b": 9})

    def from_nowhere(answers):
        answers[1].metadata.__dict__["_src_node_id"] = 77
        return answers

    np.testing.assert_allclose(one.run(from_nowhere), START + 1)
    assert "no known client" in one.refused["node 77"]


def test_an_update_of_a_forgotten_client_is_refused():
    """It was not asked, and answers all the same: with another client's message."""
    one = OneRound({"a": 1, "gone": 9})
    one.strategy.follow(RoundPlan().including([Target(Granularity.CLIENT, "gone")]))
    np.testing.assert_allclose(one.run(lambda answers: [*answers, one.unasked(1002)]), START + 1)
    assert "client gone" in one.refused["node 1002"]


def test_of_two_nodes_with_one_id_only_one_is_heard():
    """The one that was not asked is named, and its update does not enter."""
    one = OneRound({"a": 1}, clients=["a", "a"])
    np.testing.assert_allclose(one.run(lambda answers: [one.unasked(1001), *answers]), START + 1)
    assert one.outcome.participants == {"a": 1}
    assert "client a" in one.refused["node 1001"]


def test_a_node_that_claims_a_registered_id_is_on_record():
    """Its claim is refused in each round for as long as it is online, though it is never asked."""
    one = OneRound({"a": 1}, clients=["a", "a"])
    one.grid.names = {1001: "a"}
    np.testing.assert_allclose(one.run(), START + 1)
    assert one.refused == {"node 1002": "It claims to be client a, which is registered with a key."}
    one.grid.offline = {1002}
    one.run(number=2)
    assert one.refused == {}


@pytest.mark.parametrize(
    "array",
    [
        Array(dtype="float64", shape=(3,), stype="numpy.ndarray", data=b"garbage"),
        Array(dtype="float64", shape=(3,), stype="numpy.ndarray", data=b"PK\x03\x04" + bytes(40)),
        Array(dtype="float64", shape=(3,), stype="pickle", data=b""),
        Array(np.array(["a", "b", "c"])),
    ],
    ids=["garbage", "zip", "unknown-type", "words"],
)
def test_bytes_that_are_no_numbers_are_refused(array):
    """The bytes are the sender's; nothing of them may end the server."""
    with raises(UpdateRefused, "unreadable-array"):
        vector_of(ArrayRecord({VECTOR: array}))


def exchanged(**metadata: object) -> Exchange:
    """An exchange with clients a and b in round 1, in which b's answer says this of itself."""
    one = OneRound({"a": 1, "b": 1})
    messages = one.messages()

    def forge(answer: Message) -> Message:
        if answer.metadata.src_node_id == 1002:
            answer.metadata.__dict__.update(metadata)
        return answer

    one.forge_each(forge)
    return exchange(one.grid, messages, timeout_s=0.1)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("_src_node_id", 1001, "Node 1001 answers in its place"),
        ("_group_id", "0", "round 0, not 1"),
    ],
)
def test_an_answer_with_a_wrong_address_is_thrown_away(field, value, words):
    """Whatever it answers: training, unlearning or measuring."""
    done = exchanged(**{field: value})
    assert list(done.messages) == ["a"]
    assert words in done.refused["b"]
    assert words in str(done.failures["b"])


def test_an_answer_to_no_open_message_is_thrown_away_and_recorded():
    """As when an old answer is sent again; the client's own answer is then missing."""
    done = exchanged(_reply_to_message_id="message-0")
    assert list(done.messages) == ["a"]
    assert done.refused == {"node 1002": "It answers no open message."}
    assert "no answer" in str(done.failures["b"])


@pytest.mark.parametrize(
    ("beside", "kept", "words"),
    [
        ([1.0, np.nan, 0.0], 1, "not finite"),
        ([1.0, 0.0], 1, "has 3 parameters"),
        ([100.0, 0.0, 0.0], 1, "max-update-norm"),
        ([1.0, 0.0, 0.0], 10**6, "max-client-examples"),
        ([1.0, 0.0, 0.0], -5, "count the examples that it keeps"),
    ],
    ids=["nan", "short", "long", "too-many", "negative"],
)
def test_the_update_of_what_a_partial_target_keeps_passes_the_same_checks(beside, kept, words):
    """It enters the model like any other, so its vector and its count are bounded like any other's."""
    one = OneRound({"a": 0.0}, max_update_norm=10.0, max_client_examples=100)
    strategy = PUFRegular([Target(Granularity.CLASS, class_label=3)], one.strategy)
    strategy.instructions(1, model_record(START), one.grid)
    answer = Reply(
        vector=START, num_examples=5, arrays={"retained": np.array(beside)}, values={"num_retained": kept}
    )
    with pytest.raises(MethodFailed):
        strategy.aggregate({"a": answer})
    assert words in strategy.outcome.refused["a"]
