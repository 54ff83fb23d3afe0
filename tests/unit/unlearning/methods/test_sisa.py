"""SISA: who trains when, what is kept, and that forgetting is training without, to the bit."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from strategies import built_in
from tests.tasks import initial_model
from unlearning.errors import DataError, MethodFailed
from unlearning.local import begin, carry_out, exchange, learn, retained
from unlearning.methods.method import (
    Method,
    PreparedStore,
    Problem,
    UnlearningState,
)
from unlearning.methods.preparation import FederatedRound
from unlearning.methods.registry import METHODS, validated_parameters
from unlearning.methods.sisa_sharding import Sharding, model_key, read_log
from unlearning.parameters import Vector
from unlearning.requests import Forget, Granularity, Target
from unlearning.runtime.stores import MemoryStore
from unlearning.tasks import TaskSettings, load_site, make_task
from unlearning.tasks.ensemble import part
from unlearning.tasks.task import Examples
from unlearning.testing.deletions import Recorder
from unlearning.training import TrainingSettings

METHOD: Method = METHODS["sisa"]
OPTIONS = Sharding(shards=2, slices=2, slice_rounds=2)
SETTINGS = TaskSettings(dataset="digits", model="logistic", num_clients=6, max_examples=240, dtype="float64")
PLAIN = make_task(SETTINGS)
TASK = OPTIONS.prepared_task(PLAIN)
DATA = {str(number): load_site(SETTINGS, number).train for number in range(6)}
TRAINING = TrainingSettings(learning_rate=0.5, batch_size=16)
EVERYTHING = Forget(everything=True)
ONE = {"2": EVERYTHING}


def schedule(number: int) -> TrainingSettings:
    """The learning rate decays, so that a round done again with another number would show."""
    return replace(TRAINING, learning_rate=0.5 * 0.8**number)


def trained(
    data: Mapping[str, Examples], rounds: int = 5, options: Sharding = OPTIONS
) -> tuple[Vector, PreparedStore]:
    """The ensemble after some rounds, and what the server kept; constant learning rate."""
    prepared = {"sisa": options}
    learnt = learn(PLAIN, data, begin(PLAIN, TRAINING, prepared), rounds=rounds)
    kept = learnt.kept_for("sisa", MemoryStore())
    assert kept is not None
    return learnt.parameters, kept


def problem(kept: PreparedStore, forgets: Mapping[str, Forget], **changes) -> Problem:
    """What is to be forgotten after five rounds; what takes the place of `kept` is written to a new store."""
    given = Problem(
        task=TASK,
        rounds_trained=5,
        targets=forgets,
        retained=tuple(client for client in DATA if client not in forgets),
        schedule=lambda _: TRAINING,
        training=TRAINING,
        parameters=validated_parameters(METHOD, {}),
        kept=replace(kept, next_store=MemoryStore()),
    )
    return replace(given, **changes)


def begun(forgets: Mapping[str, Forget] = ONE, **changes) -> tuple[Problem, UnlearningState]:
    """The problem of a federation that has learnt, and the state before the first exchange."""
    model, kept = trained(DATA)
    given = problem(kept, forgets, **changes)
    return given, METHOD.begin(given, model)


def forget(
    model: Vector, kept: PreparedStore, forgets: Mapping[str, Forget], method: Method = METHOD
) -> tuple[UnlearningState, PreparedStore]:
    """Run the method to its end: the last state, and what is kept from then on."""
    one = problem(kept, forgets)
    assert one.kept is not None
    state = carry_out(method, one, model, DATA)
    return state, replace(kept, store=one.kept.next_store)


def without(*clients: str) -> dict[str, Examples]:
    return retained(DATA, [Target(Granularity.CLIENT, client) for client in clients])


def models(kept: PreparedStore) -> dict[tuple[int, int], list[float]]:
    """All kept shard models, by shard and round."""
    return {
        (shard, number): kept.store.load(model_key(shard), number)["parameters"].tolist()
        for shard in range(2)
        for number in kept.store.rounds(model_key(shard))
    }


def test_clients_are_dealt_out_in_turn_by_number():
    """Shards first, then slices; other ids by a hash that is the same on every machine."""
    assert [OPTIONS.place(number) for number in "012345"] == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 0), (1, 0)]
    assert Sharding(shards=3, slices=2).place("a") == (1, 1)


def test_a_slice_joins_every_slice_rounds_rounds():
    """Slice 1 in round 3; there is no third slice to join."""
    assert [OPTIONS.slice_of(number) for number in (1, 2, 3, 4, 5, 99)] == [0, 0, 1, 1, 1, 1]
    assert [OPTIONS.takes_part("2", number) for number in (2, 3)] == [False, True]


def test_each_shard_is_averaged_by_itself_with_its_clients_numbers_of_examples():
    """One number a shard: (10 · 1 + 30 · 2)/40 in shard 0; nobody in shard 1, so it stays and has no vote."""
    before = np.array([0.0, 0.0, 5.0, 7.0])
    local = {"0": (10, np.array([0.0, 0.0, 1.0, 7.0])), "2": (30, np.array([0.0, 0.0, 2.0, 7.0]))}
    assert OPTIONS.combine(before, local).tolist() == [1.0, 0.0, 1.75, 7.0]


def test_a_shard_model_is_kept_before_each_slice():
    """Before rounds 1 and 3, and no more; the first are the initial models."""
    _, kept = trained(DATA, rounds=6)
    after_two, _ = trained(DATA, rounds=2)
    assert sorted(models(kept)) == [(0, 1), (0, 3), (1, 1), (1, 3)]
    assert models(kept)[1, 3] == after_two[part(after_two, 1, 2)].tolist()


def test_keeping_a_round_twice_keeps_the_same():
    """As after a crash."""
    _, once = trained(DATA, rounds=3)
    _, twice = trained(DATA, rounds=3)
    vector = np.zeros(2 + 2 * 650)
    done = FederatedRound(number=3, before=vector, after=vector, models={"0": (5, vector), "2": (5, vector)})
    for kept in (once, twice):
        OPTIONS.keep(done, kept.store)
    OPTIONS.keep(done, twice.store)
    assert models(once) == models(twice)
    assert read_log(once.store, 0) == read_log(twice.store, 0)
    assert read_log(once.store, 0).since == {"0": 1, "4": 1, "2": 3}


@pytest.mark.parametrize("client", ["2", "4"], ids=["second-slice", "first-slice"])
def test_forgetting_a_client_is_training_without_it_to_the_bit(client):
    """Model, kept models and logs, on a convex problem with the same seeds."""
    state, kept = forget(*trained(DATA), {client: EVERYTHING})
    expected, other = trained(without(client))
    assert np.array_equal(state.parameters, expected)
    assert models(kept) == models(other)
    for shard in (0, 1):
        assert read_log(kept.store, shard) == read_log(other.store, shard)


def test_only_the_touched_shard_trains_and_only_since_the_slice():
    """Client 2 joined in round 3 of 5: three rounds of clients 0 and 4."""
    run = Recorder(METHOD)
    state, _ = forget(*trained(DATA), ONE, run)
    assert [sorted(asked) for asked in run.instructions] == [["0", "4"]] * 3
    assert state.findings["shards trained again"] == "0"
    assert state.findings["rounds done again"] == 3


def test_two_clients_at_once_in_two_shards():
    """Both shards go back in the same exchanges, from different rounds."""
    state, _ = forget(*trained(DATA), {"2": EVERYTHING, "5": EVERYTHING})
    assert np.array_equal(state.parameters, trained(without("2", "5"))[0])
    assert state.exchanges == 5


def test_a_second_deletion_goes_on_from_the_first():
    """From the rewritten history, not from the first one."""
    first, kept = forget(*trained(DATA), {"4": EVERYTHING})
    second, kept = forget(first.parameters, kept, {"2": EVERYTHING})
    expected, other = trained(without("2", "4"))
    assert np.array_equal(second.parameters, expected)
    assert models(kept) == models(other)


def test_training_goes_on_as_if_the_client_had_never_been():
    """The next round's log continues the rewritten one."""
    _, kept = forget(*trained(DATA), {"4": EVERYTHING})
    vector = np.zeros(2 + 2 * 650)
    done = FederatedRound(number=9, before=vector, after=vector, models={"0": (5, vector)})
    OPTIONS.keep(done, kept.store)
    assert read_log(kept.store, 0).rounds == (1, 2, 3, 4, 5, 9)


def test_samples_are_forgotten_from_before_their_client_took_part():
    """Client 0 keeps the rest of its data and trains again on that, from round 1."""
    some = frozenset(DATA["0"].ids[:7].tolist())
    state, _ = forget(*trained(DATA), {"0": Forget(sample_ids=some)})
    fewer = retained(DATA, [Target(Granularity.SAMPLE, "0", some)])
    assert np.array_equal(state.parameters, trained(fewer)[0])


def test_a_class_is_forgotten_in_every_shard():
    """Everybody trains again from the start without it."""
    gone = Forget(classes=frozenset({3}))
    state, _ = forget(*trained(DATA), dict.fromkeys(DATA, gone))
    rest = retained(DATA, [Target(Granularity.CLASS, class_label=3)])
    assert np.array_equal(state.parameters, trained(rest)[0])


def test_a_client_that_is_offline_when_a_class_goes_is_left_out_of_its_shard():
    """What it taught of the class is gone even though nobody could ask it."""
    gone = Forget(classes=frozenset({3}))
    one, state = begun({client: gone for client in DATA if client != "4"}, retained=())
    assert state.values["pending"] == {"0": [1, 2, 3, 4, 5], "1": [1, 2, 3, 4, 5]}
    assert "4" not in METHOD.configure(one, state)


def test_an_emptied_shard_is_as_at_the_start_and_votes_no_more():
    """No client is asked; the other shard is untouched."""
    two = {"0": DATA["0"], "1": DATA["1"]}
    model, kept = trained(two)
    assert model[:2].tolist() == [1, 1]
    state, after = forget(model, kept, {"1": EVERYTHING})
    assert state.finished
    assert state.exchanges == 0
    alone = {"0": DATA["0"], "1": DATA["1"].select(np.zeros(0, dtype=np.intp))}
    assert np.array_equal(state.parameters, trained(alone)[0])
    assert state.parameters[:2].tolist() == [1, 0]
    assert read_log(after.store, 1).since == {}


def test_the_only_client_of_a_slice_leaves_its_shards_past_rounds():
    """With client 0 gone client 2 is alone, and shard 0 starts in round 3."""
    data = {"0": DATA["0"], "1": DATA["1"], "2": DATA["2"]}
    run = Recorder(METHOD)
    state, kept = forget(*trained(data), {"0": EVERYTHING}, run)
    assert [sorted(asked) for asked in run.instructions] == [["2"]] * 3
    assert np.array_equal(state.parameters, trained({"1": DATA["1"], "2": DATA["2"]})[0])
    assert read_log(kept.store, 0).rounds == (3, 4, 5)


def test_nobody_of_the_shard_online_is_waited_for():
    """The message names who is needed."""
    with pytest.raises(MethodFailed) as caught:
        METHOD.aggregate(*begun(), {})
    assert caught.value.retryable


def test_a_target_that_never_trained_leaves_nothing_to_do():
    """Refused for good."""
    model, kept = trained(without("2"))
    with pytest.raises(MethodFailed) as caught:
        METHOD.begin(problem(kept, {"2": EVERYTHING}), model)
    assert not caught.value.retryable


def test_a_round_is_done_again_with_its_own_settings_and_seed():
    """The learning rate of round 3, not of today's."""
    one, state = begun(schedule=schedule, round=40)
    first = METHOD.configure(one, state)["0"]
    assert first.training == schedule(3)
    second = METHOD.configure(replace(one, round=41), state)["0"]
    assert first.values == second.values


def test_a_client_whose_model_is_no_ensemble_says_so():
    """As when its configuration is another than the server's."""
    one, state = begun(task=PLAIN)
    with pytest.raises(DataError):
        exchange(METHOD, one, state, DATA)


def test_the_setting_makes_the_federations_model_an_ensemble():
    """Server and clients build the same one from it."""
    task = built_in.SOURCE.prepared({"prepare": "sisa shards=3 vote=mean"})
    assert task.shard is not None
    assert task.shard.name == "digits/logistic"
    assert initial_model(task, 0).votes.shape == (3,)
