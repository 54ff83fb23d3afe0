"""What several releases amount to, and what may be said of them."""

import json
import math

import pytest

from unlearning.certified import (
    Account,
    AccountedRelease,
    Basis,
    Constants,
    Sensitivity,
    analytic_sigma,
    measured_sensitivity,
)
from unlearning.plain import from_plain, to_plain

CONSTANTS = Constants(
    gradient_bound=1, smoothness=2, strong_convexity=1, hessian_lipschitz=1, source="somewhere"
)


def release(name: str = "r", *, delta: float = 1.0, sigma: float = 8.0, bound: bool = True, unmet=()):
    found = Sensitivity(value=delta, is_bound=bound, source="a bound", constants=CONSTANTS)
    return AccountedRelease(name=name, number=3, sigma=sigma, sensitivity=found, unmet=unmet)


def account(*releases: AccountedRelease, epsilon: float | None = 2.0) -> Account:
    return Account(releases=releases, delta=1e-5, epsilon=epsilon)


def test_without_a_budget_several_releases_are_not_proven_together() -> None:
    """What is added up afterwards is a record; a promise is set beforehand."""
    assert account(release(), epsilon=None).basis is Basis.PROVEN
    assert account(release(), release(), epsilon=None).basis is Basis.EMPIRICAL
    assert account(release(), release(delta=0.0), epsilon=None).basis is Basis.PROVEN


def test_a_release_calibrated_to_an_epsilon_has_used_it() -> None:
    """The figures of a single proven release, and the word for it."""
    sigma = analytic_sigma(epsilon=0.7, delta=1e-5, sensitivity=1.0)
    values = Account(releases=(release(sigma=sigma),), delta=1e-5, epsilon=2.0).values()
    assert values["epsilon_of_this_release"] == pytest.approx(0.7, rel=1e-6)
    assert values["spent_epsilon"] == values["epsilon_of_this_release"]
    assert values["statement"].startswith("Certified: ")
    assert "use up ε = 0.7 of a budget of 2 (proven)" in values["statement"]


@pytest.mark.parametrize(
    ("one", "basis"),
    [
        (release(), Basis.PROVEN),
        (release(bound=False), Basis.EMPIRICAL),
        (release(unmet=("No.",)), Basis.EMPIRICAL),
        (release(sigma=0.0), Basis.NONE),
        (release(sigma=0.0, delta=0.0), Basis.PROVEN),
        (AccountedRelease(name="r", number=1, sigma=1.0, sensitivity=None), Basis.NONE),
    ],
)
def test_what_a_release_rests_on(one, basis) -> None:
    """A bound without a gap is a proof; without noise or a sensitivity there is nothing."""
    assert one.basis is basis
    assert account(one).statement.startswith(
        {
            Basis.PROVEN: "Certified",
            Basis.EMPIRICAL: "Calibrated noise, not certified",
            Basis.NONE: "Nothing",
        }[basis]
    )


def test_all_together_are_as_good_as_the_weakest() -> None:
    """The newest is certified by itself; of all together that is not said."""
    both = account(release(bound=False), release())
    assert both.basis is Basis.EMPIRICAL
    assert both.statement.startswith("Certified: ")
    assert "(empirical)" in both.statement


def test_after_a_release_without_noise_no_sum_is_claimed() -> None:
    """Nor given as a number: JSON has none for it."""
    values = account(release(sigma=0.0), release()).values()
    assert values["spent_epsilon"] is None
    assert values["basis"] == "none"
    assert "To whoever has seen all 2 releases nothing is claimed" in values["statement"]
    assert math.isfinite(values["epsilon_of_this_release"])


def test_without_a_budget_no_delta_is_spent() -> None:
    """There is no ε at which to say it."""
    assert account(release(), epsilon=None).spent_delta is None


@pytest.mark.parametrize("sensitivity", [release().sensitivity, measured_sensitivity(0.5, "here"), None])
def test_a_release_comes_back_from_json(sensitivity) -> None:
    """As the ledger keeps it."""
    one = AccountedRelease(name="r", number=4, sigma=0.5, sensitivity=sensitivity, unmet=("a", "b"))
    assert from_plain(AccountedRelease, json.loads(json.dumps(to_plain(one))), exactly=True) == one
