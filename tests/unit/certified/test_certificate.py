"""What a certificate claims, and when it must not."""

import json
from dataclasses import replace

import pytest

from tests.unit.certified.problems import LOGISTIC, QUADRATIC
from unlearning.certified import (
    Constants,
    Mechanism,
    Sensitivity,
    analytic_sigma,
    certificate,
    measured_sensitivity,
    unmet_assumptions,
)
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


def test_a_certificate_is_plain_values() -> None:
    """JSON takes it, and says whether it certifies."""
    made = certificate(epsilon=1.0, delta=1e-5, sensitivity=BOUND, unmet=())
    values = json.loads(json.dumps(made.values()))
    assert values["is_certified"] is True
    assert values["sensitivity"]["source"] == "a proof"


def test_the_classical_mechanism_is_refused_above_its_range() -> None:
    """No certificate comes of it."""
    with pytest.raises(ConfigurationError, match="analytic"):
        certificate(epsilon=2.0, delta=1e-5, sensitivity=BOUND, unmet=(), mechanism=Mechanism.CLASSICAL)


def test_logistic_regression_with_decay_meets_the_assumptions() -> None:
    """And without decay it is convex but not strongly."""
    assert unmet_assumptions(LOGISTIC, 0.1) == ()
    assert ["L2" in one for one in unmet_assumptions(LOGISTIC, 0.0)] == [True]


def test_a_network_and_another_loss_do_not() -> None:
    """Each lacks what the constants were derived for."""
    network = make_task(TaskSettings(dataset="digits", model="mlp"))
    assert ["one linear layer" in one for one in unmet_assumptions(network, 0.1)] == [True]
    assert ["cross entropy" in one for one in unmet_assumptions(QUADRATIC, 0.1)] == [True]
    assert len(unmet_assumptions(replace(network, loss=QUADRATIC.loss), 0.0)) == 3
