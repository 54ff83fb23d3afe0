"""The Gaussian's calibration against known values and against integrals, and the noise that is released."""

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import chi2, kstest, norm

from unlearning.certified.noise import (
    add_noise,
    analytic_sigma,
    classical_sigma,
    gaussian_delta,
    gaussian_epsilon,
    largest_ratio,
)
from unlearning.errors import ConfigurationError

KNOWN = {0.1: 30.749566, 0.5: 7.031827, 1.0: 3.730632, 5.0: 0.891868, 10.0: 0.499889}
"""σ for δ = 1e-5 and Δ = 1, as an independent library gives it, to six digits."""


def integrated_delta(epsilon: float, sigma: float, sensitivity: float) -> float:
    """∫ max(0, p(x) − e^ε q(x)) dx for p and q normal around Δ and 0: the definition of δ."""

    def excess(x: float) -> float:
        return max(0.0, norm.pdf(x, sensitivity, sigma) - math.exp(epsilon + norm.logpdf(x, 0.0, sigma)))

    crossing = sensitivity / 2 + epsilon * sigma**2 / sensitivity  # p > e^ε q to the right of it
    return float(quad(excess, crossing, crossing + 12 * sigma, epsabs=1e-14, limit=200)[0])


@pytest.mark.parametrize(("epsilon", "sigma"), KNOWN.items())
def test_the_analytic_sigma_equals_known_values(epsilon: float, sigma: float) -> None:
    """For δ = 1e-5 and Δ = 1, six digits."""
    assert analytic_sigma(epsilon=epsilon, delta=1e-5, sensitivity=1.0) == pytest.approx(sigma, abs=6e-7)


@pytest.mark.parametrize("epsilon", [0.05, 0.7, 3.0, 20.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-8])
def test_the_analytic_sigma_spends_exactly_delta_by_integration(epsilon: float, delta: float) -> None:
    """The excess probability, integrated from its definition, is δ for the calibrated σ."""
    sigma = analytic_sigma(epsilon=epsilon, delta=delta, sensitivity=0.3)
    assert integrated_delta(epsilon, sigma, 0.3) == pytest.approx(delta, rel=1e-5, abs=0)


def test_the_stated_delta_equals_the_integral() -> None:
    """Also far from any calibration."""
    stated = gaussian_delta(epsilon=0.4, sigma=2.0, sensitivity=1.5)
    assert stated == pytest.approx(integrated_delta(0.4, 2.0, 1.5), rel=1e-9)


@pytest.mark.parametrize(
    ("epsilon", "ratio", "delta"),
    [
        (0.0, 1e-6, 3.989422804014e-7),
        (1e-9, 1e-9, 8.331547062934e-11),
        (0.1, 0.05, 4.461918648847e-4),
        (1.0, 0.3, 5.488749644613e-5),
        (1e3, 40.0, 2.536296514957e-7),
        (1e3, 50.0, 0.9999996803265),
        (1e5, 440.0, 1.732340774158e-13),
    ],
)
def test_delta_is_that_of_arithmetic_with_eighty_digits(epsilon: float, ratio: float, delta: float) -> None:
    """Small differences of large terms, and terms that alone are no float64."""
    found = gaussian_delta(epsilon=epsilon, sigma=1.0, sensitivity=ratio)
    assert found == pytest.approx(delta, rel=1e-6, abs=0)


@pytest.mark.parametrize("sigma", [1e-5, 1e-10, 1e-100, 1e-160, 1e-308, 5e-324])
def test_hardly_any_noise_hides_hardly_anything(sigma: float) -> None:
    """ε is (Δ/σ)²/2 there, and infinite where that is no float64; nothing overflows on the way."""
    epsilon = gaussian_epsilon(delta=1e-5, sigma=sigma, sensitivity=1.0)
    assert epsilon == pytest.approx((1 / sigma) * (1 / sigma) / 2, rel=1e-3)


@pytest.mark.parametrize("delta", [1e-300, 1e-5, 1 - 1e-12])
@pytest.mark.parametrize("epsilon", [1e-300, 1e-15, 1e-3, 1.0, 1e5, 1e300])
def test_every_budget_is_worth_a_ratio(epsilon: float, delta: float) -> None:
    """And the ratio is what it was worth."""
    ratio = largest_ratio(epsilon=epsilon, delta=delta)
    assert 0 < ratio < math.inf
    if 1e-5 <= epsilon <= 1e5 and delta == 1e-5:
        found = gaussian_delta(epsilon=epsilon, sigma=1.0, sensitivity=ratio)
        assert found == pytest.approx(delta, rel=1e-9, abs=0)


def test_the_classical_sigma_breaks_its_promise_above_one_and_is_refused() -> None:
    """At ε = 10 the formula gives 0.484, whose δ is above 1e-5; it is refused with that reason."""
    formula = math.sqrt(2 * math.log(1.25e5)) / 10
    assert gaussian_delta(epsilon=10.0, sigma=formula, sensitivity=1.0) > 1e-5
    with pytest.raises(ConfigurationError):
        classical_sigma(epsilon=10.0, delta=1e-5, sensitivity=1.0)
    with pytest.raises(ConfigurationError):
        classical_sigma(epsilon=1.0, delta=1e-5, sensitivity=1.0)


def test_the_classical_sigma_is_its_formula_and_more_than_the_analytic() -> None:
    """Δ √(2 ln(1.25/δ))/ε; it wastes some noise where it holds."""
    classical = classical_sigma(epsilon=0.5, delta=1e-5, sensitivity=2.0)
    assert classical == pytest.approx(2 * math.sqrt(2 * math.log(125_000)) / 0.5)
    assert classical > analytic_sigma(epsilon=0.5, delta=1e-5, sensitivity=2.0)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 50.0])
def test_epsilon_and_sigma_are_inverse(epsilon: float) -> None:
    """The ε that a calibrated σ spends is the ε it was calibrated to."""
    sigma = analytic_sigma(epsilon=epsilon, delta=1e-5, sensitivity=1.0)
    assert gaussian_epsilon(delta=1e-5, sigma=sigma, sensitivity=1.0) == pytest.approx(epsilon, rel=1e-8)


def test_no_noise_hides_nothing() -> None:
    """Without noise δ is 1 and ε infinite, unless nothing differs."""
    assert gaussian_delta(epsilon=1.0, sigma=0.0, sensitivity=0.1) == 1.0
    assert gaussian_epsilon(delta=1e-5, sigma=0.0, sensitivity=0.1) == math.inf
    assert gaussian_delta(epsilon=1.0, sigma=0.0, sensitivity=0.0) == 0.0
    assert gaussian_epsilon(delta=1e-5, sigma=0.0, sensitivity=0.0) == 0.0


def test_every_wrong_number_is_named_at_once() -> None:
    """ε, δ and Δ in one message."""
    with pytest.raises(ConfigurationError) as refused:
        analytic_sigma(epsilon=0.0, delta=1.0, sensitivity=-1.0)
    assert len(refused.value.problems) == 3


@pytest.mark.parametrize("sigma", [-1e-9, math.nan, math.inf])
def test_noise_that_cannot_be_is_not_added(sigma: float) -> None:
    """A negative or infinite σ, or none at all."""
    with pytest.raises(ConfigurationError):
        add_noise(np.ones(3), sigma, np.random.default_rng(0))


def test_released_noise_has_the_stated_sigma() -> None:
    """40,000 entries: the sum of squares lies within the χ² 99.9 % range and they are normal around 0.

    A σ that is 3 % off fails. The seed is fixed, so the test is no lottery.
    """
    size, sigma = 40_000, 0.25
    theta = np.linspace(-1, 1, size)
    noise = add_noise(theta, sigma, np.random.default_rng(7)) - theta
    total = float((noise / sigma) @ (noise / sigma))
    assert chi2.ppf(0.0005, size) < total < chi2.ppf(0.9995, size)
    assert not chi2.ppf(0.0005, size) < total * 1.03**2 < chi2.ppf(0.9995, size)
    assert kstest(noise / sigma, "norm").pvalue > 0.001
    assert abs(np.corrcoef(noise[1:], noise[:-1])[0, 1]) < 4 / math.sqrt(size)


def test_released_keeps_the_dtype_and_the_argument() -> None:
    """The model that came in is as it was; the seed decides the noise."""
    theta = np.ones(8, dtype=np.float32)
    first, again = (add_noise(theta, 1.0, np.random.default_rng(3)) for _ in range(2))
    assert first.dtype == np.float32
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(theta, np.ones(8))
    assert not np.array_equal(first, add_noise(theta, 1.0, np.random.default_rng(4)))
