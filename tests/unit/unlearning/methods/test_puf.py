"""PUF against numbers worked out by hand, and against gradients of whole data sets, in float64."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from tests.deletions import CLIENT, THETA, reply, samples
from unlearning.curvature.gradients import gradient
from unlearning.errors import MethodFailed
from unlearning.local import answer, carry_out, problem_of, retained
from unlearning.methods.method import Reply, UnlearningState
from unlearning.methods.registry import METHODS, method_named
from unlearning.requests import Forget, Granularity, Target
from unlearning.tasks.task import Examples, forgotten_mask
from unlearning.testing.convex import DATA, TASK, TRAINING
from unlearning.training import TrainingSettings

START = np.array([1.0, -2.0, 0.5])
SAMPLES, CLASS = samples(3), Target(Granularity.CLASS, class_label=1)
# one step on the whole local data set
FULL_BATCH = replace(TRAINING, learning_rate=0.3, weight_decay=0.0)


def client(name: str) -> Target:
    return Target(Granularity.CLIENT, name)


def server_step(
    name: str, targets: str, replies: Mapping[str, Reply], theta=START, **parameters
) -> UnlearningState:
    """The server's half alone; each target is named by a letter."""
    method = method_named(name)
    problem = problem_of(method, TASK, map(client, targets), DATA, TRAINING, **parameters)
    return method.aggregate(problem, method.begin(problem, theta), replies)


def unlearn(
    name: str,
    *targets: Target,
    data: Mapping[str, Examples] = DATA,
    training: TrainingSettings = FULL_BATCH,
    **parameters,
) -> np.ndarray:
    """The whole deletion from THETA; those of `data` who are no targets are retained."""
    problem = problem_of(METHODS[name], TASK, targets, data, training, **parameters)
    return carry_out(METHODS[name], problem, THETA, data).parameters


def after_steps(*parts: tuple[float, Examples], total: int = 0) -> np.ndarray:
    """θ + lr·Σ rate·(n_i/n)·g_i over data sets with their rates, n of all of them if not given."""
    total = total or sum(len(examples) for _, examples in parts)
    steps = [rate * len(examples) / total * gradient(TASK, THETA, examples) for rate, examples in parts]
    return THETA + 0.3 * np.sum(steps, axis=0)


FORGOTTEN = DATA["u"].select(forgotten_mask(DATA["u"], SAMPLES.forget))


def of_class(examples: Examples) -> Examples:
    return examples.select(examples.targets.numpy() == 1)


def test_special_subtracts_the_targets_weighted_mean_update():
    """n = 30 + 10, η_u = 2: θ' = θ − 2·(3/4·Δ_a + 1/4·Δ_b), worked out below.

    Δ_a = (0.4, 0.8, −1.2), Δ_b = (−0.8, 1.6, 0.4):
    3/4·Δ_a + 1/4·Δ_b = (0.1, 1.0, −0.8); θ' = (1, −2, 0.5) − (0.2, 2.0, −1.6) = (0.8, −4, 2.1).
    PUF is done after this one round, of which the state keeps count.
    """
    replies = {"a": reply([0.4, 0.8, -1.2], 30), "b": reply([-0.8, 1.6, 0.4], 10)}
    state = server_step("puf-special", "ab", replies, unlearning_rate=2.0)
    np.testing.assert_allclose(state.parameters, [0.8, -4.0, 2.1], rtol=0, atol=1e-15)
    assert (state.finished, state.exchanges) == (True, 1)


def test_regular_adds_the_retained_and_subtracts_the_target():
    """n = 10 + 20 + 70, η_u = 3, η_r = 1/2: θ' = θ + 1/2·(0.2·Δ_r + 0.7·Δ_s) − 3·0.1·Δ_u.

    Δ_u = (1, −1, 2), Δ_r = (0.5, 0, −1), Δ_s = (0, 2, 1):
    retained: 1/2·(0.1, 1.4, 0.5) = (0.05, 0.7, 0.25); target: (0.3, −0.3, 0.6);
    θ' = (1 + 0.05 − 0.3, −2 + 0.7 + 0.3, 0.5 + 0.25 − 0.6) = (0.75, −1, 0.15).
    """
    replies = {"u": reply([1, -1, 2], 10), "r": reply([0.5, 0, -1], 20), "s": reply([0, 2, 1], 70)}
    state = server_step("puf-regular", "u", replies, unlearning_rate=3, retained_rate=0.5)
    np.testing.assert_allclose(state.parameters, [0.75, -1.0, 0.15], rtol=0, atol=1e-15)


def test_an_absent_retained_client_is_left_out_of_the_mean():
    """The weights are those of the clients that answered: n = 10 + 30, however many others there are.

    θ' = θ + 3/4·(1, 0, 0) − 4·1/4·(0, 1, 0) = (1.75, −3, 0.5).
    """
    replies = {"u": reply([0, 1, 0], 10), "r": reply([1, 0, 0], 30)}
    state = server_step("puf-regular", "u", replies, unlearning_rate=4)
    np.testing.assert_allclose(state.parameters, [1.75, -3.0, 0.5], rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("name", "forgets"),
    [("puf-special", {"u": True}), ("puf-regular", {"u": True, "r": False, "s": False})],
)
def test_special_asks_the_targets_only_and_regular_tells_nobody_else_to_forget(name, forgets):
    """Whom each asks, and whether the instruction carries what to forget."""
    problem = problem_of(METHODS[name], TASK, [CLIENT], DATA, TRAINING)
    asked = METHODS[name].configure(problem, METHODS[name].begin(problem, THETA))
    assert {one: bool(instruction.forget) for one, instruction in asked.items()} == forgets
    assert asked["u"].forget == Forget(everything=True)


@pytest.mark.parametrize("name", ["puf-special", "puf-regular"])
def test_the_order_of_replies_does_not_change_a_bit(name):
    """Floating-point sums depend on their order; the model must not depend on the network's."""
    generator = np.random.default_rng(0)
    theta = generator.normal(size=50)  # float64: rounding to float32 would hide the order of the sum
    replies = {
        one: reply(generator.normal(size=50) * 10.0 ** generator.integers(-6, 6), int(count))
        for one, count in zip("abcdefg", generator.integers(1, 100, size=7), strict=True)
    }
    models = set()
    for order in ("abcdefg", "gfedcba", "defgabc"):
        state = server_step(name, "abc", {one: replies[one] for one in order}, theta)
        models.add(state.parameters.tobytes())
    assert len(models) == 1


@pytest.mark.parametrize("target", [SAMPLES, CLASS], ids=["samples", "class"])
def test_a_target_trains_on_its_forgotten_examples_only(target):
    """Only the gradient of the named samples, or of the class, enters the model."""
    gone = [FORGOTTEN] if target is SAMPLES else map(of_class, DATA.values())
    expected = after_steps(*((2.0, one) for one in gone))
    np.testing.assert_allclose(unlearn("puf-special", target), expected, rtol=0, atol=1e-14)


def test_a_client_without_the_forgotten_class_weighs_nothing_in_special():
    """It answers with zero examples, and the model is the one without it."""
    others = {"s": DATA["s"], "u": DATA["u"]}
    data = {**others, **retained({"r": DATA["r"]}, [CLASS])}
    np.testing.assert_array_equal(
        unlearn("puf-special", CLASS, data=data), unlearn("puf-special", CLASS, data=others)
    )


def test_regular_forgets_a_class_in_an_ordinary_round_of_what_everybody_keeps():
    """θ' = θ − lr·Σ (r_i/n)·g_i(kept) + η_u·lr·Σ (u_i/n)·g_i(class); r has nothing of the class."""
    data = {**DATA, **retained({"r": DATA["r"]}, [CLASS])}
    kept = [(-1.0, one) for one in retained(data, [CLASS]).values()]
    gone = [(20.0, of_class(data[one])) for one in "su"]
    expected = after_steps(*kept, *gone)
    np.testing.assert_allclose(unlearn("puf-regular", CLASS, data=data), expected, rtol=0, atol=1e-14)


def test_regular_forgets_samples_beside_the_rest_of_their_client():
    """θ' = θ − lr·Σ (r_i/n)·g_i(kept) + η_u·lr·3/70·g_u(samples): u is target and retained."""
    kept = [(-1.0, one) for one in retained(DATA, [SAMPLES]).values()]
    expected = after_steps((20.0, FORGOTTEN), *kept)
    np.testing.assert_allclose(unlearn("puf-regular", SAMPLES), expected, rtol=0, atol=1e-14)


def test_special_as_published_code_weighs_by_all_that_the_targets_hold():
    """For 3 of u's 20 samples the step is 3/20 of Eq. 7's; for whole clients it is the same."""
    code = unlearn("puf-special", SAMPLES, as_published_code=True)
    np.testing.assert_allclose(code, after_steps((2.0, FORGOTTEN), total=20), rtol=0, atol=1e-14)
    whole = [unlearn("puf-special", CLIENT, as_published_code=value) for value in (True, False)]
    np.testing.assert_array_equal(*whole)


@pytest.mark.parametrize("values", [{}, {"num_retained": 7}], ids=["no-count", "no-update"])
def test_regular_refuses_a_partial_target_without_the_update_of_what_it_keeps(values):
    """The step without it destroys the model."""
    method = METHODS["puf-regular"]
    problem = problem_of(method, TASK, [SAMPLES], DATA, TRAINING)
    with pytest.raises(MethodFailed):
        method.aggregate(problem, method.begin(problem, THETA), {"u": reply(1, 5, values=values)})


@pytest.mark.parametrize("name", ["puf-special", "puf-regular"])
def test_flipping_the_sign_at_the_client_gives_the_same_model(name):
    """Who negates the update changes what travels, not the result, to the last bit."""
    mini_batches = TrainingSettings(epochs=2, batch_size=4, learning_rate=0.1, seed=3)
    at_server, at_client = (
        unlearn(name, CLIENT, training=mini_batches, flip_at_client=flip) for flip in (False, True)
    )
    assert not np.array_equal(at_server, THETA)
    np.testing.assert_array_equal(at_server, at_client)


def test_a_flipped_update_travels_negated():
    """With the flip at the client, the server never sees the target's own update."""
    method, vectors = method_named("puf-special"), []
    for flip in (False, True):
        problem = problem_of(method, TASK, [CLIENT], DATA, FULL_BATCH, flip_at_client=flip)
        asked = method.configure(problem, method.begin(problem, THETA))
        vectors.append(answer(method, problem, asked, DATA)["u"].vector)
    np.testing.assert_array_equal(vectors[0], -vectors[1])
