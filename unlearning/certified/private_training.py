"""Training with differential privacy for single clients: a round's noisy mean, and what all rounds hide together.

    S clip norm   z noise multiplier   q sampling probability   N expected clients   k size of a group

    every client takes part with probability q, by itself and drawn in secret
    θ ← θ + (Σ_i Π_S(Δ_i) + z S ξ) / (q N)          ξ ~ N(0, I), Π_S the projection to the ball of radius S

What a client answers, or whether it does, changes the sum by at most S and nothing else: all weigh the same and q N is
fixed. So the models of all rounds are as hard to tell from those of rounds to which it added zero as a composition of
(sampled) Gaussian mechanisms of z. Of a group of k clients j ~ Binomial(k, q) take part, which add at most j S: a
mixture of Gaussians, of which nothing is lost to the general rule for groups. What is made of the models afterwards
cannot undo it.

Source: McMahan, Ramage, Talwar, Zhang, Learning Differentially Private Recurrent Language Models (2018), Algorithm 1
with fixed denominators; Ganesh, Tight Group-Level DP Guarantees for DP-SGD with Sampling via Mixture of Gaussians
Mechanisms (2024). The accountant is Google's `dp-accounting` (privacy loss distributions), which rounds upwards.
"""

import importlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce
from typing import Any

import numpy as np
import scipy  # its parts are imported at their first use

from unlearning.certified.noise import add_noise
from unlearning.certified.noisy_steps import project
from unlearning.certified.round_lengths import PrivateRounds
from unlearning.certified.secret_noise import KeyedNormal, derived_key
from unlearning.errors import ConfigurationError
from unlearning.parameters import Vector, content_hash

_INTERVAL = 5e-3
"""The grid of privacy losses: at 1,000 rounds ε is at most 1 % above that on a ten times finer one."""
_LEAST_NOISE, _LARGEST_NOISE = 1e-4, 1e4
_MOST_ROUNDS = 1_000_000
_MOST_EPSILON, _MOST_STEPS = 1_000, 10_000_000
"""Beyond either ε is not computed: the first, by the quick account of Rényi divergences, hides nothing."""
_ORDERS = (2, 3, 4, 6, 8, 16, 32, 64, 128, 256)
_MOST_KINDS, _STEP = 32, 1.05
"""Of rounds that are counted each by itself: each takes half a second or more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleAccount:
    """What a site says of its training with differential privacy for single samples.

    rounds: all steps so far, `noise_multiplier` 0 for any without noise. epsilon: for one sample; None: unbounded.
    """

    rounds: tuple[PrivateRounds, ...] = ()
    delta: float
    epsilon: float | None = 0.0

    def continues(self, before: "SampleAccount") -> bool:
        """Return whether it has all steps of the account `before`."""
        known = {replace(one, count=0): one.count for one in self.rounds}
        return all(one.count <= known.get(replace(one, count=0), 0) for one in before.rounds)

    @classmethod
    def counting(cls, rounds: Sequence[PrivateRounds], delta: float) -> "SampleAccount":
        """Return the account of these steps, those of one kind together.

        Raises:
            ConfigurationError: the accountant is not installed.
        """
        counts: dict[PrivateRounds, int] = {}
        for one in rounds:
            kind = replace(one, count=0)
            counts[kind] = counts.get(kind, 0) + one.count
        together = tuple(replace(kind, count=count) for kind, count in counts.items())
        return cls(rounds=together, delta=delta, epsilon=bounded(spent_epsilon(together, delta=delta)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateMean:
    """Makes a round's model of clients' updates.

    expected_clients: N. key: what sampling and noise are derived from, so that a round done again has the same ones.
    """

    clip_norm: float
    noise_multiplier: float
    sampling: float
    expected_clients: int
    key: bytes = field(repr=False)

    def takes_part(self, client: str, number: int) -> bool:
        """Tell whether a client takes part in the round of this number."""
        drawn = int.from_bytes(derived_key(self.key, "sample", str(number), client)[:8], "big")
        return self.sampling >= 1 or drawn < self.sampling * 2**64

    def model(self, before: Vector, updates: Iterable[Vector], number: int) -> Vector:
        """Return the model (d,) after the round of this number, in the type of `before`.

        updates: of each client (d,), in the order of their ids; there may be none. One that is not finite is zero.
        """
        start, clean = before.astype(np.float64), np.zeros(before.shape)
        for update in updates:
            if np.isfinite(update).all():
                clean += project(update.astype(np.float64), self.clip_norm)
        sigma = self.noise_multiplier * self.clip_norm
        what = (str(number), content_hash(before), content_hash(clean), float(sigma).hex())
        noisy = add_noise(clean, sigma, KeyedNormal(derived_key(self.key, "noise", *what)))
        made: Vector = (start + noisy / (self.sampling * self.expected_clients)).astype(before.dtype)
        return made


def require_accountant() -> Any:
    """Return the module `dp_accounting`.

    Raises:
        ConfigurationError: it is not installed.
    """
    try:
        return importlib.import_module("dp_accounting")
    except ImportError as exc:
        raise ConfigurationError(
            [
                "privacy: nothing counts (ε, δ) without dp-accounting. Install it: "
                "pip install 'flower-unlearning[privacy]'."
            ]
        ) from exc


def bounded(epsilon: float) -> float | None:
    """Return ε, or None where it is infinite: files and messages have no infinity."""
    return epsilon if math.isfinite(epsilon) else None


def spent_epsilon(rounds: Sequence[PrivateRounds], *, delta: float, group: int = 1) -> float:
    """Return the ε at `delta` of all rounds together, for any `group` clients; infinite where nothing is hidden.

    Where clients are sampled it is infinite as well above about 1,000 for one client, and for more than ten million
    rounds. Rounds of more than 32 kinds count as `_counted` says. A large group takes long: see `epsilon_of_group`.

    Raises:
        ConfigurationError: the accountant is not installed.
    """
    return _spent(_counted(rounds), delta, group)


def epsilon_of_group(rounds: Sequence[PrivateRounds], *, delta: float, group: int, limit: float) -> float:
    """Return the ε of `spent_epsilon` up to `limit`; where it is larger, one above the limit that it is at least.

    Of a few clients ε is never larger than of more, and quick to count: groups of 1, 2, 4 ... clients come first.
    """
    size = 1
    while size < group:
        if (epsilon := spent_epsilon(rounds, delta=delta, group=size)) > limit:
            return epsilon
        size *= 2
    return spent_epsilon(rounds, delta=delta, group=group)


@lru_cache(maxsize=64)
def _spent(rounds: tuple[PrivateRounds, ...], delta: float, group: int) -> float:
    accounting = require_accountant()
    if not rounds or not group:
        return 0.0
    if any(one.noise_multiplier < _LEAST_NOISE for one in rounds):
        return math.inf
    if all(one.sampling >= 1 for one in rounds):
        ratio = group * math.sqrt(sum(one.count / one.noise_multiplier**2 for one in rounds))
        return float(accounting.get_epsilon_gaussian(1 / ratio, delta))
    if _is_beyond(rounds, delta):
        return math.inf
    losses = [_loss(one.noise_multiplier, one.sampling, group).self_compose(one.count) for one in rounds]
    return float(reduce(lambda first, other: first.compose(other), losses).get_epsilon_for_delta(delta))


def least_noise_multiplier(rounds: PrivateRounds, *, epsilon: float, delta: float) -> float:
    """Return the least z, rounded up by at most a thousandth, with which rounds like these keep (ε, δ).

    Raises:
        ConfigurationError: the accountant is not installed, or no noise is enough.
    """

    def keeps(noise: float) -> bool:
        return spent_epsilon([replace(rounds, noise_multiplier=noise)], delta=delta) <= epsilon

    high = 0.25
    while not keeps(high):
        high *= 2
        if high > _LARGEST_NOISE:
            raise ConfigurationError(
                [f"privacy-epsilon: no noise keeps ε = {epsilon:g} over {rounds.count:,} rounds."]
            )
    low = high / 2
    while high > low * 1.001:
        middle = (low + high) / 2
        low, high = (low, middle) if keeps(middle) else (middle, high)
    return high


def most_rounds(
    rounds: PrivateRounds, *, epsilon: float, delta: float, earlier: Sequence[PrivateRounds] = ()
) -> int:
    """Return how many rounds like these keep (ε, δ) after `earlier` ones.

    Raises:
        ConfigurationError: the accountant is not installed.
    """

    def keeps(count: int) -> bool:
        return spent_epsilon([*earlier, replace(rounds, count=count)], delta=delta) <= epsilon

    if not keeps(1):
        return 0
    low, high = 1, 2
    while high < _MOST_ROUNDS and keeps(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low


def _counted(rounds: Iterable[PrivateRounds]) -> tuple[PrivateRounds, ...]:
    """Return rounds that hide no more than these, of at most `_MOST_KINDS` kinds.

    Of more, noise is rounded down and the share up, by at most 5 %; what is still of more counts as all of the weakest.
    """
    known = [
        replace(one, noise_multiplier=min(one.noise_multiplier, _LARGEST_NOISE))
        for one in rounds
        if one.count
    ]
    if len(known) <= _MOST_KINDS or any(one.noise_multiplier < _LEAST_NOISE for one in known):
        return tuple(known)
    counts: dict[tuple[int, int], int] = {}
    for one in known:
        steps = math.floor(_steps(one.noise_multiplier)), math.ceil(_steps(one.sampling))
        counts[steps] = counts.get(steps, 0) + one.count
    if len(counts) > _MOST_KINDS:
        noises, shares = zip(*counts, strict=True)
        counts = {(min(noises), max(shares)): sum(counts.values())}
    return tuple(
        PrivateRounds(noise_multiplier=_STEP**noise, sampling=min(1.0, _STEP**share), count=count)
        for (noise, share), count in sorted(counts.items())
    )


def _steps(value: float) -> float:
    return math.log(value) / math.log(_STEP)


def _is_beyond(rounds: Sequence[PrivateRounds], delta: float) -> bool:
    """Tell whether ε for one client, as Rényi divergences bound it, or the number of steps is too large to count."""
    if sum(one.count for one in rounds) > _MOST_STEPS:
        return True
    accounting, renyi = require_accountant(), importlib.import_module("dp_accounting.rdp")
    account = renyi.RdpAccountant(_ORDERS)
    for one in rounds:
        noise = accounting.GaussianDpEvent(one.noise_multiplier)
        account.compose(accounting.PoissonSampledDpEvent(one.sampling, noise), one.count)
    return bool(account.get_epsilon(delta) > _MOST_EPSILON)


@lru_cache(maxsize=64)
def _loss(noise_multiplier: float, sampling: float, group: int) -> Any:
    """Return the distribution of one round's privacy loss; clients' zero updates are its neighbours."""
    distributions = importlib.import_module("dp_accounting.pld.privacy_loss_distribution")
    if sampling >= 1:
        return distributions.from_gaussian_mechanism(
            noise_multiplier / group, value_discretization_interval=_INTERVAL
        )
    sizes = np.arange(group + 1)
    return distributions.from_mixture_gaussian_mechanism(
        noise_multiplier,
        sizes.astype(float).tolist(),
        scipy.stats.binom.pmf(sizes, group, sampling).tolist(),
        value_discretization_interval=_INTERVAL,
    )
