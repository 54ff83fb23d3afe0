"""NoT, gradient ascent, FedAU, Natural and Retrain against numbers worked out by hand, in float64."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from tests.deletions import reply
from tests.tasks import tiny_classification
from unlearning.curvature.gradients import gradient
from unlearning.errors import MethodFailed
from unlearning.local import problem_of
from unlearning.methods.method import ClientSite, Problem, Reply, UnlearningState
from unlearning.methods.registry import METHODS
from unlearning.parameters import flatten
from unlearning.requests import NOTHING, Forget, Granularity, Target
from unlearning.tasks.task import Examples
from unlearning.training import TrainingSettings, initial_parameters, model_with


def tiny_net() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))


def two_linear_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))


TASK = tiny_classification(tiny_net)
# positions in the flat vector: first weight 0-5, first bias 6-8, head weight 9-14, head bias 15-16
THETA = np.arange(1.0, 18.0)
START = initial_parameters(TASK, 0)
TRAINING = TrainingSettings(learning_rate=0.5, batch_size=100)


def examples(count: int) -> Examples:
    generator = torch.Generator().manual_seed(count)
    inputs = torch.randn(count, 2, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, 2, (count,), generator=generator)
    return Examples(inputs, targets, np.array([str(number) for number in range(count)]))


def problem(name: str, targets: str = "u", task=TASK, **parameters) -> Problem:
    """Of forgetting clients, each named by a letter; r and s stay, and the learning rate falls with each round."""
    clients = [Target(Granularity.CLIENT, client) for client in targets]
    sites = dict.fromkeys((*targets, "r", "s"), examples(6))
    given = problem_of(METHODS[name], task, clients, sites, TRAINING, **parameters)
    return replace(given, schedule=lambda number: replace(TRAINING, learning_rate=0.5 / number))


def site(forget: int, retain: int) -> ClientSite:
    return ClientSite(task=TASK, forget=examples(forget), retain=examples(retain))


SITE = site(6, 4)
NOTHING_TO_FORGET = replace(site(1, 4), forget=examples(1).select(np.array([], dtype=np.intp)))


def answered(given: Problem, name: str, at: ClientSite = SITE, start=START) -> Reply:
    """What the target u answers at a site."""
    instruction = METHODS[name].configure(given, UnlearningState(parameters=start))["u"]
    return METHODS[name].client_step(instruction, at)


def ended(given: Problem, name: str, replies: Mapping[str, Reply], start=THETA) -> np.ndarray:
    """The model that the server makes of the answers."""
    return METHODS[name].aggregate(given, UnlearningState(parameters=start), replies).parameters


def update(value: float, num_examples: int) -> Reply:
    return reply(np.full(17, value), num_examples)


def head(value: float, num_examples: int) -> Reply:
    return reply(np.full(8, value), num_examples)


class TestNot:
    @pytest.mark.parametrize(
        ("layers", "negated", "names"),
        [
            ({}, [*range(6)], ["0.weight"]),
            ({"layers": ["2.bias"]}, [15, 16], ["2.bias"]),
            ({"layers": "0.weight,2.weight"}, [*range(6), *range(9, 15)], ["0.weight", "2.weight"]),
        ],
        ids=["first-weight", "by-name", "as-on-a-command-line"],
    )
    def test_the_first_layers_weight_or_those_named_change_sign_and_nothing_else(
        self, layers, negated, names
    ):
        """Names are those in the state dictionary; on a command line they are divided by commas."""
        state = METHODS["not"].begin(problem("not", **layers), THETA)
        signs = np.where(np.isin(np.arange(17), negated), -1, 1)
        np.testing.assert_array_equal(state.parameters, signs * THETA)
        assert state.finished
        assert state.findings["negated tensors"] == names

    @pytest.mark.parametrize(
        ("first", "negated"),
        [
            (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), 0),
            (lambda: nn.utils.weight_norm(nn.Linear(4, 3)), 0),
            (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)), 1),
            (lambda: nn.utils.spectral_norm(nn.Linear(4, 3)), 1),
        ],
        ids=["weight-norm", "old-weight-norm", "spectral-norm", "old-spectral-norm"],
    )
    @pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
    def test_the_weight_that_the_model_computes_with_changes_sign(self, first, negated):
        """Not only a number that it is made of; where that is not so the layer is passed over."""
        task = replace(TASK, build_model=lambda: nn.Sequential(first(), nn.Linear(3, 2)))
        start = initial_parameters(task, 0)
        state = METHODS["not"].begin(problem("not", task=task), start)
        before, after = (model_with(task, vector).eval() for vector in (start, state.parameters))
        rows = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4)
        for layer in (before[0], after[0]):
            layer(rows)  # hooks of the old kind compute the weight here
        signs = [1, 1]
        signs[negated] = -1
        for number, sign in enumerate(signs):
            torch.testing.assert_close(after[number].weight, sign * before[number].weight)

    def test_an_unknown_layer_is_refused_with_those_there_are(self):
        """A typing error does not pass silently."""
        with pytest.raises(MethodFailed):
            METHODS["not"].begin(problem("not", layers=["conv9"]), THETA)

    def test_a_model_without_a_layer_to_negate_is_refused(self):
        """Neither a convolution nor a linear layer."""
        bare = replace(TASK, build_model=lambda: nn.LayerNorm(4))
        with pytest.raises(MethodFailed) as caught:
            METHODS["not"].begin(problem("not", task=bare), np.ones(8))
        assert not caught.value.retryable


class TestGradientAscent:
    @pytest.mark.parametrize(
        ("num_examples", "mean"), [(1, 7.0), (0, 8.0)], ids=["by-examples", "of-those-that-hold-one"]
    )
    def test_targets_updates_are_averaged_by_their_examples(self, num_examples, mean):
        """θ + (1·Δ_u + 3·Δ_v)/4; only v's update moves the model where u holds no example."""
        replies = {"u": update(4, num_examples), "v": update(8, 3)}
        model = ended(problem("gradient-ascent", "uv"), "gradient-ascent", replies)
        np.testing.assert_allclose(model, THETA + mean)

    def test_one_step_climbs_the_gradient(self):
        """One full-batch epoch: Δ = +lr ∇ℓ."""
        given = problem("gradient-ascent", epochs=1, learning_rate=0.25, clip_norm=0)
        climbed = answered(given, "gradient-ascent")
        np.testing.assert_allclose(climbed.vector, 0.25 * gradient(TASK, START, examples(6)), rtol=1e-10)
        assert climbed.num_examples == 6

    def test_a_long_gradient_is_clipped_to_the_bound(self):
        """Δ = lr · c · ∇ℓ/‖∇ℓ‖, and it still climbs."""
        given = problem("gradient-ascent", epochs=1, learning_rate=0.25, clip_norm=0.01)
        slope = gradient(TASK, START, examples(6))
        assert np.linalg.norm(slope) > 0.01
        expected = 0.25 * 0.01 * slope / np.linalg.norm(slope)
        climbed = answered(given, "gradient-ascent")
        np.testing.assert_allclose(climbed.vector, expected, rtol=1e-4)  # torch adds 1e-6 to the norm

    def test_the_default_bound_keeps_any_climb_finite(self):
        """No step is longer than learning rate · bound, here 10 · 5 in each of 20 full-batch steps."""
        given = problem("gradient-ascent", epochs=20, learning_rate=10)
        model = ended(given, "gradient-ascent", {"u": answered(given, "gradient-ascent")}, START)
        assert 0 < np.linalg.norm(model - START) <= 1000

    def test_a_climb_without_a_bound_that_overflows_fails_for_good_with_the_step(self):
        """Nothing of it enters the model; the message says what to change.

        One input with both labels: wherever the climb starts, the loss rises with the difference of the outputs.
        """
        deep = replace(TASK, build_model=two_linear_layers, dtype=torch.float32)
        inputs, targets = torch.tensor([[1.0, -2.0], [1.0, -2.0]]), torch.tensor([0, 1])
        both_labels = Examples(inputs, targets, np.array(["a", "b"]))
        given = problem("gradient-ascent", task=deep, epochs=100, learning_rate=100, clip_norm=0)
        start = initial_parameters(deep, 0)
        at = replace(SITE, task=deep, forget=both_labels)
        climbed = answered(given, "gradient-ascent", at, start)
        assert not climbed.vector.any()
        with pytest.raises(MethodFailed) as caught:
            ended(given, "gradient-ascent", {"u": climbed}, start)
        assert not caught.value.retryable


class TestFedAu:
    def test_heads_are_mixed_and_the_trunk_stays(self):
        """0.04·W_head + 0.96·mean(W_aux); the mean over two clients is not weighted."""
        model = ended(problem("fedau", "uv"), "fedau", {"u": head(1, 1), "v": head(3, 99)})
        np.testing.assert_array_equal(model[:9], THETA[:9])
        np.testing.assert_allclose(model[9:], 0.04 * THETA[9:] + 0.96 * 2.0)

    def test_the_client_sends_its_head_only_and_trains_nothing_else(self):
        """Eight numbers; a fresh head that has moved."""
        start = initial_parameters(TASK, 5)
        trained = answered(problem("fedau"), "fedau", start=start)
        assert trained.vector.shape == (8,)
        fresh = flatten(tiny_net().double())
        assert not np.allclose(trained.vector, start[9:])
        assert not np.allclose(trained.vector, fresh[9:])

    def test_a_target_without_an_example_does_not_enter_the_mean(self):
        """An empty class: only v's head is mixed in."""
        given = problem("fedau", "uv")
        empty = answered(given, "fedau", NOTHING_TO_FORGET, THETA)
        assert (empty.vector.shape, empty.num_examples) == ((8,), 0)
        model = ended(given, "fedau", {"u": empty, "v": head(3, 2)})
        np.testing.assert_allclose(model[9:], 0.04 * THETA[9:] + 0.96 * 3.0)


class TestReferencePoints:
    def test_retraining_starts_from_fresh_weights_with_the_first_rounds_schedule(self):
        """Round 1 from the run's seed, as many rounds as were trained, the learning rate of each round."""
        method, given = METHODS["retrain"], replace(problem("retrain"), rounds_trained=2)
        state = method.begin(given, THETA)
        np.testing.assert_array_equal(state.parameters, START)
        rates = []
        while not state.finished:
            instructions = method.configure(given, state)
            assert sorted(instructions) == ["r", "s"]
            rates.append(instructions["r"].training.learning_rate)
            state = method.aggregate(given, state, {"r": update(1, 1), "s": update(5, 3)})
        assert rates == [0.5, 0.25]
        np.testing.assert_allclose(state.parameters, START + 2 * 4.0)

    def test_a_partial_target_takes_part_in_retraining_with_what_it_retains(self):
        """Its instruction names what to leave out; it trains on the rest."""
        method = METHODS["retrain"]
        given = replace(problem("retrain"), targets={"u": Forget(sample_ids=frozenset({"1"}))})
        state = method.begin(given, THETA)
        instructions = method.configure(given, state)
        assert sorted(instructions) == ["r", "s", "u"]
        assert instructions["u"].forget.sample_ids == {"1"}
        assert instructions["r"].forget == NOTHING
        assert method.client_step(instructions["u"], site(2, 5)).num_examples == 5
