"""A bad update is refused and recorded, and the round goes on with the others.

The round runs on the in-process grid; what a client answers is decided, and afterwards forged, by the test.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from strategies.exchange import exchange
from strategies.fedavg import FedAvg
from strategies.in_process_grid import InProcessGrid
from strategies.messages import VECTOR, arrays_content, model_record, reply_content, vector_of
from strategies.roster import Roster
from strategies.round_plan import RoundOutcome, RoundPlan
from strategies.run_config import RunSettings
from strategies.unlearning_strategy import UnlearningStrategy
from strategies.update_checks import over_the_median
from unlearning.errors import ConfigurationError, MethodFailed, UpdateRefused
from unlearning.methods.method import Reply
from unlearning.parameters import Vector
from unlearning.requests import Granularity, Target
from unlearning.tasks import TaskSettings, make_task

START = np.array([1.0, 2.0, 3.0])
Forge = Callable[[list[Message]], Sequence[Message]]


def app_adding(steps: dict[str, float]) -> Callable[[Message, Any], Message]:
    """A ClientApp whose clients add a number to every parameter of the model."""

    def answer(message: Message, context: Any) -> Message:
        client = str(context.node_config["client-id"])
        if message.metadata.message_type == "query.whoami":
            return Message(arrays_content({}, {"client-id": client}), reply_to=message)
        reply = Reply(vector=START + steps[client], num_examples=1)
        return Message(reply_content(reply, {}), reply_to=message)

    return answer


class OneRound:
    """A federation whose clients add `steps` to the model; node ids count from 1001."""

    def __init__(self, steps: dict[str, float], clients: Sequence[str] = (), **settings: Any) -> None:
        names = list(clients) or list(steps)
        self.grid = InProcessGrid(app_adding(steps), [{"client-id": name} for name in names], {})
        given = {name.replace("_", "-"): value for name, value in settings.items()}
        config = RunSettings.from_run_config({"num-clients": len(steps), "wait-timeout-s": 0.1, **given})
        self.strategy = FedAvg(make_task(TaskSettings()), config, Roster())
        self.outcome = RoundOutcome()

    def run(self, forge: Forge = list, number: int = 1) -> Vector | None:
        """The model after round `number`, in which the server gets what `forge` makes of the answers."""
        asked = self.strategy.configure_train(number, model_record(START), ConfigRecord(), self.grid)
        answers = forge(list(self.grid.send_and_receive(asked)))
        self.outcome = self.strategy.aggregate(number, answers)
        return self.outcome.model

    @property
    def refused(self) -> dict[str, str]:
        return dict(self.outcome.refused)


def test_an_update_far_over_the_median_norm_is_refused():
    """Norms 1, 2, 3 and 100 (times √3): the median is 2.5, so a factor of 5 allows 12.5."""
    one = OneRound({"a": 1, "b": 2, "c": 3, "bad": 100}, max_norm_factor=5.0)
    np.testing.assert_allclose(one.run(), START + 2)
    assert list(one.refused) == ["bad"]
    assert "5 times the median 4.33" in one.refused["bad"]


@pytest.mark.parametrize(("bound", "expected"), [(0, 7.0), (3, 7.0), (2, 1.0)])
def test_a_client_that_counts_too_many_examples_is_refused(bound, expected):
    """Its count is its weight: three examples that add 9 against one that adds 1 make 7."""
    one = OneRound({"a": 1, "greedy": 9}, max_client_examples=bound)

    def counting_three(answers):
        answers[1].content = reply_content(Reply(vector=START + 9, num_examples=3), {})
        return answers

    np.testing.assert_allclose(one.run(counting_three), START + expected)
    reasons = {"greedy": "It counts 3 examples, max-client-examples allows 2."}
    assert one.refused == (reasons if bound == 2 else {})


def counting(counts: dict[str, int]) -> Forge:
    """Answers that count so many examples, each adding what it adds."""

    def forge(answers: list[Message]) -> list[Message]:
        for client, answer in zip(sorted(counts), answers, strict=True):
            answer.content["metrics"]["num-examples"] = counts[client]
        return answers

    return forge


def test_a_made_up_count_sets_no_model_by_default():
    """One of four that counts a billion examples would be the average."""
    one = OneRound({"a": 1, "b": 1, "c": 1, "liar": 9})
    counts = {"a": 90, "b": 100, "c": 110, "liar": 10**9}
    np.testing.assert_allclose(one.run(counting(counts)), START + 1)
    assert one.refused["liar"] == (
        "It counts 1,000,000,000 examples, max-count-factor allows 10 times the median 105. If the site is so large, "
        'let it in by client-example-limits="liar=1000000000".'
    )


def test_a_count_is_compared_with_those_known_from_other_rounds():
    """A round of two, one of whom lies, has a median of their own making."""
    one = OneRound({"a": 1, "liar": 9}, fraction=1.0)
    one.strategy.follow(RoundPlan(counts={"c": 100, "d": 100, "e": 100}))
    np.testing.assert_allclose(one.run(counting({"a": 100, "liar": 1001})), START + 1)
    np.testing.assert_allclose(one.run(counting({"a": 1000, "liar": 1000})), START + 5)


def test_an_operator_lets_one_large_site_in():
    """The limit is the client's own, in place of both bounds."""
    steps, counts = {"a": 0, "b": 0, "c": 0, "large": 10}, {"a": 1, "b": 1, "c": 1, "large": 97}
    one = OneRound(steps, max_client_examples=2, client_example_limits="large=97; other=5")
    np.testing.assert_allclose(one.run(counting(counts)), START + 9.7)
    over = OneRound(steps, client_example_limits="large=96")
    np.testing.assert_allclose(over.run(counting(counts)), START)
    assert over.refused["large"] == "It counts 97 examples, client-example-limits allows this client 96."


@pytest.mark.parametrize("text", ["large", "=3", "large=many", "large=0", "a=1; a=2"])
def test_a_malformed_limit_is_a_wrong_setting(text):
    """Said at the start, with an example."""
    with pytest.raises(ConfigurationError, match="client-example-limits: write CLIENT=COUNT"):
        RunSettings.from_run_config({"client-example-limits": text})


def test_a_factor_of_zero_bounds_nothing():
    """As an operator may want it."""
    one = OneRound({"a": 1, "b": 2, "c": 3, "bad": 98}, max_norm_factor=0.0)
    np.testing.assert_allclose(one.run(), START + 26)
    assert one.refused == {}


def test_the_bound_is_a_strict_multiple_of_the_median():
    """An update right at the bound is let in."""
    changes = {"a": np.array([1.0]), "b": np.array([-2.0]), "c": np.array([4.0])}
    assert over_the_median(changes, 2.0) == {}
    assert list(over_the_median(changes, 1.99)) == ["c"]


def test_a_median_of_zero_bounds_nothing():
    """Otherwise the one client that has learnt something would be refused."""
    changes = {"a": np.zeros(2), "b": np.zeros(2), "c": np.ones(2)}
    assert over_the_median(changes, 2.0) == {}


def test_an_update_that_is_not_finite_does_not_spoil_the_median():
    """It is refused before the median is taken."""
    one = OneRound({"a": 1, "b": 1, "c": 1, "nan": float("nan"), "large": 50}, max_norm_factor=5.0)
    np.testing.assert_allclose(one.run(), START + 1)
    assert set(one.refused) == {"nan", "large"}


def test_a_factor_that_would_refuse_half_of_all_is_a_wrong_setting():
    """Half of the norms lie over half the median."""
    with pytest.raises(ConfigurationError, match=r"max-norm-factor: 0\.5 would refuse half"):
        RunSettings.from_run_config({"max-norm-factor": 0.5})


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
    assert "nobody that is known" in one.refused["node 77"]


def test_an_update_of_a_forgotten_client_is_refused():
    """It was not asked, and answers all the same: with another client's message."""
    one = OneRound({"a": 1, "gone": 9})
    one.strategy.follow(RoundPlan().including([Target(Granularity.CLIENT, "gone")]))

    def from_the_forgotten(answers):
        [forged] = one.grid.send_and_receive(
            [Message(RecordDict(), dst_node_id=1002, message_type="train", group_id="1")]
        )
        return [*answers, forged]

    np.testing.assert_allclose(one.run(from_the_forgotten), START + 1)
    assert "client gone" in one.refused["node 1002"]


def test_of_two_nodes_with_one_id_only_one_is_heard():
    """The one that was not asked is named, and its update does not enter."""
    one = OneRound({"a": 1}, clients=["a", "a"])

    def from_both(answers):
        [forged] = one.grid.send_and_receive(
            [Message(RecordDict(), dst_node_id=1001, message_type="train", group_id="1")]
        )
        return [forged, *answers]

    np.testing.assert_allclose(one.run(from_both), START + 1)
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
    with pytest.raises(UpdateRefused, match="vector"):
        vector_of(ArrayRecord({VECTOR: array}))


def exchanged(forge: Callable[[Message], None]):
    """An exchange with clients a and b in round 1, in which `forge` changes b's answer."""
    one = OneRound({"a": 1, "b": 1})
    messages = one.strategy.train_messages(1, model_record(START), one.grid)
    original = one.grid.pull_messages

    def pull(ids):
        answers = list(original(ids))
        for answer in answers:
            if answer.metadata.src_node_id == 1002:
                forge(answer)
        return answers

    one.grid.pull_messages = pull  # type: ignore[method-assign]
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
    done = exchanged(lambda answer: answer.metadata.__dict__.update({field: value}))
    assert list(done.messages) == ["a"]
    assert words in done.refused["b"]
    assert words in str(done.failures["b"])


def test_an_answer_to_no_open_message_is_thrown_away_and_recorded():
    """As when an old answer is sent again; the client's own answer is then missing."""
    done = exchanged(lambda answer: answer.metadata.__dict__.update({"_reply_to_message_id": "message-0"}))
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
    strategy = UnlearningStrategy.by_name(
        "puf-regular", [Target(Granularity.CLASS, class_label=3)], one.strategy
    )
    strategy.instructions(1, model_record(START), one.grid)
    answer = Reply(
        vector=START, num_examples=5, arrays={"retained": np.array(beside)}, values={"num_retained": kept}
    )
    with pytest.raises(MethodFailed):
        strategy.aggregate({"a": answer})
    assert words in strategy.outcome.refused["a"]


def test_a_live_federation_records_whom_it_refused_and_goes_on(federation):
    """What the ledger says of each round is what the operator sees."""
    one = federation(rounds=3, num_clients=3, max_norm_factor=5.0)
    original = one.grid.pull_messages

    def pull(ids):
        answers = list(original(ids))
        for answer in answers:
            is_training = answer.metadata.message_type == "train"
            if is_training and answer.metadata.src_node_id == one.node("2"):
                content = answer.content
                content["arrays"] = model_record(vector_of(content.array_records["arrays"]) * 1e6)
        return answers

    one.grid.pull_messages = pull  # type: ignore[method-assign]
    state = one.run()
    assert state.training_rounds == 3
    assert np.abs(state.parameters).max() < 1e3
    for record in one.ledger.rounds():
        assert record.metrics["participants"] == ["0", "1"]
        assert "max-norm-factor" in record.metrics["refused"]["2"]
