"""A crash at any durable step loses no request, applies none twice, and changes no bit of the outcome.

The real code runs in this process, once and undisturbed; what a kill right before or right after a write would leave
is the state directory as it is then, from which another federation goes on. Killing real processes is in
tests/integration.
"""

from datetime import UTC, datetime

import pytest

from client.memory import DirectoryMemory
from server.federation.checkpoints import CheckpointStore
from server.ledger import LedgerWriter
from server.ledger.request_store import Requests
from tests.cases import LONG, slow_but
from tests.federation import SMALL, InProcessFederation
from tests.kills import Killer
from unlearning.errors import Fenced
from unlearning.methods.registry import METHODS
from unlearning.parameters import content_hash
from unlearning.requests import Status

SCRIPT = "at=1 client=2 method=puf-regular; at=2 client=0 method=puf-special"


MOST_WRITES = 1000
DURABLE_STEPS = (
    (CheckpointStore, "save"),
    (CheckpointStore, "erase_older"),
    (LedgerWriter, "move"),
    (Requests, "submit"),
    (LedgerWriter, "record_round"),
)


@pytest.mark.parametrize(
    "stride",
    [
        pytest.param(29, id="some"),
        pytest.param(1, id="every", marks=LONG),
    ],
)
def test_a_kill_at_any_write_changes_nothing_in_the_end(federation, monkeypatch, stride):
    """For the writes of a run with two deletions: start again from what is there, compare with no kill."""
    killer = Killer(monkeypatch, DURABLE_STEPS)
    total, rounds = check_kills(
        federation, killer, 1 + stride // 2, stride, num_requests=2, requests=SCRIPT, rounds=3
    )
    assert total > 40
    assert list(rounds) == list(range(1, len(rounds) + 1))  # each has a record


def check_kills(
    federation, killer: Killer, first: int, stride: int, *, num_requests: int, **settings: object
) -> tuple[int, dict[int, str]]:
    """Kill at every `stride`-th write from the `first` one on: the bits, the completions and the rounds of no kill.

    Returns how many places for a kill there were, and what each round was for.
    """
    whole = federation(name="whole", **SMALL, **settings)
    copies = killer.copy(whole, range(first, MOST_WRITES, stride))
    total, rounds, expected = killer.passed, rounds_of(whole), content_hash(whole.checkpoint().parameters)
    assert total < MOST_WRITES
    for place in copies:
        one = federation(name=f"killed-{place}", **SMALL, **settings)
        about = f"killed at write {place} of {total}"
        assert content_hash(one.run().parameters) == expected, about
        requests = one.ledger.requests.select()
        assert [request.status for request in requests] == [Status.COMPLETED] * num_requests, about
        completed = [event for event in one.ledger.events.all() if event.to_status is Status.COMPLETED]
        assert len(completed) == num_requests, about
        assert rounds_of(one) == rounds, f"{about}: a round has no record, or was done twice"
        one.close()
    return total, rounds


def rounds_of(one: InProcessFederation) -> dict[int, str]:
    """What each round was for; one that was begun again has the number that it had."""
    return {record.round: record.kind for record in one.ledger.rounds()}


FEW_EXCHANGES = {
    "fedau": "epochs=1",
    "gradient-ascent": "epochs=1",
    "mode": "degradation_rounds=1 guidance_rounds=2",
    "retrain": "rounds=2",
    "hf-kcu": "iterations=2",
    "hf-kcu-influence": "iterations=2",
    "newton-cg": "iterations=2",
    "neggrad-plus": "rounds=1",
    "fedosd": "unlearning_rounds=1 post_training_rounds=1",
}
"""Parameters that save time; a method that is not here has its defaults."""
WITHOUT_PREPARATION = sorted(
    name
    for name, method in METHODS.items()
    if method.info.preparation is None and not method.info.rests_on_training
)
"""The kills of the others are in test_prepared_methods.py and test_private_training.py."""

STRIDE = 16


@pytest.mark.slow
@pytest.mark.parametrize("method", slow_but(("newton-cg", "puf-regular"), WITHOUT_PREPARATION, LONG))
def test_every_method_survives_kills(federation, monkeypatch, method):
    """At every sixteenth write, from another one on with each method: the bits and the one completion of no kill."""
    script = f"at=1 client=1 method={method} {FEW_EXCHANGES.get(method, '')}"
    killer = Killer(monkeypatch, (*DURABLE_STEPS, (DirectoryMemory, "add_tombstones")))
    first = 1 + WITHOUT_PREPARATION.index(method)
    check_kills(federation, killer, first, STRIDE, num_requests=1, requests=script, rounds=2)


def test_an_old_server_process_is_fenced_off(federation):
    """Two ServerApps at once: the older one may not write any more."""
    one = federation(rounds=3)
    ledger = one.ledger
    original = one.grid.push_messages
    calls = []

    def take_over_in_the_second_round(messages):
        calls.append(1)
        if len(calls) == 3:
            ledger.acquire_fence("the new one", now=datetime.now(UTC))
        return original(messages)

    one.grid.push_messages = take_over_in_the_second_round  # type: ignore[method-assign]
    with pytest.raises(Fenced):
        one.run()
    assert one.checkpoint().training_rounds == 1
    one.new_grid()
    assert one.run().training_rounds == 3


@pytest.mark.parametrize("method", ["federaser", "hf-online"])
def test_a_script_that_an_earlier_deletion_spoils_stops_no_second_start(federation, caplog, method):
    """The deletion has erased what the method needs; a run without a break only logs that, at filing."""
    prepare = {"federaser": "federaser", "hf-online": "hf-online clients=0,1,2"}[method]
    first, second = "at=1 class=1 method=not", f"at=2 client=1 method={method}"
    one = federation(**SMALL, prepare=prepare)
    one.run(rounds=2, requests=first)
    state = one.run(rounds=3, requests=f"{first}; {second}")
    assert state.training_rounds == 3
    assert [request.method for request in one.ledger.requests.select()] == ["not"]
    assert "script/2, is refused" in caplog.text
