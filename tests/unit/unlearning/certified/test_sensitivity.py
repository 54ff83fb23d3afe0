"""The bounds hold where the truth can be computed, and their constants where they can be sampled."""

import numpy as np
import pytest

from tests.unit.unlearning.certified.problems import LOGISTIC, blobs
from unlearning.certified.linear_head import feature_norm
from unlearning.certified.newton_step import InfluenceSettings, newton_step
from unlearning.certified.sensitivity import (
    Constants,
    Inexactness,
    logistic_constants,
    minimiser_norm,
    newton_step_bound,
)
from unlearning.curvature.gradients import gradient
from unlearning.errors import ConfigurationError, NumericalError
from unlearning.tasks.task import Examples
from unlearning.testing.convex import hessian, minimiser
from unlearning.training import initial_parameters

L2 = 0.5
SIMPLE = Constants(
    gradient_bound=2.0, smoothness=4.0, strong_convexity=0.5, hessian_lipschitz=3.0, source="made up"
)


def constants(examples: Examples, weight_norm: float) -> Constants:
    return logistic_constants(
        feature_norm=feature_norm(LOGISTIC, examples),
        weight_norm=weight_norm,
        l2=L2,
        features_from="the data",
    )


def test_the_constants_of_logistic_regression_hold() -> None:
    """L, S, λ and M against gradients and Hessians of single examples at random weights."""
    examples = blobs(60)
    generator = np.random.default_rng(0)
    bound = constants(examples, weight_norm=4.0)
    seen = {"L": 0.0, "S": 0.0, "M": 0.0}
    for index in range(20):
        one = examples.select(np.array([index]))
        w, v = generator.standard_normal((2, 15))
        w *= 4.0 / np.linalg.norm(w) * generator.random()
        v *= 1e-3 / np.linalg.norm(v)
        eigenvalues = np.linalg.eigvalsh(hessian(LOGISTIC, w, one, L2))
        change = hessian(LOGISTIC, w + v, one, L2) - hessian(LOGISTIC, w - v, one, L2)
        seen["L"] = max(seen["L"], float(np.linalg.norm(gradient(LOGISTIC, w, one, l2=L2))))
        seen["S"] = max(seen["S"], float(eigenvalues[-1]))
        seen["M"] = max(seen["M"], float(np.linalg.norm(change, 2)) / 2e-3)
        assert eigenvalues[0] >= bound.strong_convexity - 1e-12
    assert 0.2 * bound.gradient_bound < seen["L"] <= bound.gradient_bound
    assert 0.2 * bound.smoothness < seen["S"] <= bound.smoothness
    assert seen["M"] <= bound.hessian_lipschitz


def test_the_hessians_lipschitz_constant_is_met_in_the_worst_case() -> None:
    """Two classes of probabilities (1 ± 1/√3)/2 and a third far off: 99 % of √2 R³/(3√3) is reached."""
    one = blobs(1)
    examples = Examples(one.inputs * 2, one.targets, one.ids)
    x = np.append(examples.inputs.numpy()[0], 1.0)
    radius = float(np.linalg.norm(x))
    odds = np.log((1 + 1 / np.sqrt(3)) / (1 - 1 / np.sqrt(3)))

    def weights(logits: np.ndarray) -> np.ndarray:
        matrix = np.outer(logits, x) / radius**2
        return np.concatenate([matrix[:, :4].ravel(), matrix[:, 4]])

    w = weights(np.array([odds, 0.0, -60.0]))
    v = weights(np.array([1.0, -1.0, 0.0]))
    v *= 1e-4 / np.linalg.norm(v)
    change = hessian(LOGISTIC, w + v, examples, 0.0) - hessian(LOGISTIC, w - v, examples, 0.0)
    bound = logistic_constants(
        feature_norm=radius, weight_norm=1.0, l2=L2, features_from=""
    ).hessian_lipschitz
    assert 0.99 * bound < np.linalg.norm(change, 2) / 2e-4 <= bound * (1 + 1e-6)


def test_the_feature_norm_counts_the_bias() -> None:
    """The largest √(‖x‖² + 1)."""
    inputs = blobs(9).inputs
    assert feature_norm(LOGISTIC, blobs(9)) == pytest.approx(max(np.sqrt(float(x @ x) + 1) for x in inputs))


@pytest.mark.parametrize("m", [1, 4])
@pytest.mark.parametrize("damping", [0.0, 0.01])
def test_influence_bounds_hold_for_exact_minimisers(m: int, damping: float) -> None:
    """‖θ_u − θ_r‖ for the Newton step, and a bound that grows with m."""
    examples = blobs(60)
    forgotten, retained = examples.select(np.arange(m)), examples.select(np.arange(m, 60))
    start = initial_parameters(LOGISTIC, 0)
    w = minimiser(LOGISTIC, examples, L2, start)
    truth = minimiser(LOGISTIC, retained, L2, start)
    known = constants(examples, minimiser_norm(l2=L2, num_classes=3))
    assert np.linalg.norm(w) <= minimiser_norm(l2=L2, num_classes=3)
    settings = InfluenceSettings(l2=L2, damping=damping)
    loose = Inexactness(damping=damping)
    counts = {"num_examples": 60, "num_deleted": m}
    newton = newton_step(LOGISTIC, w, retained, forgotten, settings).parameters
    bound = newton_step_bound(known, inexactness=loose, **counts).value
    assert 0 < np.linalg.norm(newton - truth) <= bound
    assert (
        newton_step_bound(known, num_examples=60, num_deleted=m + 1).value
        > newton_step_bound(known, **counts).value
    )


def test_the_newton_bound_is_its_formula() -> None:
    """M m² L²/(2λ³(n−m)²), and at most the published 2ML²m²/(λ³n²)."""
    value = newton_step_bound(SIMPLE, num_examples=100, num_deleted=10).value
    assert value == pytest.approx(3 * 100 * 4 / (2 * 0.125 * 8100))
    assert value < 2 * 3 * 4 * 100 / (0.125 * 10_000)
    left_over = Inexactness(gradient_norm=0.01, residual_norm=0.1)
    more = newton_step_bound(SIMPLE, num_examples=100, num_deleted=10, inexactness=left_over).value
    length, unfinished = 20 / 45, 1 / 45
    assert more == pytest.approx(3 * (length + unfinished) ** 2 + unfinished + 0.2)


@pytest.mark.parametrize(
    "impossible",
    [
        lambda: logistic_constants(feature_norm=1.0, weight_norm=1.0, l2=0.0, features_from=""),
        lambda: newton_step_bound(SIMPLE, num_examples=10, num_deleted=10),
    ],
    ids=["no L2 term, so λ is 0", "no example stays"],
)
def test_what_has_no_bound_is_refused(impossible) -> None:
    """A loss that is not strongly convex, and a deletion of everything."""
    with pytest.raises((ConfigurationError, NumericalError)):
        impossible()
