"""A solve as a state: checkpoints, restarts, and the order of its exchanges."""

import json
from collections.abc import Callable

import numpy as np
import pytest

from tests.unit.unlearning.solvers.matrices import random_vector, symmetric
from unlearning.errors import CheckpointError, NumericalError
from unlearning.solvers.cg_state import (
    Awaits,
    CgSettings,
    CgState,
    cg_advance,
    cg_begin,
    cg_direction,
    cg_precondition,
    cg_restart,
    cg_solution,
)
from unlearning.solvers.solution import Outcome

MATRIX = symmetric(np.geomspace(0.05, 5, 20))
B = random_vector(20)
SETTINGS = CgSettings(max_iterations=60, tolerance=1e-10)
SCALES = 1 / np.diag(MATRIX)


def exchange(state: CgState, matrix: np.ndarray = MATRIX) -> CgState:
    """One exchange, whichever the state awaits."""
    if state.awaits is Awaits.PRECONDITIONED:
        return cg_precondition(state, SCALES * cg_direction(state))
    return cg_advance(state, matrix @ cg_direction(state))


def driven(state: CgState, matrix: np.ndarray = MATRIX, limit: int = 1000) -> CgState:
    """Exchanges until the solve ends or `limit` is reached."""
    for _ in range(limit):
        if state.awaits is Awaits.NOTHING:
            break
        state = exchange(state, matrix)
    return state


def through_a_checkpoint(state: CgState) -> CgState:
    """As bytes and back."""
    arrays = {name: np.frombuffer(array.tobytes(), array.dtype) for name, array in state.arrays().items()}
    return CgState.from_arrays(arrays, json.loads(json.dumps(state.values())))


@pytest.mark.parametrize("preconditioned", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("start", [None, random_vector(20, seed=3)])
def test_a_solve_that_is_checkpointed_at_every_exchange_is_the_same(preconditioned, dtype, start) -> None:
    """Bit for bit, in every field, whatever it awaited."""
    settings = CgSettings(max_iterations=8, tolerance=1e-10, preconditioned=preconditioned)
    whole = resumed = cg_begin(B.astype(dtype), settings, start)
    while whole.awaits is not Awaits.NOTHING:
        resumed = through_a_checkpoint(resumed)
        whole, resumed = exchange(whole), exchange(resumed)
        assert resumed.values() == whole.values()
        for name, array in whole.arrays().items():
            assert array.dtype == dtype
            np.testing.assert_array_equal(resumed.arrays()[name], array)
    assert whole.num_iterations == 8


def test_a_restart_solves_the_other_matrix_from_the_last_iterate() -> None:
    """A client has dropped out: matrix and right-hand side are those of the others."""
    other, other_b = symmetric(np.geomspace(0.1, 4, 20), seed=9), random_vector(20, seed=9)
    half = driven(cg_begin(B, SETTINGS), limit=5)
    restarted = cg_restart(half, other_b)
    assert restarted.awaits is Awaits.RESIDUAL
    np.testing.assert_array_equal(cg_direction(restarted), half.x)
    solution = cg_solution(driven(restarted, other))
    assert solution.outcome is Outcome.CONVERGED
    np.testing.assert_allclose(solution.value, np.linalg.solve(other, other_b), rtol=1e-7)


def test_a_restart_drops_the_old_directions() -> None:
    """It goes on as a fresh solve from the same point would: they are conjugate for the old matrix."""
    other = symmetric(np.geomspace(0.1, 4, 20), seed=9)
    half = driven(cg_begin(B, SETTINGS), limit=5)
    restarted = driven(cg_restart(half), other, limit=4)
    fresh = driven(cg_begin(B, SETTINGS, half.x), other, limit=4)
    np.testing.assert_array_equal(restarted.x, fresh.x)
    assert restarted.curvatures == half.curvatures + fresh.curvatures
    assert restarted.residuals == half.residuals + fresh.residuals
    assert restarted.restarted_at == (5,)


def test_a_restart_at_zero_asks_for_no_product_of_zero() -> None:
    """An exchange costs seconds."""
    restarted = cg_restart(cg_begin(B, SETTINGS), 2 * B)
    assert restarted.awaits is Awaits.PRODUCT
    np.testing.assert_array_equal(cg_direction(restarted), 2 * B)


def test_iterations_are_counted_over_restarts() -> None:
    """Else a flapping client would keep a solve going for ever."""
    settings = CgSettings(max_iterations=6, tolerance=1e-10)
    state = driven(cg_restart(driven(cg_begin(B, settings), limit=4)))
    assert (state.outcome, state.num_iterations) == (Outcome.MAX_ITERATIONS, 6)


def test_negative_curvature_of_a_matrix_that_was_replaced_does_not_count() -> None:
    """The new matrix is positive definite, and its solution is a solution; the event stays on record."""
    stopped = driven(cg_begin(B, SETTINGS), MATRIX - 2 * np.eye(20))
    assert stopped.outcome is Outcome.NEGATIVE_CURVATURE
    solution = cg_solution(driven(cg_restart(stopped)))
    assert solution.outcome is Outcome.CONVERGED
    assert solution.negative_curvature_at == stopped.negative_curvature_at != ()


def test_an_unfinished_solve_is_no_converged_one() -> None:
    """Its iterate can be used, and says that it was cut short."""
    state = driven(cg_begin(B, SETTINGS), limit=3)
    assert cg_solution(state).outcome is Outcome.MAX_ITERATIONS
    np.testing.assert_array_equal(cg_solution(state).value, state.x)


@pytest.mark.parametrize(
    "misuse",
    [
        lambda: cg_advance(driven(cg_begin(B, SETTINGS)), B),
        lambda: cg_direction(driven(cg_begin(B, SETTINGS))),
        lambda: cg_precondition(cg_begin(B, SETTINGS), B),
    ],
    ids=["advance an ended one", "direction of an ended one", "precondition unasked"],
)
def test_an_answer_that_is_not_awaited_is_refused(misuse: Callable[[], object]) -> None:
    """A late reply must not be taken for another exchange's."""
    with pytest.raises(NumericalError):
        misuse()


def test_a_damaged_checkpoint_is_refused() -> None:
    """In the words of checkpoints."""
    state = cg_begin(B, SETTINGS)
    values = state.values() | {"awaits": "godot"}
    with pytest.raises(CheckpointError):
        CgState.from_arrays(state.arrays(), values)
    with pytest.raises(CheckpointError):
        CgState.from_arrays({}, state.values())
