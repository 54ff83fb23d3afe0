"""The bound on deletion by vectors that were carried along training in one place, where the truth can be computed."""

import numpy as np
import pytest

from benchmarks.certified.online import OnlineSettings, fixed_batches, retrained_on_batches, train_online
from benchmarks.certified.online_bound import StepCounts, online_bound
from benchmarks.certified.unit_vectors import forgotten_by_addition
from tests.unit.unlearning.certified.problems import LOGISTIC, blobs
from unlearning.certified.linear_head import feature_norm
from unlearning.certified.round_lengths import Premises
from unlearning.certified.rounding import Arithmetic
from unlearning.certified.sensitivity import Constants, Weighting, logistic_constants, trajectory_norm
from unlearning.errors import NumericalError
from unlearning.tasks.task import Examples
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


def premises(of: Constants, examples: Examples | None = None) -> Premises:
    radius = 1.0 if examples is None else feature_norm(LOGISTIC, examples)
    arithmetic = Arithmetic(num_inputs=5, num_classes=3, feature_norm=radius, batch_size=1)
    return Premises(constants=of, arithmetic=arithmetic)


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
        premises(constants(examples, norm), examples), steps, weighting, weight_norm=norm, one_unit=one_unit
    )
    error = np.linalg.norm(unlearned - truth)
    assert 0 < error <= bound.value


def test_the_online_bound_is_its_recursion_for_two_steps() -> None:
    """Fixed: x₁ = η(m/b)L; e₂ = η(m/b)S x₁ + ηM x₁²/2. Renormalised, one unit: x₁ = 2Lη m/(b−m), no S term."""
    step = StepCounts(learning_rate=0.1, batch_size=10, num_deleted=2)
    fixed = online_bound(premises(SIMPLE), [step, step], Weighting.FIXED, weight_norm=1.0).value
    assert fixed == pytest.approx(0.1 * 0.2 * 4 * 0.04 + 0.1 * 3 * 0.04**2 / 2)
    renormalised = online_bound(
        premises(SIMPLE), [step, step], Weighting.RENORMALISED, weight_norm=1.0, one_unit=True
    ).value
    assert renormalised == pytest.approx(0.1 * 3 * 0.1**2 / 2)


def test_a_batch_of_which_nothing_is_left_has_no_renormalised_bound() -> None:
    """Larger batches have one."""
    step = StepCounts(learning_rate=0.1, batch_size=2, num_deleted=2)
    with pytest.raises(NumericalError):
        online_bound(premises(SIMPLE), [step], Weighting.RENORMALISED, weight_norm=1.0)
