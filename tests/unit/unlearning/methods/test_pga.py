"""PGA against numbers worked out by hand and a walk written anew, in float64."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from tests.tasks import tiny_classification
from unlearning.curvature import gradient
from unlearning.errors import DataError
from unlearning.methods.method import ClientSite, Problem, Reply, UnlearningState
from unlearning.methods.pga import LAST_MODEL, reference_model, squared_distance
from unlearning.methods.preparation import LocalRound
from unlearning.methods.registry import METHODS, validated_parameters
from unlearning.requests import Forget
from unlearning.stores import MemoryStore
from unlearning.tasks.task import Examples
from unlearning.training import Trained, TrainingSettings, initial_parameters

METHOD = METHODS["pga"]
TASK = tiny_classification(lambda: nn.Linear(2, 2))
THETA = np.array([1.0, -1.0, 0.5, 0.0, 0.2, -0.2])
NOBODY = np.array([], dtype=np.intp)


def problem(retained=("r", "s", "t"), num_examples=None, **parameters) -> Problem:
    training = TrainingSettings(learning_rate=0.5, batch_size=100, weight_decay=0.1, momentum=0.3)
    return Problem(
        task=TASK,
        seed=3,
        targets={"u": Forget(everything=True)},
        retained=tuple(retained),
        num_examples=num_examples or {},
        schedule=lambda _: training,
        training=training,
        parameters=validated_parameters(METHOD, parameters),
    )


def examples(count: int = 8) -> Examples:
    generator = torch.Generator().manual_seed(count)
    inputs = torch.randn(count, 2, generator=generator, dtype=torch.float64)
    return Examples(inputs, torch.arange(count) % 2, np.array([str(number) for number in range(count)]))


def site(last: np.ndarray | None, count: int = 8) -> ClientSite:
    store = MemoryStore()
    if last is not None:
        store.save(LAST_MODEL, 4, {"parameters": last})
    data = examples(count) if count else examples().select(NOBODY)
    return ClientSite(task=TASK, forget=data, retain=examples().select(NOBODY), store=store)


def climb(last: np.ndarray, **parameters: object) -> Reply:
    """The target's answer to the instruction that it gets for THETA."""
    given = problem(**parameters)
    instruction = METHOD.configure(given, METHOD.begin(given, THETA))["u"]
    return METHOD.client_step(instruction, site(last))


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
    given = problem(retained=("r", "s"), num_examples=counts, weighted=True)
    share = METHOD.configure(given, METHOD.begin(given, THETA))["u"].values["share"]
    assert share == 0.6
    np.testing.assert_allclose(reference_model(theta, np.array([5.0]), share), [0.0], atol=1e-14)


def test_the_published_share_counts_clients():
    """One of four, however many examples each has."""
    given = problem(num_examples={"u": 1, "r": 99})
    assert METHOD.configure(given, METHOD.begin(given, THETA))["u"].values["share"] == 0.25


@pytest.mark.parametrize(("weighted", "share"), [(False, 0.2), (True, 0.5)])
def test_the_share_is_among_all_that_have_trained_not_among_a_rounds_sample(weighted, share):
    """With `fraction` below 1 one of four others is drawn for the round: N is 5 all the same, and n all 20 examples."""
    counts = {"u": 10, "r": 4, "s": 2, "t": 3, "v": 1}
    given = problem(retained=("s",), num_examples=counts, weighted=weighted)
    assert METHOD.configure(given, METHOD.begin(given, THETA))["u"].values["share"] == share


def test_without_numbers_of_examples_the_weighted_share_counts_clients():
    """Nobody has trained since the server knows: as published."""
    given = problem(weighted=True)
    assert METHOD.configure(given, METHOD.begin(given, THETA))["u"].values["share"] == 0.25


def test_the_distance_is_squared():
    """3² + 4² = 25."""
    assert squared_distance(np.array([0.0, 1.0]), np.array([3.0, 5.0])) == 25.0


def test_a_step_within_the_ball_is_a_clipped_step_of_ascent_from_the_reference():
    """θ_ref + lr · g, with ‖g‖ scaled down to the bound: neither weight decay nor projection."""
    last = THETA + 0.1
    reference = (4 * THETA - last) / 3
    slope = gradient(TASK, reference, examples())
    bound = float(np.linalg.norm(slope)) / 2
    answer = climb(last, epochs=1, learning_rate=0.05, clip_norm=bound, max_distance=1e6)
    expected = reference + 0.05 * slope / 2
    np.testing.assert_allclose(THETA + answer.vector, expected, rtol=1e-5)  # torch clips by norm + 1e-6
    assert answer.metrics["projections"] == 0


def test_the_momentum_is_pgas_own():
    """Two steps: g₀, then g₁ + 0.9·g₀, whatever momentum ordinary training has."""
    last = THETA + 0.1
    first = (4 * THETA - last) / 3
    slope = gradient(TASK, first, examples())
    second = first + 0.01 * slope
    expected = second + 0.01 * (gradient(TASK, second, examples()) + 0.9 * slope)
    answer = climb(last, epochs=2, clip_norm=1e6, max_distance=1e6)
    np.testing.assert_allclose(THETA + answer.vector, expected, rtol=1e-10)


def test_a_step_out_of_the_ball_is_projected_onto_it():
    """The direction from θ_ref stays, the distance is the radius √δ, δ = mean ‖θ_ref − init‖²/3."""
    last = THETA + 0.1
    reference = (4 * THETA - last) / 3
    answer = climb(last, epochs=1, learning_rate=100.0, clip_norm=1e6, max_distance=1e9)
    slope = gradient(TASK, reference, examples())
    expected = reference + radius_around(reference) * slope / np.linalg.norm(slope)
    np.testing.assert_allclose(THETA + answer.vector, expected, rtol=1e-9)
    assert answer.metrics["projections"] == 1


def test_it_ends_as_soon_as_it_is_far_enough_from_the_last_local_model():
    """θ_ref is far from θ_u already, so one of fifty steps is enough; without that all are taken."""
    last = THETA + 1.0
    assert climb(last, epochs=50, max_distance=2.2).metrics["steps"] == 1
    far = climb(last, epochs=50, max_distance=1e9)
    assert far.metrics["steps"] == 50
    assert far.metrics["distance"] > 2.2


def test_the_newest_of_the_kept_models_counts():
    """The client keeps two; the older one is for a round that is done again."""
    given = problem(epochs=1)
    instruction = METHOD.configure(given, METHOD.begin(given, THETA))["u"]
    two = site(THETA + 0.5)
    two.store.save(LAST_MODEL, 5, {"parameters": THETA + 0.1})
    one = METHOD.client_step(instruction, site(THETA + 0.1))
    np.testing.assert_array_equal(METHOD.client_step(instruction, two).vector, one.vector)


def test_a_client_that_keeps_no_last_model_says_what_to_do():
    """It has not trained since it was switched on."""
    given = problem()
    instruction = METHOD.configure(given, METHOD.begin(given, THETA))["u"]
    with pytest.raises(DataError, match='prepare = "pga"'):
        METHOD.client_step(instruction, site(None))


def test_the_targets_model_is_the_new_global_one():
    """θ + (θ' − θ), unweighted, and the report says how far it went."""
    metrics = {"steps": 5.0, "projections": 2.0, "distance": 3.5}
    answer = Reply(vector=np.full(6, 2.0), num_examples=7, metrics=metrics)
    state = METHOD.aggregate(problem(), UnlearningState(parameters=THETA), {"u": answer})
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
            examples=examples(),
            training=TrainingSettings(),
            store=store,
        )
        trained = Trained(THETA + number, 8, 0.5)
        assert preparation.train(preparation.Options(), work, lambda trained=trained: trained) is trained
    assert store.rounds(LAST_MODEL) == [2, 3]
    np.testing.assert_array_equal(store.load(LAST_MODEL, 3)["parameters"], THETA + 3)


def test_only_one_client_at_a_time():
    """As published: one target, whole clients."""
    assert not METHOD.info.several_at_once
    assert [str(level) for level in METHOD.info.granularities] == ["client"]
    assert sorted(METHOD.configure(replace(problem()), METHOD.begin(problem(), THETA))) == ["u"]
