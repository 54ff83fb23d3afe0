"""Answers that pass every check and that only the method finds wrong: their sender is left out, not the server."""

from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message

from strategies.exchange import Exchange, Failure
from strategies.fedavg import FedAvg
from strategies.in_process_grid import InProcessGrid
from strategies.messages import model_record
from strategies.unlearning_strategy import HELD_BACK, REFUSED, UnlearningStrategy
from tests.raising import raises
from tests.rounds import app_answering
from unlearning.errors import MethodFailed
from unlearning.methods.method import Reply
from unlearning.methods.registry import method_named
from unlearning.requests import Granularity, Target
from unlearning.tasks import TaskSettings, make_task

START = np.zeros(650, dtype=np.float32)


def strategy(values: dict[str, Any], against: str = "") -> tuple[UnlearningStrategy, list[Message]]:
    """An unlearning of client 0 by a method that reads `half` of every answer; and the answers, by client.

    against: the client that counts nine times the others' examples, and whose update points back.
    """
    method = method_named("puf-regular")

    class Reading(type(method)):  # type: ignore[misc]
        """Reads a value of each answer without looking what it is."""

        def aggregate(self, problem, state, replies):
            for reply in replies.values():
                reply.values["half"] / 2
            return super().aggregate(problem, state, replies)

    def answer(name: str) -> Reply:
        update, count = (START - 1, 90) if name == against else (START + 1, 10)
        return Reply(vector=update, num_examples=count, values={"half": values[name]})

    app = app_answering(answer)
    grid = InProcessGrid(app, [{"client-id": name} for name in values], {})
    fedavg = FedAvg(make_task(TaskSettings()), num_clients=len(values), wait_timeout_s=0.1)
    one = UnlearningStrategy(Reading(), [Target(Granularity.CLIENT, "0")], fedavg)
    asked = list(one.configure_train(1, model_record(START), ConfigRecord(), grid))
    return one, list(grid.send_and_receive(asked))


def test_the_one_client_whose_answer_the_method_cannot_use_is_refused_by_name():
    """The others' answers make the unlearned model."""
    one, answers = strategy({"0": 1, "1": 1, "2": ["a"], "3": 1})
    one.aggregate_train(1, answers)
    assert one.is_finished
    assert list(one.outcome.refused) == ["2"]
    assert sorted(one.outcome.participants) == ["0", "1", "3"]


@pytest.mark.parametrize(("value", "held_back"), [("a", []), (1, ["4"])])
def test_who_is_left_out_is_not_said_to_count_fewer_examples(value, held_back):
    """A report would say both of one answer."""
    one, answers = strategy({"0": 1, "1": 1, "2": 1, "3": 1, "4": value}, against="4")
    state = one.aggregate_train(1, answers) and one.state
    assert state is not None
    assert list(state.findings.get(HELD_BACK, {})) == held_back
    assert list(state.findings.get(REFUSED, {})) == ([] if held_back else ["4"])


@pytest.mark.parametrize("values", [{"0": 1, "1": "a", "2": "b"}, {"0": "a", "1": 1}])
def test_where_leaving_out_one_does_not_help_the_attempt_fails_and_may_be_repeated(values):
    """The server stands, and the message says what went wrong."""
    one, answers = strategy(values)
    with raises(MethodFailed, "unusable-answers") as caught:
        one.aggregate_train(1, answers)
    assert caught.value.retryable


@pytest.mark.parametrize(("client", "ends"), [("0", True), ("1", False)])
def test_only_who_must_forget_can_say_that_it_never_can(client, ends):
    """Otherwise any client could end any deletion for good."""
    from server.deletion.exchanges import _check_final

    one, _ = strategy({"0": 1, "1": 1})
    done = Exchange(failures={client: Failure("never", is_final=True)})
    if ends:
        with pytest.raises(MethodFailed):
            _check_final(done, one)
    else:
        _check_final(done, one)
