"""A budget refuses a release whose noise hides nothing, whatever its ε is."""

import pytest

from server.requests.privacy_budget import NoiseBudget, refuse_if_spent
from tests.raising import raises
from unlearning.certified.privacy_accountant import Account, AccountedRelease
from unlearning.certified.sensitivity import Sensitivity
from unlearning.errors import MethodFailed

ONE = Sensitivity(value=1.0, is_bound=True, source="")


def release(sigma: float) -> AccountedRelease:
    return AccountedRelease(name="r-1", number=1, sigma=sigma, sensitivity=ONE)


@pytest.mark.parametrize("sigma", [0.0, 5e-324, 1e-200, 1e-100, 1e-10, 0.1])
def test_a_release_that_goes_past_the_budget_is_refused_with_what_it_would_use(sigma: float) -> None:
    """Also where that is infinite, or no float64."""
    budget = NoiseBudget(epsilon=1.0, delta=1e-5, sigma=sigma)
    with raises(MethodFailed, "budget-spent"):
        refuse_if_spent(budget, [release(10.0)], release(sigma))


@pytest.mark.parametrize("sigma", [0.0, 5e-324, 1e-200])
def test_an_epsilon_that_is_no_number_is_none(sigma: float) -> None:
    """As the report and the certificate say that there is no bound."""
    assert Account(releases=(release(sigma),), delta=1e-5).spent_epsilon is None
