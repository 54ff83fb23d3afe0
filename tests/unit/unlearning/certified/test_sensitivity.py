"""The bounds hold where the truth can be computed, and their constants where they can be sampled."""

import numpy as np
import pytest

from tests.unit.unlearning.certified.problems import LOGISTIC, blobs
from unlearning.certified import (
    Arithmetic,
    Constants,
    Ground,
    Inexactness,
    InfluenceSettings,
    OnlineSettings,
    StepCounts,
    Weighting,
    feature_norm,
    fixed_batches,
    forgotten_by_addition,
    infinitesimal_jackknife,
    jackknife_bound,
    logistic_constants,
    minimiser_norm,
    newton_step,
    newton_step_bound,
    online_bound,
    retrained_on_batches,
    train_online,
    trajectory_norm,
)
from unlearning.curvature import gradient
from unlearning.errors import ConfigurationError, NumericalError
from unlearning.tasks.task import Examples
from unlearning.testing.convex import hessian, minimiser
from unlearning.training import TrainingSettings, initial_parameters

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


def ground(of: Constants, examples: Examples | None = None) -> Ground:
    radius = 1.0 if examples is None else feature_norm(LOGISTIC, examples)
    arithmetic = Arithmetic(num_inputs=5, num_classes=3, feature_norm=radius, batch_size=1)
    return Ground(constants=of, arithmetic=arithmetic)


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
    """‖θ_u − θ_r‖ for the Newton step and the jackknife, and a Newton bound that grows with m."""
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
    jackknife = infinitesimal_jackknife(LOGISTIC, w, examples, forgotten, settings).parameters
    bound = newton_step_bound(known, inexactness=loose, **counts).value
    assert 0 < np.linalg.norm(newton - truth) <= bound
    assert 0 < np.linalg.norm(jackknife - truth) <= jackknife_bound(known, inexactness=loose, **counts).value
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
    "rate", [1e-8, 0.05], ids=["rounding", "steps"]
)  # with the first, rounding is all there is
@pytest.mark.parametrize("weighting", list(Weighting))
@pytest.mark.parametrize("one_unit", [True, False])
def test_the_online_bound_holds(weighting: Weighting, one_unit: bool, rate: float) -> None:
    """‖w + Σa_u − w_retrained‖ of three examples, carried as one unit and as three."""
    examples = blobs(60)
    training = TrainingSettings(epochs=3, batch_size=20, learning_rate=rate, seed=1)
    plan, start, gone = fixed_batches(60, training), initial_parameters(LOGISTIC, 0), np.array([3, 17, 40])
    units = {"all": gone} if one_unit else {str(index): np.array([index]) for index in gone}
    settings = OnlineSettings(l2=L2, weighting=weighting)
    trained = train_online(LOGISTIC, start, examples, plan, units, settings)
    truth = retrained_on_batches(LOGISTIC, start, examples, plan, gone, settings)
    unlearned = forgotten_by_addition(trained.parameters, trained.vectors, units)
    norm = trajectory_norm(
        start_norm=float(np.linalg.norm(start)), feature_norm=feature_norm(LOGISTIC, examples), l2=L2
    )
    assert np.linalg.norm(trained.parameters) <= norm
    steps = [
        StepCounts(
            learning_rate=step.learning_rate,
            batch_size=len(step.positions),
            num_deleted=int(np.isin(step.positions, gone).sum()),
        )
        for step in plan
    ]
    bound = online_bound(
        ground(constants(examples, norm), examples), steps, weighting, weight_norm=norm, one_unit=one_unit
    )
    error = np.linalg.norm(unlearned - truth)
    assert 0 < error <= bound.value


def test_the_online_bound_is_its_recursion_for_two_steps() -> None:
    """Fixed: x₁ = η(m/b)L; e₂ = η(m/b)S x₁ + ηM x₁²/2. Renormalised, one unit: x₁ = 2Lη m/(b−m), no S term."""
    step = StepCounts(learning_rate=0.1, batch_size=10, num_deleted=2)
    fixed = online_bound(ground(SIMPLE), [step, step], Weighting.FIXED, weight_norm=1.0).value
    assert fixed == pytest.approx(0.1 * 0.2 * 4 * 0.04 + 0.1 * 3 * 0.04**2 / 2)
    renormalised = online_bound(
        ground(SIMPLE), [step, step], Weighting.RENORMALISED, weight_norm=1.0, one_unit=True
    ).value
    assert renormalised == pytest.approx(0.1 * 3 * 0.1**2 / 2)


def test_a_batch_of_which_nothing_is_left_has_no_renormalised_bound() -> None:
    """It is refused with what to change."""
    step = StepCounts(learning_rate=0.1, batch_size=2, num_deleted=2)
    with pytest.raises(NumericalError, match="larger batches"):
        online_bound(ground(SIMPLE), [step], Weighting.RENORMALISED, weight_norm=1.0)


def test_a_loss_that_is_not_strongly_convex_has_no_constants() -> None:
    """Without an L2 term λ is 0."""
    with pytest.raises(ConfigurationError, match="L2 term"):
        logistic_constants(feature_norm=1.0, weight_norm=1.0, l2=0.0, features_from="")


def test_all_cannot_be_deleted() -> None:
    """The bound needs an example that stays."""
    with pytest.raises(NumericalError, match="at least one"):
        newton_step_bound(SIMPLE, num_examples=10, num_deleted=10)
