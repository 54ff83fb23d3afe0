"""NoT, gradient ascent, FedAU, Natural and Retrain against numbers worked out by hand, in float64."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from tests.tasks import tiny_classification
from unlearning.errors import MethodFailed, UpdateRefused
from unlearning.methods.method import ClientSite, Instruction, Problem, Reply, UnlearningState
from unlearning.methods.registry import METHODS, validated_parameters
from unlearning.parameters import flatten
from unlearning.requests import NOTHING, Forget
from unlearning.tasks.task import Examples
from unlearning.training import TrainingSettings, initial_parameters

EVERYTHING = Forget(everything=True)


def tiny_net() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))


def two_linear_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))


TASK = tiny_classification(tiny_net)
# positions in the flat vector: first weight 0-5, first bias 6-8, head weight 9-14, head bias 15-16
THETA = np.arange(1.0, 18.0)


def problem(
    name: str, targets=("u",), retained=("r", "s"), task=TASK, rounds_trained=0, **parameters
) -> Problem:
    training = TrainingSettings(learning_rate=0.5, batch_size=100)
    return Problem(
        task=task,
        rounds_trained=rounds_trained,
        targets=dict.fromkeys(targets, EVERYTHING),
        retained=tuple(retained),
        schedule=lambda number: replace(training, learning_rate=0.5 / number),
        training=training,
        parameters=validated_parameters(METHODS[name], parameters),
    )


def examples(count: int) -> Examples:
    generator = torch.Generator().manual_seed(count)
    inputs = torch.randn(count, 2, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, 2, (count,), generator=generator)
    return Examples(inputs, targets, np.array([str(number) for number in range(count)]))


def site(forget: int, retain: int) -> ClientSite:
    return ClientSite(task=TASK, forget=examples(forget), retain=examples(retain))


class TestNot:
    def test_the_first_layers_weight_changes_sign_and_nothing_else(self):
        """Its bias and the later layer stay."""
        state = METHODS["not"].begin(problem("not"), THETA)
        np.testing.assert_array_equal(state.parameters[:6], -THETA[:6])
        np.testing.assert_array_equal(state.parameters[6:], THETA[6:])
        assert state.finished

    def test_named_layers_are_negated_instead(self):
        """By their names in the state dictionary."""
        state = METHODS["not"].begin(problem("not", layers=["2.bias"]), THETA)
        np.testing.assert_array_equal(state.parameters[:15], THETA[:15])
        np.testing.assert_array_equal(state.parameters[15:], -THETA[15:])

    def test_an_unknown_layer_is_refused_with_those_there_are(self):
        """A typing error does not pass silently."""
        with pytest.raises(MethodFailed, match=r"0\.weight"):
            METHODS["not"].begin(problem("not", layers=["conv9"]), THETA)

    def test_several_layers_are_named_as_on_a_command_line(self):
        """By commas."""
        state = METHODS["not"].begin(problem("not", layers="0.weight,2.weight"), THETA)
        np.testing.assert_array_equal(state.parameters[:6], -THETA[:6])
        np.testing.assert_array_equal(state.parameters[6:9], THETA[6:9])
        np.testing.assert_array_equal(state.parameters[9:15], -THETA[9:15])
        assert state.findings["negated tensors"] == ["0.weight", "2.weight"]

    def test_the_result_is_the_same_whoever_leaves(self):
        """As the remark that users see says."""
        one, two = (METHODS["not"].begin(problem("not", targets=gone), THETA) for gone in ("u", "vw"))
        np.testing.assert_array_equal(one.parameters, two.parameters)
        assert "the same model whoever leaves" in METHODS["not"].info.remark

    def test_a_model_without_a_layer_to_negate_is_refused(self):
        """Neither a convolution nor a linear layer."""
        bare = replace(TASK, build_model=lambda: nn.LayerNorm(4))
        with pytest.raises(MethodFailed, match="convolution or linear layer") as caught:
            METHODS["not"].begin(problem("not", task=bare), np.ones(8))
        assert not caught.value.retryable

    def test_no_client_can_be_asked(self):
        """An instruction by this name is a mistake."""
        instruction = Instruction(operation="any", model=THETA, training=TrainingSettings())
        with pytest.raises(MethodFailed, match="asks nothing"):
            METHODS["not"].client_step(instruction, site(1, 1))

    def test_twice_is_nothing(self):
        """−(−W) = W."""
        once = METHODS["not"].begin(problem("not"), THETA).parameters
        np.testing.assert_array_equal(METHODS["not"].begin(problem("not"), once).parameters, THETA)


class TestGradientAscent:
    def test_targets_updates_are_averaged_by_their_examples(self):
        """θ + (1·Δ_u + 3·Δ_v)/4."""
        given = problem("gradient-ascent", targets=("u", "v"))
        replies = {
            "u": Reply(vector=np.full(17, 4.0), num_examples=1),
            "v": Reply(vector=np.full(17, 8.0), num_examples=3),
        }
        state = METHODS["gradient-ascent"].aggregate(given, UnlearningState(parameters=THETA), replies)
        np.testing.assert_allclose(state.parameters, THETA + 7.0)

    def test_one_step_climbs_the_gradient(self):
        """One full-batch epoch: Δ = +lr ∇ℓ."""
        method = METHODS["gradient-ascent"]
        given = problem("gradient-ascent", epochs=1, learning_rate=0.25, clip_norm=0)
        start = initial_parameters(TASK, 0)
        instruction = method.configure(given, UnlearningState(parameters=start))["u"]
        reply = method.client_step(instruction, site(6, 4))
        from unlearning.curvature import gradient

        np.testing.assert_allclose(reply.vector, 0.25 * gradient(TASK, start, examples(6)), rtol=1e-10)
        assert reply.num_examples == 6

    def test_a_long_gradient_is_clipped_to_the_bound(self):
        """Δ = lr · c · ∇ℓ/‖∇ℓ‖, and it still climbs."""
        from unlearning.curvature import gradient

        method = METHODS["gradient-ascent"]
        given = problem("gradient-ascent", epochs=1, learning_rate=0.25, clip_norm=0.01)
        start = initial_parameters(TASK, 0)
        instruction = method.configure(given, UnlearningState(parameters=start))["u"]
        slope = gradient(TASK, start, examples(6))
        assert np.linalg.norm(slope) > 0.01
        expected = 0.25 * 0.01 * slope / np.linalg.norm(slope)
        reply = method.client_step(instruction, site(6, 4))
        np.testing.assert_allclose(reply.vector, expected, rtol=1e-4)  # torch adds 1e-6 to the norm

    def test_the_default_bound_keeps_any_climb_finite(self):
        """No step is longer than learning rate · bound, here 10 · 5 in each of 20 full-batch steps."""
        method = METHODS["gradient-ascent"]
        given = problem("gradient-ascent", epochs=20, learning_rate=10)
        start = initial_parameters(TASK, 0)
        instruction = method.configure(given, UnlearningState(parameters=start))["u"]
        reply = method.client_step(instruction, site(6, 4))
        state = method.aggregate(given, UnlearningState(parameters=start), {"u": reply})
        assert 0 < np.linalg.norm(state.parameters - start) <= 1000

    def test_a_climb_without_a_bound_that_overflows_fails_for_good_with_the_step(self):
        """Nothing of it enters the model; the message says what to change.

        One input with both labels: wherever the climb starts, the loss rises with the difference of the outputs.
        """
        method = METHODS["gradient-ascent"]
        deep = replace(TASK, build_model=two_linear_layers, dtype=torch.float32)
        inputs, targets = torch.tensor([[1.0, -2.0], [1.0, -2.0]]), torch.tensor([0, 1])
        both_labels = Examples(inputs, targets, np.array(["a", "b"]))
        given = problem("gradient-ascent", task=deep, epochs=100, learning_rate=100, clip_norm=0)
        start = initial_parameters(deep, 0)
        instruction = method.configure(given, UnlearningState(parameters=start))["u"]
        reply = method.client_step(instruction, replace(site(6, 4), task=deep, forget=both_labels))
        assert not reply.vector.any()
        with pytest.raises(MethodFailed, match=r"at client u after \d+ step.*clip_norm") as caught:
            method.aggregate(given, UnlearningState(parameters=start), {"u": reply})
        assert not caught.value.retryable

    def test_a_target_without_an_example_does_not_enter_the_mean(self):
        """Only v's update moves the model."""
        given = problem("gradient-ascent", targets=("u", "v"))
        replies = {
            "u": Reply(vector=np.full(17, 4.0), num_examples=0),
            "v": Reply(vector=np.full(17, 8.0), num_examples=3),
        }
        state = METHODS["gradient-ascent"].aggregate(given, UnlearningState(parameters=THETA), replies)
        np.testing.assert_allclose(state.parameters, THETA + 8.0)


class TestFedAu:
    def test_heads_are_mixed_and_the_trunk_stays(self):
        """0.04·W_head + 0.96·mean(W_aux); the mean over two clients is not weighted."""
        given = problem("fedau", targets=("u", "v"))
        replies = {
            "u": Reply(vector=np.full(8, 1.0), num_examples=1),
            "v": Reply(vector=np.full(8, 3.0), num_examples=99),
        }
        state = METHODS["fedau"].aggregate(given, UnlearningState(parameters=THETA), replies)
        np.testing.assert_array_equal(state.parameters[:9], THETA[:9])
        np.testing.assert_allclose(state.parameters[9:], 0.04 * THETA[9:] + 0.96 * 2.0)

    def test_the_client_sends_its_head_only_and_trains_nothing_else(self):
        """Eight numbers; a fresh head that has moved."""
        method = METHODS["fedau"]
        start = initial_parameters(TASK, 5)
        instruction = method.configure(problem("fedau"), UnlearningState(parameters=start))["u"]
        reply = method.client_step(instruction, site(6, 4))
        assert reply.vector.shape == (8,)
        fresh = flatten(tiny_net().double())
        assert not np.allclose(reply.vector, start[9:])
        assert not np.allclose(reply.vector, fresh[9:])

    def test_a_head_of_another_length_is_refused(self):
        """A client with another model."""
        with pytest.raises(UpdateRefused):
            METHODS["fedau"].aggregate(
                problem("fedau"),
                UnlearningState(parameters=THETA),
                {"u": Reply(vector=np.zeros(7), num_examples=1)},
            )

    def test_a_target_without_an_example_does_not_enter_the_mean(self):
        """An empty class: only v's head is mixed in; if all are empty the deletion fails for good."""
        method, given = METHODS["fedau"], problem("fedau", targets=("u", "v"))
        instruction = method.configure(given, UnlearningState(parameters=THETA))["u"]
        none = replace(site(1, 4), forget=examples(1).select(np.array([], dtype=np.intp)))
        empty = method.client_step(instruction, none)
        assert (empty.vector.shape, empty.num_examples) == ((8,), 0)
        replies = {"u": empty, "v": Reply(vector=np.full(8, 3.0), num_examples=2)}
        state = method.aggregate(given, UnlearningState(parameters=THETA), replies)
        np.testing.assert_allclose(state.parameters[9:], 0.04 * THETA[9:] + 0.96 * 3.0)
        with pytest.raises(MethodFailed, match="nothing to unlearn") as caught:
            method.aggregate(given, UnlearningState(parameters=THETA), {"u": empty, "v": empty})
        assert not caught.value.retryable


class TestReferencePoints:
    def test_natural_leaves_the_model_as_it_is(self):
        """Finished at once."""
        state = METHODS["natural"].begin(problem("natural"), THETA)
        assert state.finished
        np.testing.assert_array_equal(state.parameters, THETA)

    def test_retraining_starts_from_fresh_weights_with_the_first_rounds_schedule(self):
        """Round 1 from the run's seed, as many rounds as were trained, the learning rate of each round."""
        method, given = METHODS["retrain"], problem("retrain", rounds_trained=2)
        state = method.begin(given, THETA)
        np.testing.assert_array_equal(state.parameters, initial_parameters(TASK, 0))
        rates = []
        while not state.finished:
            instructions = method.configure(given, state)
            assert sorted(instructions) == ["r", "s"]
            rates.append(instructions["r"].training.learning_rate)
            replies = {
                "r": Reply(vector=np.full(17, 1.0), num_examples=1),
                "s": Reply(vector=np.full(17, 5.0), num_examples=3),
            }
            state = method.aggregate(given, state, replies)
        assert rates == [0.5, 0.25]
        np.testing.assert_allclose(state.parameters, initial_parameters(TASK, 0) + 2 * 4.0)

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


def test_an_instruction_is_for_the_target_only():
    """NoT and Natural ask nobody; gradient ascent and FedAU only those that forget."""
    for name, asked in (("not", []), ("natural", []), ("gradient-ascent", ["u"]), ("fedau", ["u"])):
        state = UnlearningState(parameters=THETA)
        instructions = METHODS[name].configure(problem(name), state)
        assert sorted(instructions) == asked
        assert all(isinstance(item, Instruction) for item in instructions.values())
