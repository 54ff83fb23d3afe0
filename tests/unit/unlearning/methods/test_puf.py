"""PUF against numbers worked out by hand, and against closed-form gradients where they exist."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from unlearning.errors import InvalidRequest, MethodFailed
from unlearning.local import carry_out
from unlearning.methods.method import ClientSite, Problem, Reply
from unlearning.methods.registry import METHODS, method_named, validated_parameters
from unlearning.requests import Forget, Granularity
from unlearning.tasks import TaskSettings, make_task
from unlearning.tasks.task import Examples, Task, forgotten_mask
from unlearning.training import TrainingSettings, initial_parameters

EVERYTHING = Forget(everything=True)
THETA = np.array([1.0, -2.0, 0.5])


def problem_of(name: str, targets: Mapping[str, Forget], retained=(), training=None, **parameters) -> Problem:
    chosen = training or TrainingSettings()
    return Problem(
        task=make_task(TaskSettings()),
        targets=targets,
        retained=tuple(retained),
        schedule=lambda _: chosen,
        training=chosen,
        parameters=validated_parameters(method_named(name), parameters),
    )


def server_step(problem: Problem, name: str, replies: Mapping[str, Reply], theta=THETA):
    method = method_named(name)
    return method.aggregate(problem, method.begin(problem, theta), replies)


def reply(update, num_examples: int) -> Reply:
    return Reply(vector=np.asarray(update, dtype=np.float64), num_examples=num_examples)


def test_special_subtracts_the_targets_weighted_mean_update():
    """n = 30 + 10, η_u = 2: θ' = θ − 2·(3/4·Δ_a + 1/4·Δ_b), worked out below.

    Δ_a = (0.4, 0.8, −1.2), Δ_b = (−0.8, 1.6, 0.4):
    3/4·Δ_a + 1/4·Δ_b = (0.1, 1.0, −0.8); θ' = (1, −2, 0.5) − (0.2, 2.0, −1.6) = (0.8, −4, 2.1).
    """
    problem = problem_of("puf-special", {"a": EVERYTHING, "b": EVERYTHING}, unlearning_rate=2.0)
    replies = {"a": reply([0.4, 0.8, -1.2], 30), "b": reply([-0.8, 1.6, 0.4], 10)}
    state = server_step(problem, "puf-special", replies)
    np.testing.assert_allclose(state.parameters, [0.8, -4.0, 2.1], rtol=0, atol=1e-15)


def test_regular_adds_the_retained_and_subtracts_the_target():
    """n = 10 + 20 + 70, η_u = 3, η_r = 1/2: θ' = θ + 1/2·(0.2·Δ_r + 0.7·Δ_s) − 3·0.1·Δ_u.

    Δ_u = (1, −1, 2), Δ_r = (0.5, 0, −1), Δ_s = (0, 2, 1):
    retained: 1/2·(0.1, 1.4, 0.5) = (0.05, 0.7, 0.25); target: (0.3, −0.3, 0.6);
    θ' = (1 + 0.05 − 0.3, −2 + 0.7 + 0.3, 0.5 + 0.25 − 0.6) = (0.75, −1, 0.15).
    """
    problem = problem_of("puf-regular", {"u": EVERYTHING}, ("r", "s"), unlearning_rate=3, retained_rate=0.5)
    replies = {"u": reply([1, -1, 2], 10), "r": reply([0.5, 0, -1], 20), "s": reply([0, 2, 1], 70)}
    state = server_step(problem, "puf-regular", replies)
    np.testing.assert_allclose(state.parameters, [0.75, -1.0, 0.15], rtol=0, atol=1e-15)


def test_the_papers_rates_are_the_defaults():
    """η_u = 2 for Special; η_u = 20 and η_r = 1 for Regular."""
    special = validated_parameters(method_named("puf-special"), {}).model_dump()
    regular = validated_parameters(method_named("puf-regular"), {}).model_dump()
    assert special == {"unlearning_rate": 2.0, "flip_at_client": False, "as_published_code": False}
    assert regular == {"unlearning_rate": 20.0, "retained_rate": 1.0, "flip_at_client": False}


def test_one_exchange_is_all_it_takes():
    """PUF is done after one round, of which the state keeps count."""
    state = server_step(
        problem_of("puf-special", {"a": EVERYTHING}), "puf-special", {"a": reply([0, 0, 1], 5)}
    )
    assert (state.finished, state.exchanges) == (True, 1)


def test_an_absent_target_fails_the_exchange_for_now():
    """Half an unlearning is none; the request goes back to the queue, naming who was missing."""
    problem = problem_of("puf-special", {"a": EVERYTHING, "b": EVERYTHING})
    with pytest.raises(MethodFailed, match=r"client\(s\) b") as caught:
        server_step(problem, "puf-special", {"a": reply([0, 0, 1], 5)})
    assert caught.value.retryable


def test_an_absent_retained_client_is_left_out_of_the_mean():
    """The weights are those of the clients that answered: n = 10 + 30, not 10 + 30 + 60.

    θ' = θ + 3/4·(1, 0, 0) − 4·1/4·(0, 1, 0) = (1.75, −3, 0.5).
    """
    problem = problem_of("puf-regular", {"u": EVERYTHING}, ("r", "gone"), unlearning_rate=4)
    state = server_step(problem, "puf-regular", {"u": reply([0, 1, 0], 10), "r": reply([1, 0, 0], 30)})
    np.testing.assert_allclose(state.parameters, [1.75, -3.0, 0.5], rtol=0, atol=1e-15)


def test_special_asks_the_targets_only():
    """Retained clients have nothing to do; Regular asks them too."""
    asked = {}
    for name in ("puf-special", "puf-regular"):
        problem, method = problem_of(name, {"u": EVERYTHING}, ("r", "s")), method_named(name)
        asked[name] = set(method.configure(problem, method.begin(problem, THETA)))
    assert asked == {"puf-special": {"u"}, "puf-regular": {"u", "r", "s"}}


def test_a_retained_client_is_not_told_to_forget():
    """Only a target's instruction carries what to forget."""
    method = method_named("puf-regular")
    problem = problem_of("puf-regular", {"u": EVERYTHING}, ("r",))
    instructions = method.configure(problem, method.begin(problem, THETA))
    assert (instructions["u"].forget, bool(instructions["r"].forget)) == (EVERYTHING, False)


@pytest.mark.parametrize("name", ["puf-special", "puf-regular"])
def test_the_order_of_replies_does_not_change_a_bit(name):
    """Floating-point sums depend on their order; the model must not depend on the network's."""
    generator = np.random.default_rng(0)
    theta = generator.normal(size=50)  # float64: rounding to float32 would hide the order of the sum
    clients = [f"c{index}" for index in range(7)]
    replies = {
        client: reply(generator.normal(size=50) * 10.0 ** generator.integers(-6, 6), int(count))
        for client, count in zip(clients, generator.integers(1, 100, size=7), strict=True)
    }
    problem = problem_of(name, dict.fromkeys(clients[:3], EVERYTHING), clients[3:])
    models = set()
    for order in (clients, clients[::-1], clients[3:] + clients[:3]):
        state = server_step(problem, name, {client: replies[client] for client in order}, theta)
        models.add(state.parameters.tobytes())
    assert len(models) == 1


@pytest.mark.parametrize("name", ["puf-special", "puf-regular"])
@pytest.mark.parametrize(
    "values",
    [
        {"unlearning_rate": 0},
        {"unlearning_rate": -2},
        {"unlearning_rate": float("inf")},
        {"unlearning_rate": "fast"},
        {"eta": 2},
    ],
    ids=["zero", "negative", "infinite", "word", "unknown-name"],
)
def test_a_bad_parameter_is_refused_by_name(name, values):
    """The message names the parameter and lists those there are."""
    with pytest.raises(InvalidRequest, match=rf"{next(iter(values))}.*It takes: .*unlearning_rate"):
        validated_parameters(METHODS[name], values)


def test_special_knows_no_rate_for_retained_clients():
    """A parameter of Regular is an unknown name for Special."""
    with pytest.raises(InvalidRequest, match="retained_rate"):
        validated_parameters(METHODS["puf-special"], {"retained_rate": 1.0})


# --- against closed-form gradients: multinomial logistic regression on the digits, float64 -----------

TASK = Task(
    name="digits",
    num_classes=10,
    score_name="accuracy",
    build_model=lambda: nn.Linear(64, 10),
    loss=nn.functional.cross_entropy,
    per_example=lambda outputs, targets: (outputs, targets, targets),  # not called here
    dtype=torch.float64,
)
# one step on the whole local data set: the batch is larger than any client's number of examples
FULL_BATCH = TrainingSettings(epochs=1, batch_size=10_000, learning_rate=0.3)


def client_data() -> dict[str, Examples]:
    inputs, labels = load_digits(return_X_y=True)
    bounds = {"a": (0, 40), "b": (40, 170), "c": (170, 400)}
    return {
        client: Examples(
            torch.from_numpy(inputs[start:stop] / 16.0),
            torch.from_numpy(labels[start:stop]).long(),
            np.arange(start, stop).astype(str),
        )
        for client, (start, stop) in bounds.items()
    }


def gradient(theta: np.ndarray, examples: Examples) -> np.ndarray:
    """∇ of the mean cross-entropy in closed form: (P − Y)ᵀX / n for the weights, its mean for the bias."""
    inputs, labels = examples.inputs.numpy(), examples.targets.numpy()
    logits = inputs @ theta[:640].reshape(10, 64).T + theta[640:]
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    error = odds / odds.sum(axis=1, keepdims=True) - np.eye(10)[labels]
    return np.concatenate([(error.T @ inputs).ravel(), error.sum(axis=0)]) / len(labels)


def unlearn(problem: Problem, name: str, data: Mapping[str, Examples], theta: np.ndarray) -> np.ndarray:
    return carry_out(method_named(name), replace(problem, task=TASK), theta, data).parameters


def test_special_is_a_gradient_step_up_the_forgotten_loss():
    """With one full-batch step Δ_u = −lr·g_u, so θ' = θ + η_u·lr·Σ (n_u/n)·g_u, here for n_u 40 and 130."""
    theta, data = initial_parameters(TASK, seed=1), client_data()
    problem = problem_of("puf-special", {"a": EVERYTHING, "b": EVERYTHING}, training=FULL_BATCH)
    by_hand = theta + 2.0 * 0.3 * (
        40 / 170 * gradient(theta, data["a"]) + 130 / 170 * gradient(theta, data["b"])
    )
    np.testing.assert_allclose(unlearn(problem, "puf-special", data, theta), by_hand, rtol=0, atol=1e-14)


def test_regular_climbs_for_the_target_and_descends_for_the_others():
    """θ' = θ − lr·Σ_R (n_i/n)·g_i + η_u·lr·(n_u/n)·g_u with n = 40 + 130 + 230."""
    theta, data = initial_parameters(TASK, seed=1), client_data()
    problem = problem_of("puf-regular", {"a": EVERYTHING}, ("b", "c"), training=FULL_BATCH)
    by_hand = theta + 0.3 * (
        20.0 * 40 / 400 * gradient(theta, data["a"])
        - 130 / 400 * gradient(theta, data["b"])
        - 230 / 400 * gradient(theta, data["c"])
    )
    np.testing.assert_allclose(unlearn(problem, "puf-regular", data, theta), by_hand, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("granularity", "forget"),
    [
        (Granularity.SAMPLE, Forget(sample_ids=frozenset({"41", "50", "169"}))),
        (Granularity.CLASS, Forget(classes=frozenset({3}))),
    ],
)
def test_a_target_trains_on_its_forgotten_examples_only(granularity, forget):
    """Only the gradient of the named samples, or of the class, enters the model."""
    theta, data = initial_parameters(TASK, seed=1), client_data()
    forgotten = data["b"].select(forgotten_mask(data["b"], forget))
    assert 0 < len(forgotten) < len(data["b"])
    problem = problem_of("puf-special", {"b": forget}, training=FULL_BATCH)
    by_hand = theta + 2.0 * 0.3 * gradient(theta, forgotten)
    np.testing.assert_allclose(unlearn(problem, "puf-special", data, theta), by_hand, rtol=0, atol=1e-14)


def without_class(examples: Examples, label: int) -> Examples:
    return examples.select(examples.targets.numpy() != label)


def test_a_client_without_the_forgotten_class_weighs_nothing_in_special():
    """It answers with zero examples, and the model is the one without it."""
    theta, data = initial_parameters(TASK, seed=1), client_data()
    data["a"] = without_class(data["a"], 3)
    forget = Forget(classes=frozenset({3}))
    both = problem_of("puf-special", {"a": forget, "b": forget}, training=FULL_BATCH)
    one = problem_of("puf-special", {"b": forget}, training=FULL_BATCH)
    np.testing.assert_array_equal(
        unlearn(both, "puf-special", data, theta), unlearn(one, "puf-special", data, theta)
    )


def test_regular_forgets_a_class_in_an_ordinary_round_of_what_everybody_keeps():
    """θ' = θ − lr·Σ (r_i/n)·g_i(kept) + η_u·lr·Σ (u_i/n)·g_i(class); a has nothing of the class."""
    theta, data = initial_parameters(TASK, seed=1), client_data()
    data["a"] = without_class(data["a"], 3)
    problem = problem_of(
        "puf-regular", dict.fromkeys(data, Forget(classes=frozenset({3}))), training=FULL_BATCH
    )
    total = sum(len(examples) for examples in data.values())
    by_hand = theta.copy()
    for examples in data.values():
        kept, mine = without_class(examples, 3), examples.select(examples.targets.numpy() == 3)
        by_hand -= 0.3 * len(kept) / total * gradient(theta, kept)
        if len(mine):
            by_hand += 0.3 * 20.0 * len(mine) / total * gradient(theta, mine)
    np.testing.assert_allclose(unlearn(problem, "puf-regular", data, theta), by_hand, rtol=0, atol=1e-14)


def test_regular_forgets_samples_beside_the_rest_of_their_client():
    """θ' = θ − lr·(127/170·g_b(kept) + 40/170·g_a) + η_u·lr·3/170·g_b(samples): b is target and retained."""
    theta, data = initial_parameters(TASK, seed=1), client_data()
    forget = Forget(sample_ids=frozenset({"41", "50", "169"}))
    mask = forgotten_mask(data["b"], forget)
    problem = problem_of("puf-regular", {"b": forget}, ("a",), training=FULL_BATCH)
    by_hand = theta + 0.3 * (
        20.0 * 3 / 170 * gradient(theta, data["b"].select(mask))
        - 127 / 170 * gradient(theta, data["b"].select(~mask))
        - 40 / 170 * gradient(theta, data["a"])
    )
    np.testing.assert_allclose(unlearn(problem, "puf-regular", data, theta), by_hand, rtol=0, atol=1e-14)


def test_special_as_published_code_weighs_by_all_that_the_targets_hold():
    """For 3 of b's 130 samples the step is 3/130 of Eq. 7's; for whole clients it is the same."""
    theta, data = initial_parameters(TASK, seed=1), client_data()
    forget = Forget(sample_ids=frozenset({"41", "50", "169"}))
    forgotten = data["b"].select(forgotten_mask(data["b"], forget))
    code, plain = (
        problem_of("puf-special", {"b": forget}, training=FULL_BATCH, as_published_code=value)
        for value in (True, False)
    )
    step = 2.0 * 0.3 * gradient(theta, forgotten)
    np.testing.assert_allclose(
        unlearn(code, "puf-special", data, theta), theta + 3 / 130 * step, rtol=0, atol=1e-14
    )
    np.testing.assert_allclose(unlearn(plain, "puf-special", data, theta), theta + step, rtol=0, atol=1e-14)
    whole = (
        problem_of("puf-special", {"b": EVERYTHING}, training=FULL_BATCH, as_published_code=value)
        for value in (True, False)
    )
    one, other = (unlearn(problem, "puf-special", data, theta) for problem in whole)
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("values", [{}, {"num_retained": 7}], ids=["no-count", "no-update"])
def test_regular_refuses_a_partial_target_without_the_update_of_what_it_keeps(values):
    """That is how a client of an earlier version answers; the step without it destroys the model."""
    problem = problem_of("puf-regular", {"u": Forget(classes=frozenset({3}))})
    answer = Reply(vector=np.ones(3), num_examples=5, values=values)
    with pytest.raises(MethodFailed, match="earlier version: update it"):
        server_step(problem, "puf-regular", {"u": answer})


@pytest.mark.parametrize("name", ["puf-special", "puf-regular"])
def test_flipping_the_sign_at_the_client_gives_the_same_model(name):
    """Who negates the update changes what travels, not the result, to the last bit."""
    theta, data = initial_parameters(TASK, seed=1), client_data()
    mini_batches = TrainingSettings(epochs=2, batch_size=16, learning_rate=0.1, seed=3)
    at_server, at_client = (
        unlearn(
            problem_of(name, {"a": EVERYTHING}, ("b",), training=mini_batches, flip_at_client=flip),
            name,
            data,
            theta,
        )
        for flip in (False, True)
    )
    assert not np.array_equal(at_server, theta)
    np.testing.assert_array_equal(at_server, at_client)


def test_a_flipped_update_travels_negated():
    """With the flip at the client, the server never sees the target's own update."""
    theta, data = initial_parameters(TASK, seed=1), client_data()
    site = ClientSite(task=TASK, forget=data["a"], retain=data["a"].select(np.zeros(40, dtype=bool)))
    vectors = []
    for flip in (False, True):
        problem = problem_of("puf-special", {"a": EVERYTHING}, training=FULL_BATCH, flip_at_client=flip)
        method = method_named("puf-special")
        instruction = method.configure(problem, method.begin(problem, theta))["a"]
        vectors.append(method.client_step(instruction, site).vector)
    np.testing.assert_array_equal(vectors[0], -vectors[1])
