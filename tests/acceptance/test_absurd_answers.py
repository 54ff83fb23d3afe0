"""A retained client whose well-formed answer to an unlearning exchange is absurd: the deletion completes without it.

Every method whose exchange has retained clients train is asked twice, once with such an answer and once with the same
client absent: the unlearned models are the same to the bit.
"""

from itertools import repeat
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, Message, RecordDict

from strategies.messages import VECTOR, vector_of
from tests.acceptance.test_hostile_clients import HOSTILE, Hostile, absent
from tests.cases import LONG, slow_but
from tests.federation import InProcessFederation, client
from tests.hostile import Forge, with_array, with_arrays
from unlearning.errors import UnsupportedRequest
from unlearning.methods.federaser import KeepUpdates
from unlearning.methods.preparation import FederatedRound
from unlearning.requests import DeletionRequest, Granularity, Target

FACTOR = np.float32(1e6)
METHODS = {
    "puf-regular": "",
    "retrain": "",
    "mode": "",
    "federaser": "federaser",
    "sisa": "sisa shards=1 slices=1",
}
"""By name what they must be prepared by; Newton-CG's answers are no changes of the model (its trust radius holds)."""
SETTINGS = {
    "rounds": 2,
    "num_clients": 5,
    "recovery_max_rounds": 1,
    "alpha": 10.0,
    "max_examples": 300,
    "attack_samples": 20,
}


def million_times(asked: Message, honest: RecordDict) -> Message:
    """The honest answer, but with a million times its update."""
    return with_array(Array(FACTOR * vector_of(honest["arrays"])))(asked, honest)


def million_times_from_the_model(asked: Message, honest: RecordDict) -> Message:
    """The same where the answer is a model."""
    start = vector_of(asked.content["arrays"])
    return with_array(Array(start + FACTOR * (vector_of(honest["arrays"]) - start)))(asked, honest)


def deleted(
    federation: Any, name: str, method: str, forge: Forge, target: Target | None = None
) -> tuple[InProcessFederation, DeletionRequest]:
    """A federation that has forgotten client 4 (or `target`) while client 2 answered so, and the request."""
    one = federation(name=name, prepare=METHODS[method], **SETTINGS)
    one.run()
    Hostile(one, repeat(forge), ("train.unlearn",))
    parameters = {"degradation_rounds": 1, "guidance_rounds": 1} if method == "mode" else {}
    return one, one.forget(target or client("4"), method, rounds=3, **parameters)


@pytest.mark.parametrize(
    "method", slow_but(("sisa",), [name for name in METHODS if name != "retrain"], LONG)
)  # which is below
@pytest.mark.slow
def test_an_absurd_answer_is_left_out_as_an_absent_one(federation, method):
    """It is named in the round's record and in the report, and nothing else differs."""
    forge = million_times_from_the_model if method == "sisa" else million_times
    _, without = deleted(federation, "without", method, absent)
    one, request = deleted(federation, "with", method, forge)
    assert request.attempts == 1  # none has failed
    assert request.result["model_hash_unlearned"] == without.result["model_hash_unlearned"]
    [record] = [record for record in one.ledger.all_rounds() if record.kind == "unlearning"]
    assert "max-norm-factor allows 10 times the median" in record.metrics["refused"][HOSTILE]
    report = one.report(request.id)
    refused = report["unlearning"]["findings"]["answers that were refused"]
    assert list(refused) == [HOSTILE]
    assert "max-norm-factor" in refused[HOSTILE]
    assert HOSTILE not in report["unlearning"]["participants"]


@pytest.mark.slow
def test_a_target_that_keeps_a_part_is_compared_where_it_trains_on_that_as_the_others_do(federation):
    """All clients are targets of a class; retraining asks them for what they keep only."""
    target = Target(Granularity.CLASS, class_label=3)
    _, without = deleted(federation, "without", "retrain", absent, target)
    _, request = deleted(federation, "with", "retrain", million_times, target)
    assert request.result["model_hash_unlearned"] == without.result["model_hash_unlearned"]


def test_what_a_target_answers_for_the_method_may_be_larger(federation):
    """Its own bounds are those of every update, and the gate."""
    one = federation(**SETTINGS)
    one.run()
    Hostile(one, repeat(million_times), ("train.unlearn",))
    request = one.file(client(HOSTILE), method="puf-regular")
    one.run(rounds=3)
    assert one.ledger.requests.get(request.id).result["code"] == "norm-exploded"


def test_a_model_of_another_length_is_refused_by_name(federation):
    """A method that takes any length would otherwise fail as a whole, at every attempt."""
    short = with_array(Array(np.zeros(3, dtype=np.float32)))
    one, _ = deleted(federation, "one", "sisa", short)
    [record] = [record for record in one.ledger.all_rounds() if record.kind == "unlearning"]
    assert list(record.metrics["refused"]) == [HOSTILE]


def test_a_preparation_that_cannot_use_an_accepted_answer_ends_and_the_rounds_go_on(
    federation, monkeypatch, caplog
):
    """What passes `check` may still be what `keep` cannot use; then its method is refused and training goes on."""
    original = KeepUpdates.keep

    def keep(self: KeepUpdates, done: FederatedRound, store: Any) -> None:
        original(self, done, store)
        if done.number == 2:
            raise IndexError("row 7 of client 2's answer")

    monkeypatch.setattr(KeepUpdates, "keep", keep)
    one = federation(rounds=3, num_clients=2, evaluate_every=0, prepare="federaser; pga")
    state = one.run()
    assert state.training_rounds == 3
    assert list(state.prepared_since) == ["pga"]
    assert "federaser can no longer be served: " in caplog.text
    with pytest.raises(UnsupportedRequest):
        one.file(client("1"), method="federaser")


@pytest.mark.slow
def test_a_tangent_of_any_length_leaves_the_next_round_its_clients(federation):
    """No client could return a finite derivative along a vector that overflowed, and every model would be refused."""
    one = federation(rounds=4, num_clients=3, evaluate_every=0, prepare="hf-online")

    def forge(asked: Message, honest: RecordDict) -> Message:
        longest = {
            name: Array(np.full_like(array.numpy(), np.finfo(array.dtype).max))
            for name, array in honest["arrays"].items()
            if name != VECTOR and array.numpy().ndim == 2
        }
        return with_arrays(longest)(asked, honest)

    Hostile(one, repeat(forge), ("train",))
    one.run()
    records = one.ledger.rounds()
    assert [record.metrics["participants"] for record in records[1:]] == [["0", "1"]] * 3
    assert "no derivative of local training" in records[1].metrics["refused"][HOSTILE]
