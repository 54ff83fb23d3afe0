"""Why an unlearning attempt failed, as the request and the ledger tell it; and answers that no method can use."""

import json
from datetime import UTC, datetime
from itertools import repeat

import numpy as np
import pytest
from flwr.app import Message, RecordDict

from server.federation.presence import unresponsive_clients
from server.ledger.decisions import Instead
from strategies.messages import UNLEARN, arrays_content, failure_values, reply_content, told_values, vector_of
from tests.acceptance.test_hostile_clients import Hostile
from tests.federation import SMALL, InProcessFederation, client
from tests.hostile import HONEST, Forge, but_for, with_json, with_metrics
from unlearning.advice import CODE, advice_for
from unlearning.errors import FlowerUnlearningError
from unlearning.methods.method import Reply
from unlearning.methods.registry import METHODS
from unlearning.requests import Granularity, Status, Target
from unlearning.tasks import load_site

SETTINGS = {**SMALL, "max_attempts": 1}


def answer_with(one: InProcessFederation, forge: Forge, *clients: str) -> None:
    """Let these clients answer unlearning messages so."""
    Hostile(one, repeat(forge), (UNLEARN,), clients=clients)


def replying(reply: Reply) -> Forge:
    """The honest answer, but for all that a method's reply is put into."""
    return but_for(**reply_content(reply, {}))


def failed(federation, method: str, forge: Forge = HONEST, **settings) -> str:
    """The reason of a request whose target's answer is changed; it must have failed, and its last event say why."""
    prepare = method if METHODS[method].info.preparation else ""
    one = federation(**SETTINGS, prepare=prepare, **settings)
    one.run(rounds=1)
    answer_with(one, forge, "1")
    request = one.file(client("1"), method)
    one.run(rounds=2)
    done = one.ledger.requests.get(request.id)
    assert done.status is Status.FAILED
    assert advice_for(done)
    assert CODE in done.result
    *_, last = one.ledger.events.all(request.id)
    assert (last.to_status, last.detail["reason"]) == (Status.FAILED, done.reason)
    return done.reason


@pytest.mark.parametrize("method", ["newton-cg", "exact-ridge", "federaser"])
def test_a_failure_says_that_no_client_stays(federation, method):
    """That fails at once, and does not ask for a try that would end alike."""
    prepare = method if METHODS[method].info.preparation else ""
    one = federation(**SMALL | {"num_clients": 2}, prepare=prepare, rounds=1)
    one.run()
    requests = [one.file(client(name), method) for name in "01"]
    one.run(rounds=2)
    for request in requests:
        done = one.ledger.requests.get(request.id)
        assert (done.status, done.attempts) == (Status.FAILED, 1)
        assert done.result[CODE] == "no-client-stays"


def test_a_failure_says_which_clients_keep_something_and_cannot_take_part(federation):
    """Theirs is an open request that a person holds; another try can find them."""
    one = federation(**SMALL | {"num_clients": 2}, max_attempts=1, rounds=1)
    one.run()
    held, request = one.file(client("1"), "newton-cg"), one.file(client("0"), "newton-cg")
    one.ledger.decisions.hold(held.id, by="ada", now=held.created_at, reason="a court keeps the data")
    one.run(rounds=2)
    done = one.ledger.requests.get(request.id)
    assert done.result[CODE] == "no-client-online"
    assert "an open request would forget it): 1." in done.reason


def test_a_failure_says_that_an_update_was_not_finite(federation):
    """Whose, and how many of its values."""
    not_finite = Reply(vector=np.full(650, np.nan, np.float32), num_examples=5)
    reason = failed(federation, "puf-special", replying(not_finite))
    assert "client 1: 650 of 650 values are not finite" in reason
    assert "Last seen: 1 at " in reason


def test_a_failure_says_that_an_update_was_too_long(federation):
    """The norm, the bound and the setting."""
    reason = failed(federation, "gradient-ascent", max_update_norm=0.01, learning_rate=0.001)
    assert "client 1: Its norm is " in reason
    assert "max-update-norm allows 0.01" in reason


def test_a_failure_says_that_an_answer_counts_too_many_examples(federation):
    """A count is a weight wherever answers are averaged, in unlearning too."""
    greedy = with_metrics({"num-examples": 10**9})
    reason = failed(federation, "puf-special", greedy, max_client_examples=1000)
    assert "client 1: It counts 1,000,000,000 examples, max-client-examples allows 1,000." in reason


@pytest.mark.parametrize("count", [pytest.param(10**9, marks=pytest.mark.slow), 0.5])
def test_the_second_count_of_hf_kcu_is_bounded_too(federation, count):
    """How much a client says to retain weighs its step as much as what it says to forget."""

    def greedy(asked: Message, honest: RecordDict) -> Message:
        told = told_values(honest)
        told["values"]["num_retained"] = count
        return with_json(json.dumps(told))(asked, honest)

    reason = failed(federation, "hf-kcu", greedy)
    assert (
        "max-count-factor allows 10 times" if count == 10**9 else "It should count the examples that it keeps"
    ) in reason


def lose_answers(one: InProcessFederation, kind: str) -> None:
    """Let client 1's answers to messages of type `kind` never come."""
    original = one.grid.pull_messages
    target = one.node("1")

    def pull(ids):
        return [
            answer
            for answer in original(ids)
            if answer.metadata.src_node_id != target or answer.metadata.message_type != kind
        ]

    one.grid.pull_messages = pull  # type: ignore[method-assign]


def test_a_failure_says_that_no_answer_came_in_time(federation):
    """The deadline that was not met."""
    one = federation(**{**SETTINGS, "round_timeout_s": 0.5})
    one.run(rounds=1)
    lose_answers(one, "train.unlearn")
    request = one.file(client("1"), "gradient-ascent")
    one.run(rounds=2)
    assert "client 1: no answer within 0.5 s" in one.ledger.requests.get(request.id).reason


def test_a_client_that_is_online_and_silent_is_named_in_the_log(federation, caplog):
    """After the second message in a row that it lets pass, with what to do."""
    one = federation(**{**SETTINGS, "round_timeout_s": 0.5})
    one.run(rounds=1)
    lose_answers(one, "train")
    one.run(rounds=2)
    assert "Client 1 is online" not in caplog.text
    one.run(rounds=3)
    assert "Client 1 is online and gave no answer in rounds 2, 3. Restart its SuperNode" in caplog.text
    assert unresponsive_clients(one.ledger) == {"1": (2, 3)}


def test_a_failure_says_that_the_client_declined(federation):
    """In the client's own words."""
    declining = but_for(**arrays_content({}, failure_values(FlowerUnlearningError("Not today."))))
    assert "client 1: Not today" in failed(federation, "puf-special", declining)


def test_a_head_of_another_length_fails_the_request_and_not_the_federation(federation):
    """Methods check such vectors themselves; the attempt fails, and the rounds go on."""
    head = Reply(vector=np.ones(3, np.float32), num_examples=5, values={"has_head": True})
    assert "got an array of shape (3,)" in failed(federation, "fedau-learning", replying(head))


@pytest.mark.parametrize("method", ["hf-kcu", "fedau-learning", "federaser"])
def test_answers_without_anything_but_a_vector_end_no_federation(federation, method):
    """Every client leaves out what its method sends beside the vector: the request ends, the training goes on."""

    def bare(asked: Message, honest: RecordDict) -> Message:
        reply = Reply(vector=vector_of(honest["arrays"]), num_examples=5)
        return Message(reply_content(reply, {}), reply_to=asked)

    one = federation(**SETTINGS, prepare=method if METHODS[method].info.preparation else "")
    one.run(rounds=2)
    answer_with(one, bare, "0", "1", "2")
    request = one.file(client("1"), method)
    state = one.run(rounds=3)
    assert one.ledger.requests.get(request.id).status in (Status.COMPLETED, Status.FAILED)
    assert state.training_rounds == 3


def test_a_client_with_nothing_left_is_left_out_by_the_method_that_the_advice_names(federation):
    """Its samples were forgotten one request after another; now the site itself leaves."""
    one = federation(**SETTINGS, rounds=1)
    one.run()
    everything = frozenset(load_site(one.settings.task(), 1).train.ids)
    one.forget(Target(Granularity.SAMPLE, "1", everything), "natural", rounds=2)
    request = one.file(client("1"), "puf-special")
    one.run(rounds=3)
    failed_one = one.ledger.requests.get(request.id)
    assert failed_one.result[CODE] == "nothing-to-forget"
    assert f"flower-unlearn retry {request.id} --method natural" in advice_for(failed_one)
    instead = Instead(method="natural", parameters={}, approvals_needed=0)
    again = one.ledger.decisions.retry(request.id, by="ada", now=datetime.now(UTC), instead=instead)
    one.run(rounds=4)
    assert one.ledger.requests.get(again.id).status is Status.COMPLETED
    assert one.ledger.exclusions().is_forgotten("1")
