"""A whole client's vector through one round of FedAvg, with numbers worked out by hand."""

import numpy as np
import pytest

from unlearning.certified.sensitivity import Weighting
from unlearning.certified.unit_vectors import vector_after_round

BEFORE, VECTOR = np.array([1.0, 2.0]), np.array([4.0, -2.0])
MODELS = {"u": (1, np.array([3.0, 0.0])), "v": (1, np.array([1.0, 4.0])), "w": (2, np.array([0.0, 2.0]))}
AFTER = np.array([1.0, 2.0])
CARRIED = {"u": np.array([8.0, 8.0]), "v": np.array([3.0, 0.0]), "w": np.array([0.0, 3.0])}


def after_round(
    weighting: Weighting, models=MODELS, unit="u", after=AFTER, vector=VECTOR, carried=CARRIED
) -> np.ndarray:
    return vector_after_round(
        vector, carried, models, unit=unit, before=BEFORE, after=after, weighting=weighting
    )


def test_renormalised_is_the_formula() -> None:
    """(1/4 J_v a + 2/4 J_w a)/(3/4) + (1/4)/(3/4) (θ⁺ − φ_u)."""
    expected = np.array([3.0, 0.0]) / 3 + np.array([0.0, 3.0]) * 2 / 3 + np.array([1.0 - 3.0, 2.0 - 0.0]) / 3
    np.testing.assert_allclose(after_round(Weighting.RENORMALISED), expected, rtol=1e-14)


def test_fixed_is_the_formula() -> None:
    """1/4 J_u a + 1/4 J_v a + 2/4 J_w a + 1/4 (θ − φ_u)."""
    expected = np.array([11.0 / 4, 8.0 / 4 + 3.0 * 2 / 4]) + np.array([1.0 - 3.0, 2.0 - 0.0]) / 4
    np.testing.assert_allclose(after_round(Weighting.FIXED), expected, rtol=1e-14)


@pytest.mark.parametrize("weighting", list(Weighting))
def test_of_a_client_that_took_no_part_nothing_enters(weighting) -> None:
    """Its vector is carried by those that did, with their weights in the round."""
    moved = after_round(weighting, unit="absent")
    np.testing.assert_allclose(moved, [11 / 4, 8 / 4 + 6 / 4], rtol=1e-14)


def test_alone_in_a_round_the_client_takes_all_of_it_back() -> None:
    """Without it the model would have stayed as it was: a + θ − θ⁺."""
    alone = {"u": MODELS["u"]}
    moved = after_round(Weighting.RENORMALISED, alone, after=alone["u"][1])
    np.testing.assert_array_equal(moved, VECTOR + BEFORE - alone["u"][1])


def test_without_a_client_of_no_weight_the_model_stays() -> None:
    """One without examples leaves a vector of zeros at zero."""
    models = {"u": (0, MODELS["u"][1]), "v": MODELS["v"]}
    nothing, after = np.zeros(2), MODELS["v"][1]
    still = dict.fromkeys(models, nothing)
    moved = after_round(Weighting.RENORMALISED, models, after=after, vector=nothing, carried=still)
    np.testing.assert_array_equal(moved, nothing)
