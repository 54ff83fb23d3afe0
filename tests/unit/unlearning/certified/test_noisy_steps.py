"""The bounds of noisy fine-tuning, beside the divergence of chains in one dimension that quadrature gives."""

import math
from dataclasses import replace

import numpy as np
import pytest

from unlearning.certified.noise import gaussian_delta
from unlearning.certified.noisy_steps import NoisySteps, noisy_step, project

CELLS = 601


def divergence(of: NoisySteps, sigma: float, epsilon: float, *, apart: bool = False) -> float:
    """Compute the δ(ε) of two chains from the two ends of the ball, by quadrature on a grid.

    Each is pushed outwards from zero as far as a step may go; `apart`: each away from the other, wherever it is.
    """
    span = 2 * of.radius + of.steps * of.update_radius + 9 * sigma * math.sqrt(of.steps)
    grid, width = np.linspace(-span, span, CELLS, retstep=True)

    def density(points: np.ndarray, side: float) -> np.ndarray:
        """Of the model after a step from each of `points`, a column each."""
        push = np.full(len(points), side) if apart else np.sign(points)
        moved = of.contraction * points + of.update_radius * push
        if of.clips_models:
            moved = np.clip(points + 3 * of.radius * push, -of.radius, of.radius)
        return np.exp(-0.5 * ((grid[:, None] - moved) / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))

    first, second = (
        np.linalg.matrix_power(density(grid, side) * width, of.steps - 1)
        @ density(np.array([side * of.radius]), side)
        for side in (1.0, -1.0)
    )
    return float(np.clip(first - math.exp(epsilon) * second, 0, None).sum() * width)


UPDATES = [
    NoisySteps(radius=1.0, update_radius=update, contraction=contraction, steps=steps)
    for update in (0.0, 0.3)
    for contraction in (1.0, 0.7)
    for steps in (1, 2, 5)
]
MODELS = [
    NoisySteps(radius=1.0, update_radius=0.0, contraction=1.0, steps=steps, clips_models=True)
    for steps in (1, 2, 4)
]


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
@pytest.mark.parametrize("of", [*UPDATES, *MODELS], ids=str)
def test_no_chain_is_easier_to_tell_than_the_bound_says(of: NoisySteps, epsilon: float):
    """Of one map for both, which pushes them apart."""
    bound = of.delta(epsilon=epsilon, sigma=1.0)
    assert divergence(of, 1.0, epsilon) <= bound * 1.001 + 1e-7


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
@pytest.mark.parametrize("of", UPDATES, ids=str)
def test_the_bound_on_clipped_updates_is_reached(of: NoisySteps, epsilon: float):
    """By chains whose every update points away from the other: nothing smaller would hold."""
    bound = of.delta(epsilon=epsilon, sigma=1.0)
    assert divergence(of, 1.0, epsilon, apart=True) == pytest.approx(bound, rel=1e-3, abs=1e-9)


def test_clipped_models_must_have_one_map():
    """Their bound is of one map for both: of two that pull apart nothing is forgotten, however many steps."""
    of = NoisySteps(radius=1.0, update_radius=0.0, contraction=1.0, steps=4, clips_models=True)
    assert divergence(of, 1.0, 0.5, apart=True) > 5 * of.delta(epsilon=0.5, sigma=1.0)


@pytest.mark.parametrize("of", [*UPDATES, *MODELS], ids=str)
def test_the_least_noise_meets_the_guarantee(of: NoisySteps):
    """And a little less does not."""
    sigma = of.sigma(epsilon=1.0, delta=1e-5)
    assert of.delta(epsilon=1.0, sigma=sigma) <= 1e-5 * (1 + 1e-9)
    assert of.delta(epsilon=1.0, sigma=0.99 * sigma) > 1e-5


@pytest.mark.parametrize("steps", [0, 1, 2, 1000])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.0999])
@pytest.mark.parametrize("epsilon", [1e-9, 1e-3, 1.0, 4.559017422312518, 100.0])
@pytest.mark.parametrize("clips_models", [False, True])
def test_every_budget_has_its_least_noise(steps: int, delta: float, epsilon: float, clips_models: bool):
    """The search finds it whatever it is beside that of one step: all of it, or a ten-thousand-millionth."""
    of = NoisySteps(radius=2.0, update_radius=5.0, contraction=0.5, steps=steps, clips_models=clips_models)
    sigma = of.sigma(epsilon=epsilon, delta=delta)
    # δ is a difference of two probabilities, and so right to 1e-16
    assert of.delta(epsilon=epsilon, sigma=sigma) <= delta * (1 + 1e-9) + 1e-16
    assert of.delta(epsilon=epsilon, sigma=0.99 * sigma) > delta


def test_without_steps_it_is_the_noise_of_the_whole_ball():
    """Output perturbation: σ of 7.5, 2.8 and 1.2 times the radius for ε of 1, 3 and 8, as `gaussian_delta` has it."""
    of = NoisySteps(radius=2.0, update_radius=5.0, contraction=0.5, steps=0)
    assert of.reach == 4.0
    found = {epsilon: of.sigma(epsilon=epsilon, delta=1e-5) / of.radius for epsilon in (1.0, 3.0, 8.0)}
    assert found == pytest.approx({1.0: 7.46, 3.0: 2.78, 8.0: 1.20}, rel=0.01)


def test_what_must_be_hidden_by_hand():
    """μσ of the last model and of one step: with updates clipped, with models clipped and without steps."""
    updates = NoisySteps(radius=5.0, update_radius=2.0, contraction=0.5, steps=2)
    assert updates.spread == pytest.approx(math.sqrt(1 + 0.25))
    assert updates.reach == pytest.approx((2 * 5 * 0.25 + 2 * 2 * 1.5) / math.sqrt(1.25))
    assert updates.reach_of_a_step == pytest.approx(2 * 5 * 0.5 + 2 * 2)
    for ball in (replace(updates, clips_models=True), replace(updates, steps=0)):
        assert (ball.spread, ball.reach_of_a_step) == (1.0, 10.0)


def test_a_step_by_hand():
    """Clipped, contracted, and where models are clipped both together."""
    point, update = np.array([3.0, 4.0]), np.array([0.0, 10.0])
    clipped = NoisySteps(radius=5.0, update_radius=2.0, contraction=0.5, steps=1)
    np.testing.assert_array_equal(noisy_step(point, update, clipped, lambda clean: clean + 1), [2.5, 5.0])
    models = NoisySteps(radius=5.0, update_radius=2.0, contraction=0.5, steps=1, clips_models=True)
    np.testing.assert_allclose(
        noisy_step(point, update, models, lambda clean: clean), project(point + update, 5.0)
    )
    assert np.linalg.norm(project(point + update, 5.0)) == pytest.approx(5.0)


def test_monte_carlo_in_ten_dimensions():
    """Along the line between the two starts, the best test there is tells no more than δ(ε)."""
    of = NoisySteps(radius=1.0, update_radius=0.2, contraction=0.9, steps=4)
    generator, runs, epsilon = np.random.default_rng(3), 20_000, 0.5
    line = np.full(10, 1 / math.sqrt(10))

    def ends(side: float) -> np.ndarray:
        points = np.tile(side * line, (runs, 1))
        for _ in range(of.steps):
            towards = points @ line
            push = of.update_radius * np.sign(towards)[:, None] * line
            points = of.contraction * points + push + generator.standard_normal(points.shape)
        return points @ line

    first, second = ends(1.0), ends(-1.0)
    found = max(
        (first > cut).mean() - math.exp(epsilon) * (second > cut).mean() for cut in np.linspace(-4, 4, 81)
    )
    assert found <= of.delta(epsilon=epsilon, sigma=1.0) + 3 * math.sqrt(0.25 / runs)
    assert of.delta(epsilon=epsilon, sigma=1.0) == pytest.approx(
        gaussian_delta(epsilon=epsilon, sigma=1.0, sensitivity=of.reach)
    )
