"""The Newton step and the jackknife against their dense formulas and against exact retraining."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from benchmarks.certified.jackknife import PrecomputedJackknife
from tests.unit.unlearning.certified.problems import LOGISTIC, blobs
from unlearning.certified.newton_step import InfluenceSettings, newton_step
from unlearning.curvature.gradients import gradient
from unlearning.errors import DataError, NumericalError
from unlearning.parameters import Vector
from unlearning.solvers.solution import Outcome
from unlearning.tasks.task import Examples
from unlearning.testing.convex import hessian, minimiser
from unlearning.training import initial_parameters

L2 = 0.05
SETTINGS = InfluenceSettings(l2=L2)
EXACT = replace(SETTINGS, damping=0.0)
BY_CG = replace(SETTINGS, dense_up_to=0, tolerance=1e-13, max_iterations=100)
DENSE_AND_CG = pytest.mark.parametrize("settings", [SETTINGS, BY_CG], ids=["dense", "cg"])


class Deletion(NamedTuple):
    """The minimiser over everyone, and who goes and stays."""

    w: Vector
    everyone: Examples
    forgotten: Examples
    retained: Examples


@pytest.fixture(scope="module")
def deletion() -> Deletion:
    """Ten of a hundred examples, those of one class first, so that what is left differs."""
    everyone = blobs(100)
    order = np.argsort(everyone.targets.numpy(), kind="stable")
    everyone = everyone.select(order)
    w = minimiser(LOGISTIC, everyone, L2, initial_parameters(LOGISTIC, 0))
    return Deletion(w, everyone, everyone.select(np.arange(10)), everyone.select(np.arange(10, 100)))


@DENSE_AND_CG
def test_the_newton_step_is_its_formula(deletion: Deletion, settings: InfluenceSettings) -> None:
    """w + (n−m)⁻¹ ((nH − mH_U)/(n−m) + γI)⁻¹ Σ_U ∇ℓ_u with dense matrices over all and over U."""
    w, everyone, forgotten, retained = deletion
    without = 100 * hessian(LOGISTIC, w, everyone, L2) - 10 * hessian(LOGISTIC, w, forgotten, L2)
    total = 10 * gradient(LOGISTIC, w, forgotten, l2=L2)
    expected = w + np.linalg.solve(without / 90 + 0.01 * np.eye(w.size), total) / 90
    step = newton_step(LOGISTIC, w, retained, forgotten, settings)
    np.testing.assert_allclose(step.parameters, expected, rtol=0, atol=1e-12)
    assert step.solution.outcome is Outcome.CONVERGED


def test_over_all_examples_it_is_the_jackknife_which_may_be_factorised_beforehand(deletion: Deletion) -> None:
    """w + n⁻¹ (H + γI)⁻¹ Σ_U ∇ℓ_u with the dense matrix over all."""
    w, everyone, forgotten, _ = deletion
    total = 10 * gradient(LOGISTIC, w, forgotten, l2=L2)
    damped = hessian(LOGISTIC, w, everyone, L2) + 0.01 * np.eye(w.size)
    expected = w + np.linalg.solve(damped, total) / 100
    step = newton_step(LOGISTIC, w, everyone, forgotten, SETTINGS).parameters
    np.testing.assert_allclose(step, expected, rtol=0, atol=1e-12)
    prepared = PrecomputedJackknife(LOGISTIC, w, everyone, SETTINGS)
    np.testing.assert_allclose(prepared.step(forgotten), step, rtol=0, atol=1e-13)
    assert prepared.size_bytes == w.size**2 * 8


def test_both_come_close_to_exact_retraining(deletion: Deletion) -> None:
    """Undamped: the Newton step within 10 % of the way, the jackknife within 30 %, and Newton closer."""
    w, everyone, forgotten, retained = deletion
    truth = minimiser(LOGISTIC, retained, L2, w)
    gaps = [
        float(np.linalg.norm(step.parameters - truth) / np.linalg.norm(w - truth))
        for step in (
            newton_step(LOGISTIC, w, retained, forgotten, EXACT),
            newton_step(LOGISTIC, w, everyone, forgotten, EXACT),
        )
    ]
    assert gaps[0] < 0.1
    assert gaps[0] < gaps[1] < 0.3


def test_nothing_forgotten_is_refused(deletion: Deletion) -> None:
    """A step from no gradient would be a deletion that never was."""
    nothing = deletion.forgotten.select(np.array([], dtype=np.intp))
    with pytest.raises(DataError):
        newton_step(LOGISTIC, deletion.w, deletion.retained, nothing, SETTINGS)


def test_an_indefinite_matrix_is_not_factorised(deletion: Deletion) -> None:
    """Negative damping makes one."""
    with pytest.raises(NumericalError):
        PrecomputedJackknife(LOGISTIC, deletion.w, deletion.everyone, replace(SETTINGS, damping=-1.0))
