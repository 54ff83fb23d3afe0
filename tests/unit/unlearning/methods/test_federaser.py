"""FedEraser against numbers worked out by hand, the authors' form written anew, and exact retraining."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from tests.deletions import CLIENT, reply
from tests.tasks import tiny_classification
from unlearning.errors import MethodFailed, StoreFull
from unlearning.local import begin, learn, retained, unlearn
from unlearning.methods.federaser import GIB, KeepUpdates, calibrate
from unlearning.methods.method import ClientSite, PreparedStore, Problem, UnlearningState
from unlearning.methods.preparation import FederatedRound
from unlearning.methods.registry import METHODS, validated_parameters
from unlearning.requests import Forget
from unlearning.runtime.stores import MemoryStore
from unlearning.tasks.task import Examples
from unlearning.training import TrainingSettings, initial_parameters, train

METHOD = METHODS["federaser"]
EVERYTHING = Forget(everything=True)


# positions in the flat vector: weight 0-1, bias 2-3
TASK = tiny_classification(lambda: nn.Linear(1, 2))
TRAINING = TrainingSettings(epochs=1, batch_size=100, learning_rate=0.5)
START = initial_parameters(TASK, 0)
NOTHING_MOVED = np.zeros(4)
NOBODY = np.array([], dtype=np.intp)


def history(rounds: Mapping[int, Mapping[str, tuple[int, np.ndarray]]]) -> MemoryStore:
    """A store as `keep` fills it, from updates by round and client."""
    store = MemoryStore()
    for number, updates in rounds.items():
        models = {client: (count, START + update) for client, (count, update) in updates.items()}
        done = FederatedRound(number=number, before=START, after=START, models=models)
        KeepUpdates().keep(done, store)
    return store


def problem(store: MemoryStore, targets=("u",), retained=("r", "s"), number=9, **parameters) -> Problem:
    kept = PreparedStore(preparation=KeepUpdates(), store=store, next_store=MemoryStore())
    return Problem(
        task=TASK,
        targets=dict.fromkeys(targets, EVERYTHING),
        retained=tuple(retained),
        schedule=lambda number: replace(TRAINING, epochs=5, learning_rate=1 / number),
        training=TRAINING,
        parameters=validated_parameters(METHOD, parameters),
        round=number,
        kept=kept,
    )


def vector(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


TWO_ROUNDS = {
    1: {
        "r": (1, vector(4, 0, 0, 0)),
        "s": (3, vector(0, 8, 0, 0)),
        "u": (6, vector(100, 100, 100, 100)),
    },
    2: {
        "r": (1, vector(3, 4, 0, 0)),
        "s": (3, vector(0, 0, 0, 2)),
        "u": (6, vector(100, 100, 100, 100)),
    },
}


def begun(rounds=TWO_ROUNDS, **changes) -> tuple[Problem, UnlearningState]:
    """The problem with these stored rounds, and the state after the first of them."""
    given = problem(history(rounds), **changes)
    return given, METHOD.begin(given, START)


def test_the_first_stored_round_is_the_mean_of_the_retained_updates():
    """θ_0 + (1·U_r + 3·U_s)/4 = θ_0 + (1, 6, 0, 0); the target's update does not enter."""
    _, state = begun()
    np.testing.assert_allclose(state.parameters, START + vector(1, 6, 0, 0), rtol=0, atol=1e-14)
    assert not state.finished


def test_a_calibrated_update_has_the_old_length_and_the_new_direction():
    """‖U‖ = 5 and Û = (0, 0, 0, −2) give (0, 0, 0, −5)."""
    np.testing.assert_allclose(
        calibrate(vector(3, 4, 0, 0), vector(0, 0, 0, -2)), vector(0, 0, 0, -5), rtol=1e-11
    )


def test_a_calibration_that_did_not_move_moves_nothing():
    """Û = 0 has no direction: 0, and no division by zero."""
    np.testing.assert_array_equal(calibrate(vector(3, 4, 0, 0), NOTHING_MOVED), NOTHING_MOVED)


def test_a_later_round_adds_calibrated_updates_by_their_stored_numbers_of_examples():
    """(1·5·(1,0,0,0) + 3·2·(0,0,−1,0))/4 = (1.25, 0, −1.5, 0), whatever numbers the replies state."""
    given, state = begun()
    replies = {"r": reply(vector(0.1, 0, 0, 0), 50), "s": reply(vector(0, 0, -7, 0), 50)}
    state = METHOD.aggregate(given, replace(state, parameters=START), replies)
    np.testing.assert_allclose(state.parameters, START + vector(1.25, 0, -1.5, 0), rtol=1e-9)
    assert state.finished
    assert state.findings["stored rounds replayed"] == 2


def test_the_authors_form_takes_lengths_by_tensors_from_unweighted_means():
    """For each tensor ‖mean U‖ · mean Û/‖mean Û‖, written anew from the authors' description."""
    generator = np.random.default_rng(0)
    stored = {client: generator.normal(size=4) for client in "rs"}
    fresh = {client: generator.normal(size=4) for client in "rs"}
    rounds = {number: {"r": (1, stored["r"]), "s": (9, stored["s"])} for number in (1, 2)}
    given, first = begun(rounds, per_layer_mean=True)
    old, new = (stored["r"] + stored["s"]) / 2, (fresh["r"] + fresh["s"]) / 2
    np.testing.assert_allclose(first.parameters, START + old, rtol=1e-12)
    state = METHOD.aggregate(given, first, {client: reply(fresh[client]) for client in "rs"})
    expected = first.parameters.copy()
    for part in (slice(0, 2), slice(2, 4)):
        expected[part] += np.linalg.norm(old[part]) * new[part] / np.linalg.norm(new[part])
    np.testing.assert_allclose(state.parameters, expected, rtol=1e-9)
    written = given.kept.next_store
    mean = sum(written.load(client, 9)["update"] for client in "rs") / 2
    np.testing.assert_allclose(first.parameters + mean, expected, rtol=1e-9)


def test_a_single_client_that_stays_is_enough():
    """Its share is 1."""
    given, state = begun(targets=("u", "s"), retained=("r",))
    np.testing.assert_allclose(state.parameters, START + vector(4, 0, 0, 0))
    state = METHOD.aggregate(given, state, {"r": reply(vector(0, 1, 0, 0))})
    np.testing.assert_allclose(state.parameters, START + vector(4, 5, 0, 0))


def test_a_history_of_one_round_asks_nobody():
    """The first stored round is all there is."""
    _, state = begun({1: TWO_ROUNDS[1]})
    assert state.finished
    np.testing.assert_allclose(state.parameters, START + vector(1, 6, 0, 0))


def test_without_an_update_of_a_client_that_stays_it_fails_for_good():
    """There is nothing to replay."""
    with pytest.raises(MethodFailed) as caught:
        begun({1: {"u": TWO_ROUNDS[1]["u"]}})
    assert not caught.value.retryable


def test_clients_calibrate_for_half_the_epochs_with_the_rate_of_the_round_replayed():
    """5 epochs give 3, rounded up; round 2 had the rate 1/2."""
    instructions = METHOD.configure(*begun())
    assert sorted(instructions) == ["r", "s"]
    assert instructions["r"].training.epochs == 3
    assert instructions["r"].training.learning_rate == 0.5


def test_only_those_that_took_part_in_a_stored_round_calibrate_it():
    """Nobody has a length for the others."""
    rounds = {1: TWO_ROUNDS[1], 2: {"s": (3, vector(0, 0, 0, 2))}}
    assert sorted(METHOD.configure(*begun(rounds))) == ["s"]


def test_a_client_that_gives_no_answer_is_left_out_and_named():
    """Its stored update is not used either: only s moves the model, by its length 2."""
    given, first = begun()
    state = METHOD.aggregate(given, first, {"s": reply(vector(0, 0, 0.5, 0))})
    np.testing.assert_allclose(state.parameters, first.parameters + vector(0, 0, 2, 0))
    named = state.findings["left out of calibrations, their stored updates not used"]
    assert named == "client r in 1 of 1"
    assert given.kept.next_store.rounds("r") == [1]


def test_the_updates_of_the_forgotten_are_never_read():
    """Poison in their place changes nothing, and nothing of theirs is written on."""
    poisoned = {number: {**updates, "u": (6, np.full(4, np.nan))} for number, updates in TWO_ROUNDS.items()}
    given, state = begun(poisoned)
    state = METHOD.aggregate(given, state, {"r": reply(vector(1, 0, 0, 0)), "s": reply(vector(1, 0, 0, 0))})
    assert np.isfinite(state.parameters).all()
    assert given.kept.next_store.list_keys() == ["r", "s"]


def test_a_second_deletion_starts_from_the_first_ones_result():
    """The calibrated updates are its history: without calibrating anew it ends where the first one did."""
    first, state = begun()
    fresh = {"r": vector(1, 1, 0, 0), "s": vector(0, 0, 1, 1)}
    state = METHOD.aggregate(first, state, {client: reply(fresh[client]) for client in "rs"})
    second = problem(first.kept.next_store, targets=(), number=12)
    again = METHOD.begin(second, START)
    assert METHOD.configure(second, again)["r"].training.learning_rate == 0.5
    again = METHOD.aggregate(second, again, {client: reply(fresh[client]) for client in "rs"})
    np.testing.assert_allclose(again.parameters, state.parameters, rtol=1e-11)


def test_the_server_keeps_updates_and_numbers_of_examples():
    """U_k = θ_k − θ, n_k, and the round whose rate it had."""
    entry = history(TWO_ROUNDS).load("s", 2)
    np.testing.assert_allclose(entry["update"], vector(0, 0, 0, 2), atol=1e-15)
    assert (int(entry["num_examples"]), int(entry["trained_in"])) == (3, 2)


def test_one_round_in_every_is_kept_the_first_included():
    """every=3 of seven rounds: 1, 4, 7."""
    store = MemoryStore()
    for number in range(1, 8):
        done = FederatedRound(number=number, before=START, after=START, models={"r": (1, START)})
        KeepUpdates(every=3).keep(done, store)
    assert store.rounds("r") == [1, 4, 7]


def test_a_round_over_the_bound_is_not_kept_at_all():
    """Nothing of it, so that no round is half there; the message says what to do."""
    store = history({1: TWO_ROUNDS[1]})
    options = KeepUpdates(max_gib=(store.num_bytes() + 40) / GIB)
    done = FederatedRound(number=2, before=START, after=START, models={"r": (1, START), "s": (1, START)})
    with pytest.raises(StoreFull):
        options.keep(done, store)
    assert store.rounds("r") == [1]


def blobs(seed: int, count: int = 12) -> Examples:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 1, generator=generator, dtype=torch.float64)
    targets = (inputs[:, 0] + 0.3 * torch.randn(count, generator=generator) > 0.2 * seed).long()
    return Examples(inputs, targets, np.array([f"{seed}-{number}" for number in range(count)]))


def erased(data: Mapping[str, Examples], rounds: int) -> np.ndarray:
    """The model after FedEraser has forgotten u, calibrations included."""
    learnt = learn(TASK, data, begin(TASK, TRAINING, "federaser"), rounds=rounds)
    return unlearn(METHOD, TASK, learnt, data, [CLIENT]).parameters


def retrained(data: Mapping[str, Examples], rounds: int) -> np.ndarray:
    return trained(retained(data, [CLIENT]), rounds)


def trained(data: Mapping[str, Examples], rounds: int) -> np.ndarray:
    return learn(TASK, data, begin(TASK, TRAINING), rounds=rounds).parameters


def test_forgetting_a_client_whose_twin_stays_is_retraining():
    """Then the stored lengths are those of retraining and so is each direction, to rounding."""
    data = {"r": blobs(1), "s": blobs(1), "u": blobs(1)}
    np.testing.assert_allclose(erased(data, 6), retrained(data, 6), rtol=1e-9)


@pytest.mark.parametrize("seed", [-6, -1, 6])
def test_it_comes_close_to_retraining_after_a_few_rounds_on_a_convex_problem(seed):
    """Of the distance between the trained and the retrained model at most four tenths are left."""
    data = {"r": blobs(1), "s": blobs(2), "u": blobs(seed)}
    original, exact = trained(data, 4), retrained(data, 4)
    left = np.linalg.norm(erased(data, 4) - exact) / np.linalg.norm(original - exact)
    assert left < 0.4


def test_a_calibration_is_ordinary_training_on_what_is_retained():
    """Û = θ' − θ; a client without examples says so and moves nothing."""
    instruction, data = METHOD.configure(*begun())["r"], blobs(1)
    empty = ClientSite(task=TASK, forget=data.select(NOBODY), retain=data.select(NOBODY))
    calibrated = METHOD.client_step(instruction, replace(empty, retain=data))
    expected = train(TASK, instruction.model, data, instruction.training).parameters - instruction.model
    np.testing.assert_array_equal(calibrated.vector, expected)
    assert METHOD.client_step(instruction, empty).num_examples == 0
