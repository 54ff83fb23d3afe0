"""MoDe against numbers worked out by hand and a whole deletion written anew, in float64."""

import numpy as np
import torch
from torch import nn

from tests.tasks import tiny_classification
from unlearning.curvature import gradient
from unlearning.local import carry_out
from unlearning.methods.method import ClientSite, Problem, Reply, UnlearningState
from unlearning.methods.mode import DEGRADATION, MoDeParameters, degrade, steps
from unlearning.methods.registry import METHODS, validated_parameters
from unlearning.requests import Forget
from unlearning.tasks.task import Examples
from unlearning.training import TrainingSettings, initial_parameters

METHOD = METHODS["mode"]
TASK = tiny_classification(lambda: nn.Linear(2, 2))
THETA = np.array([1.0, -1.0, 0.5, 0.0, 0.2, -0.2])
FRESH = initial_parameters(TASK, 0)
NOBODY = np.array([], dtype=np.intp)


def problem(retained=("r", "s"), task=TASK, **parameters) -> Problem:
    training = TrainingSettings(learning_rate=0.7, batch_size=100, epochs=4)
    return Problem(
        task=task,
        targets={"u": Forget(everything=True)},
        retained=tuple(retained),
        schedule=lambda _: training,
        training=training,
        parameters=validated_parameters(METHOD, parameters),
    )


def examples(seed: int, count: int) -> Examples:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 2, generator=generator, dtype=torch.float64)
    return Examples(inputs, torch.arange(count) % 2, np.array([str(number) for number in range(count)]))


DATA = {"r": examples(1, 6), "s": examples(2, 10), "u": examples(3, 8)}


def site(client: str) -> ClientSite:
    data, none = DATA[client], DATA[client].select(NOBODY)
    forgets = client == "u"
    return ClientSite(task=TASK, forget=data if forgets else none, retain=none if forgets else data)


def relabelled(data: Examples, teacher: np.ndarray) -> Examples:
    weight, bias = torch.from_numpy(teacher[:4].reshape(2, 2)), torch.from_numpy(teacher[4:])
    return Examples(data.inputs, (data.inputs @ weight.T + bias).argmax(dim=1), data.ids)


def in_guidance(model: np.ndarray = THETA) -> UnlearningState:
    """The state before the first guidance."""
    return UnlearningState(parameters=model, exchanges=1, arrays={DEGRADATION: FRESH})


def test_degradation_comes_before_guidance_in_each_round():
    """Two and three rounds of them: d g d g g; sixteen exchanges as published."""
    plan = steps(MoDeParameters(degradation_rounds=2, guidance_rounds=3))
    assert plan == ["degrade", "guide", "degrade", "guide", "guide"]
    assert len(steps(MoDeParameters())) == 16


def test_degradation_moves_the_model_a_little_towards_the_degradation_model():
    """0.95·(2, 4) + 0.05·(−2, 0) = (1.8, 3.8)."""
    moved = degrade(np.array([2.0, 4.0]), np.array([-2.0, 0.0]), 0.95)
    np.testing.assert_allclose(moved, [1.8, 3.8], rtol=1e-15)


def test_the_degradation_model_starts_fresh_and_averages_the_retained():
    """De ← De + (1·Δ_r + 3·Δ_s)/4, and the global model follows the new De."""
    given = problem()
    begun = METHOD.begin(given, THETA)
    np.testing.assert_array_equal(begun.arrays[DEGRADATION], FRESH)
    instructions = METHOD.configure(given, begun)
    assert sorted(instructions) == ["r", "s"]
    np.testing.assert_array_equal(instructions["r"].model, FRESH)
    replies = {
        "r": Reply(vector=np.full(6, 4.0), num_examples=1),
        "s": Reply(vector=np.full(6, 8.0), num_examples=3),
    }
    state = METHOD.aggregate(given, begun, replies)
    np.testing.assert_allclose(state.arrays[DEGRADATION], FRESH + 7.0)
    np.testing.assert_allclose(state.parameters, 0.95 * THETA + 0.05 * (FRESH + 7.0))


def test_guidance_averages_everybody_by_examples():
    """G ← G + (1·Δ_r + 3·Δ_u)/4; De stays."""
    replies = {
        "r": Reply(vector=np.full(6, 4.0), num_examples=1),
        "u": Reply(vector=np.full(6, -4.0), num_examples=3),
    }
    state = METHOD.aggregate(problem(), in_guidance(), replies)
    np.testing.assert_allclose(state.parameters, THETA - 2.0)
    np.testing.assert_array_equal(state.arrays[DEGRADATION], FRESH)


def test_rates_and_epochs_are_mode_s_own():
    """0.1 for De and the target, 0.0005 for the others in guidance, one epoch each."""
    given = problem()
    degrade = METHOD.configure(given, METHOD.begin(given, THETA))
    guide = METHOD.configure(given, in_guidance())
    assert {client: item.training.learning_rate for client, item in degrade.items()} == {"r": 0.1, "s": 0.1}
    rates = {client: item.training.learning_rate for client, item in guide.items()}
    assert rates == {"r": 0.0005, "s": 0.0005, "u": 0.1}
    assert {item.training.epochs for item in (*degrade.values(), *guide.values())} == {1}


def test_the_target_learns_what_the_degradation_model_answers():
    """One full-batch step from G on the labels argmax De(x), which are not the true ones."""
    instruction = METHOD.configure(problem(), in_guidance())["u"]
    data = relabelled(DATA["u"], FRESH)
    assert not torch.equal(data.targets, DATA["u"].targets)
    answer = METHOD.client_step(instruction, site("u"))
    np.testing.assert_allclose(answer.vector, -0.1 * gradient(TASK, THETA, data), rtol=1e-10)


def test_the_others_learn_their_true_labels():
    """One full-batch step from G."""
    answer = METHOD.client_step(METHOD.configure(problem(), in_guidance())["s"], site("s"))
    np.testing.assert_allclose(answer.vector, -0.0005 * gradient(TASK, THETA, DATA["s"]), rtol=1e-8)


def test_a_whole_deletion_is_what_the_paper_describes():
    """Two degradations and three guidances, written anew with plain gradients."""
    given = problem(degradation_rounds=2, guidance_rounds=3, retained_learning_rate=0.02)
    state = carry_out(METHOD, given, THETA, DATA)
    model, teacher = THETA.copy(), FRESH.copy()
    for number in range(3):
        if number < 2:
            slopes = [len(DATA[c]) * gradient(TASK, teacher, DATA[c]) for c in "rs"]
            teacher = teacher - 0.1 * sum(slopes) / 16
            model = 0.95 * model + 0.05 * teacher
        kept = sum(len(DATA[c]) * 0.02 * gradient(TASK, model, DATA[c]) for c in "rs")
        gone = 8 * 0.1 * gradient(TASK, model, relabelled(DATA["u"], teacher))
        model = model - (kept + gone) / 24
    np.testing.assert_allclose(state.parameters, model, rtol=1e-10)
    assert state.findings == {"degradations": 2, "guidances": 3}


def test_a_client_that_stays_and_is_away_is_left_out_of_the_step():
    """Only s averages De."""
    given = problem()
    state = METHOD.aggregate(
        given, METHOD.begin(given, THETA), {"s": Reply(vector=np.full(6, 8.0), num_examples=3)}
    )
    np.testing.assert_allclose(state.arrays[DEGRADATION], FRESH + 8.0)
