"""What a certificate claims, and when it must not."""

from dataclasses import replace

import pytest
from torch import nn

from tests.unit.unlearning.certified.problems import LOGISTIC, QUADRATIC
from unlearning.certified.linear_head import linear_layer
from unlearning.certified.noise import Mechanism, analytic_sigma
from unlearning.certified.noise_certificate import certificate, unmet_assumptions, unmet_convexity
from unlearning.certified.sensitivity import Constants, Sensitivity, measured_sensitivity
from unlearning.errors import ConfigurationError
from unlearning.tasks import TaskSettings, make_task

CONSTANTS = Constants(
    gradient_bound=1.0,
    smoothness=1.0,
    strong_convexity=0.5,
    hessian_lipschitz=1.0,
    source="known by construction",
)
BOUND = Sensitivity(value=0.2, is_bound=True, source="a proof", constants=CONSTANTS)


def test_a_bound_with_all_assumptions_certifies() -> None:
    """ε, δ and the noise are in the statement, and σ is the analytic one."""
    made = certificate(epsilon=1.0, delta=1e-5, sensitivity=BOUND, unmet=())
    assert made.is_certified
    assert made.sigma == analytic_sigma(epsilon=1.0, delta=1e-5, sensitivity=0.2)
    assert made.statement.startswith("Certified (1, 1e-05)-unlearning")
    assert "a proof; constants: known by construction" in made.statement


def test_a_measured_distance_certifies_nothing() -> None:
    """The words are "not certified", with the source of the number."""
    made = certificate(
        epsilon=1.0, delta=1e-5, sensitivity=measured_sensitivity(0.2, "to one retrained model"), unmet=()
    )
    assert not made.is_certified
    assert made.statement.startswith("Calibrated noise, not certified")
    assert "to one retrained model" in made.statement


def test_an_unmet_assumption_certifies_nothing() -> None:
    """Also with a bound: the bound's premise is gone."""
    made = certificate(epsilon=1.0, delta=1e-5, sensitivity=BOUND, unmet=("The model is a network.",))
    assert not made.is_certified
    assert "The model is a network." in made.statement


def test_the_classical_mechanism_is_refused_above_its_range() -> None:
    """No certificate comes of it."""
    with pytest.raises(ConfigurationError):
        certificate(epsilon=2.0, delta=1e-5, sensitivity=BOUND, unmet=(), mechanism=Mechanism.CLASSICAL)


def test_logistic_regression_with_decay_meets_the_assumptions() -> None:
    """And without decay it is convex but not strongly."""
    assert unmet_assumptions(LOGISTIC, 0.1) == ()
    assert ["L2" in one for one in unmet_assumptions(LOGISTIC, 0.0)] == [True]


def test_a_network_and_another_loss_do_not() -> None:
    """Each lacks what the constants were derived for."""
    network = make_task(TaskSettings(dataset="digits", model="mlp", dtype="float64"))
    assert ["one linear layer" in one for one in unmet_assumptions(network, 0.1)] == [True]
    assert ["cross entropy" in one for one in unmet_assumptions(QUADRATIC, 0.1)] == [True]
    assert len(unmet_assumptions(replace(network, loss=QUADRATIC.loss), 0.0)) == 3


def test_float32_is_not_certified() -> None:
    """Its rounding can be thousands of times the bound; the sentence says what to do."""
    single = make_task(TaskSettings(dataset="digits"))
    assert ["train in float64" in one for one in unmet_assumptions(single, 0.1)] == [True]
    assert unmet_convexity(single, 0.1) == ()


class Doubled(nn.Linear):
    """A layer that calls itself linear."""

    def forward(self, inputs):
        return super().forward(inputs).pow(2)


def test_a_layer_that_is_only_derived_from_a_linear_one_is_not_taken_for_one() -> None:
    """Nor is a frozen one, or one with a norm of its own: the constants are not theirs."""
    frozen = nn.Linear(4, 3)
    frozen.bias.requires_grad_(False)
    for layer in (Doubled(4, 3), frozen, nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))):
        task = replace(LOGISTIC, build_model=lambda layer=layer: nn.Sequential(layer))
        assert linear_layer(task) is None
    assert linear_layer(LOGISTIC) is not None
