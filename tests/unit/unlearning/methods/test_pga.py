"""PGA against numbers worked out by hand and a walk written anew, in float64."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from tests.deletions import THETA, convex_problem, reply
from unlearning.curvature.gradients import gradient
from unlearning.errors import DataError
from unlearning.local import answer
from unlearning.methods.method import Problem, Reply, UnlearningState
from unlearning.methods.pga import LAST_MODEL, reference_model
from unlearning.methods.preparation import LocalRound
from unlearning.methods.registry import METHODS
from unlearning.runtime.stores import MemoryStore
from unlearning.testing.convex import DATA, TASK, TRAINING
from unlearning.training import Trained, initial_parameters

METHOD = METHODS["pga"]


def problem(**parameters) -> Problem:
    """Weight decay and momentum of ordinary training are none of PGA's."""
    given = convex_problem(METHOD, **parameters)
    return replace(given, seed=3, training=replace(TRAINING, momentum=0.3))


def share_in(given: Problem) -> float:
    return float(METHOD.configure(given, METHOD.begin(given, THETA))["u"].values["share"])


def climb(last: Mapping[int, np.ndarray], **parameters: object) -> Reply:
    """The target's answer to the instruction that it gets for THETA; it keeps these models by round."""
    given, store = problem(**parameters), MemoryStore()
    for number, model in last.items():
        store.save(LAST_MODEL, number, {"parameters": model})
    asked = METHOD.configure(given, METHOD.begin(given, THETA))
    return answer(METHOD, given, asked, DATA, {"u": store})["u"]


LAST = {4: THETA + 0.1}
REFERENCE = (3 * THETA - LAST[4]) / 2


def slope_at(model: np.ndarray) -> np.ndarray:
    return gradient(TASK, model, DATA["u"])


def radius_around(reference: np.ndarray) -> float:
    inits = [initial_parameters(TASK, 3 + number) for number in range(10)]
    return float(np.sqrt(np.mean([np.sum((reference - init) ** 2) / 3 for init in inits])))


def test_the_reference_is_the_others_average():
    """(4θ − θ_u)/3 of θ = (1, 2), θ_u = (4, −1): (0, 3)."""
    reference = reference_model(np.array([1.0, 2.0]), np.array([4.0, -1.0]), 1 / 4)
    np.testing.assert_allclose(reference, [0.0, 3.0], atol=1e-15)


def test_the_weighted_reference_is_the_others_average_by_examples():
    """θ = Σ n_i θ_i / n exactly gives back the mean of the others, 30·θ_r + 10·θ_s over 40."""
    models, counts = {"u": 5.0, "r": 1.0, "s": -3.0}, {"u": 60, "r": 30, "s": 10}
    theta = np.array([sum(counts[c] * models[c] for c in models) / 100])
    share = share_in(replace(problem(weighted=True), num_examples=counts))
    assert share == 0.6
    np.testing.assert_allclose(reference_model(theta, np.array([5.0]), share), [0.0], atol=1e-14)


@pytest.mark.parametrize(("weighted", "share"), [(False, 0.2), (True, 0.5)])
def test_the_share_is_among_all_that_have_trained_not_among_a_rounds_sample(weighted, share):
    """One of the five, as published, or by examples; with `fraction` below 1 one other is drawn for the round."""
    counts = {"u": 10, "r": 4, "s": 2, "t": 3, "v": 1}
    given = replace(problem(weighted=weighted), retained=("s",), num_examples=counts)
    assert share_in(given) == share


def test_without_numbers_of_examples_the_weighted_share_counts_clients():
    """Nobody has trained since the server knows: as published."""
    given = replace(problem(weighted=True), retained=("r", "s", "t"), num_examples={})
    assert share_in(given) == 0.25


def test_a_step_within_the_ball_is_a_clipped_step_of_ascent_from_the_reference():
    """θ_ref + lr · g, with ‖g‖ scaled down to the bound: neither weight decay nor projection."""
    slope = slope_at(REFERENCE)
    bound = float(np.linalg.norm(slope)) / 2
    climbed = climb(LAST, epochs=1, learning_rate=0.05, clip_norm=bound, max_distance=1e6)
    expected = REFERENCE + 0.05 * slope / 2
    np.testing.assert_allclose(THETA + climbed.vector, expected, rtol=1e-5)  # torch clips by norm + 1e-6
    assert climbed.metrics["projections"] == 0


def test_the_momentum_is_pgas_own():
    """Two steps: g₀, then g₁ + 0.9·g₀, whatever momentum ordinary training has."""
    second = REFERENCE + 0.01 * slope_at(REFERENCE)
    expected = second + 0.01 * (slope_at(second) + 0.9 * slope_at(REFERENCE))
    climbed = climb(LAST, epochs=2, clip_norm=1e6, max_distance=1e6)
    np.testing.assert_allclose(THETA + climbed.vector, expected, rtol=1e-10)


def test_a_step_out_of_the_ball_is_projected_onto_it():
    """The direction from θ_ref stays, the distance is the radius √δ, δ = mean ‖θ_ref − init‖²/3."""
    climbed = climb(LAST, epochs=1, learning_rate=100.0, clip_norm=1e6, max_distance=1e9)
    slope = slope_at(REFERENCE)
    expected = REFERENCE + radius_around(REFERENCE) * slope / np.linalg.norm(slope)
    np.testing.assert_allclose(THETA + climbed.vector, expected, rtol=1e-9)
    assert climbed.metrics["projections"] == 1


def test_it_ends_as_soon_as_it_is_far_enough_from_the_last_local_model():
    """θ_ref is far from θ_u already, so one of fifty steps is enough; without that all are taken."""
    last = {4: THETA + 1.0}
    assert climb(last, epochs=50, max_distance=2.2).metrics["steps"] == 1
    far = climb(last, epochs=50, max_distance=1e9)
    assert far.metrics["steps"] == 50
    assert far.metrics["distance"] > 2.2


def test_the_newest_of_the_kept_models_counts():
    """The client keeps two; the older one is for a round that is done again."""
    two = climb({4: THETA + 0.5, 5: THETA + 0.1}, epochs=1)
    np.testing.assert_array_equal(two.vector, climb(LAST, epochs=1).vector)


def test_a_client_that_keeps_no_last_model_says_what_to_do():
    """It has not trained since it was switched on."""
    with pytest.raises(DataError):
        climb({})


def test_the_targets_model_is_the_new_global_one():
    """θ + (θ' − θ), unweighted, and the report says how far it went."""
    climbed = reply(2, 7, metrics={"steps": 5.0, "projections": 2.0, "distance": 3.5})
    state = METHOD.aggregate(problem(), UnlearningState(parameters=THETA), {"u": climbed})
    assert state.finished
    np.testing.assert_allclose(state.parameters, THETA + 2.0)
    assert state.findings["steps of ascent"] == 5.0
    assert state.findings["projections onto the ball"] == 2.0


def test_a_client_keeps_its_last_two_local_models():
    """Training itself is the ordinary one."""
    store, preparation = MemoryStore(), METHOD.info.preparation
    assert preparation is not None
    for number in (1, 2, 3):
        work = LocalRound(
            client_id="u",
            number=number,
            task=TASK,
            model=THETA,
            examples=DATA["u"],
            training=TRAINING,
            store=store,
        )
        trained = Trained(THETA + number, 8, 0.5)
        assert preparation().train(work, lambda trained=trained: trained) is trained
    assert store.rounds(LAST_MODEL) == [2, 3]
    np.testing.assert_array_equal(store.load(LAST_MODEL, 3)["parameters"], THETA + 3)
