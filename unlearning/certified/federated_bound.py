"""How far FedAvg's unlearned model can be from the retrained one: composed through local steps and averaging.

    θ, θ⁺    the model before and after a round       φ_i(θ)   client i's local model       J_i   its derivative at θ
    w_i      n_i by Σ n_j over those that took part   v_i      w_i/(1−w_U), the weights without U
    U        the clients that are forgotten, w_U = Σ_{u∈U} w_u
    a_u      u's vector, of length |a_u|; D_u = w_u/(1−w_u) (θ⁺ − φ_u(θ)) is what the round adds to it
    z        from θ to the model of a federation that never had U          e   bound on ‖z − Σ_{u∈U} a_u‖
    η, K_i   learning rate, i's number of steps       λ, S, M  constants of every batch's loss, L2 term included

One step of SGD multiplies distances by at most ρ = max(|1 − ηλ|, |1 − ηS|), and its derivative changes by at most
ηM a unit. So i's local training has ‖J_i‖ ≤ ρ^K_i and leaves at most κ_i/2 ‖z‖² beside J_i z, where
κ ← ρκ + ηMρ^{2k} over its steps k. Averaging is linear, so a round gives

renormalised   e ← Σ_{i∉U} v_i (ρ^K_i e + κ_i x²/2)
                   + Σ_{u∈U} (w_U−w_u)/(1−w_u) g |a_u| + Σ_{u∈U} (w_U−w_u)/(1−w_U) ‖D_u‖
fixed          e ← (Σ_{i∉U} w_i ρ^K_i + w_U) e + Σ_{i∉U} w_i κ_i x²/2 + Σ_{u∈U} w_u h_u Σ_{u∈U} |a_u|

with x ≥ ‖z‖ the smaller of e + Σ_{u∈U} |a_u| and what the same steps give for z itself,
x ← Σ_{i∉U} v_i ρ^K_i x + ‖D_U‖ (the second keeps long trainings from growing without bound). For one client
the last two sums of the first line are nothing; g bounds ‖J_i − J_j‖ and h_u bounds ‖I − J_u‖. The lengths and the
D_u are those of this run, known to the server, so the bound needs no bound on gradients or weights and holds
whatever noise was added before. A momentum would break the first sentence. Rounding is left out of account.

Earlier releases: the model that release j gave away is the same in both worlds to whoever has seen it, so their noise
differs by up to Δ_j, and from there on the clean models do. Hence e ← e + Δ_j after release j. With that the Δ of
successive releases may be added up by `Accountant`, whose composition is for those who see all of them.

Derived here; the recursion that it bounds is that of `unlearning.certified.federated`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from unlearning.certified.sensitivity import Constants, Sensitivity, Weighting
from unlearning.errors import NumericalError


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalWork:
    """One client's part in a round: n_i, K_i, and ‖θ⁺ − φ_i(θ)‖."""

    num_examples: int
    num_steps: int
    distance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundLengths:
    """What the bound must know of a round; lengths only, no vector.

    number: of the round, among all that move the model.
    learning_rate: η of its local steps. weight_decay: their μ.
    clients: who took part. moved: ‖θ⁺ − θ‖.
    vectors: |a_u| before the round, of the forgettable clients that had a vector.
    """

    number: int
    learning_rate: float
    weight_decay: float
    clients: Mapping[str, LocalWork]
    moved: float
    vectors: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierRelease:
    """A model that was released before: its number among all that moved the model, and its Δ."""

    number: int
    sensitivity: float


def declared_logistic_constants(*, feature_norm: float, l2: float) -> Constants:
    """The constants that this bound needs of logistic regression, for ‖(x, 1)‖ ≤ R that every client has checked.

    As `logistic_constants`, but that the gradient's bound leaves the L2 term out: it is not used here.

    Raises:
        ConfigurationError: there is no L2 term, or a value is out of range.
    """
    return Constants(
        gradient_bound=math.sqrt(2) * feature_norm,
        smoothness=feature_norm**2 / 2 + l2,
        strong_convexity=l2,
        hessian_lipschitz=math.sqrt(2) * feature_norm**3 / (3 * math.sqrt(3)),
        source=(
            f"multinomial logistic regression with weight decay {l2:g}, feature norm at most {feature_norm:g} "
            "(declared, and checked by every client)"
        ),
    )


def federated_bound(
    constants: Constants,
    rounds: Iterable[RoundLengths],
    forgotten: frozenset[str],
    weighting: Weighting,
    *,
    earlier: Sequence[EarlierRelease] = (),
) -> Sensitivity:
    """Δ of forgetting the clients `forgotten` by addition of their vectors after `rounds`.

    forgotten: all that are forgotten by then, those of earlier releases too.
    The reference is the federation that never had them: same start, batches, participants, and noise of
    earlier releases.

    Raises:
        NumericalError: the bound is no finite number; the learning rate is too large for these constants.
    """
    error, distance = 0.0, 0.0
    waiting = sorted(earlier, key=lambda one: one.number)
    for one in rounds:
        lengths = {unit: one.vectors.get(unit, 0.0) for unit in forgotten}
        while waiting and waiting[0].number < one.number:
            error += waiting.pop(0).sensitivity
            distance = math.inf  # the model has been moved: only its error is known now
        distance = min(distance, error + sum(lengths.values()))
        try:
            error, distance = _after_round(constants, one, forgotten, lengths, weighting, error, distance)
        except OverflowError:
            error = math.inf
        if not math.isfinite(error):
            raise NumericalError(
                f"In round {one.number} the bound is no finite number any more: with a smoothness of "
                f"{constants.smoothness:.4g} a learning rate of {one.learning_rate:g} is too large. Scale the "
                "features, or train with smaller steps."
            )
    return Sensitivity(
        value=error + sum(one.sensitivity for one in waiting),
        is_bound=True,
        source=f"bound of deletion by vector addition along FedAvg's rounds, {weighting} weights",
        constants=constants,
    )


def _after_round(
    constants: Constants,
    one: RoundLengths,
    forgotten: frozenset[str],
    lengths: Mapping[str, float],
    weighting: Weighting,
    error: float,
    distance: float,
) -> tuple[float, float]:
    """E and x after the round."""
    total = sum(work.num_examples for work in one.clients.values())
    weights = {client: work.num_examples / total for client, work in one.clients.items() if work.num_examples}
    counts = {client: one.clients[client].num_steps for client in weights}
    steps = _Steps.of(constants, one.learning_rate)
    all_lengths = sum(lengths.values())
    gone, stayed = sorted(weights.keys() & forgotten), sorted(weights.keys() - forgotten)
    out = sum(weights[client] for client in gone)
    share = 1.0
    if weighting is Weighting.RENORMALISED:
        if not stayed:
            return error + _left_out(one, weights, lengths, steps), distance + one.moved
        share = 1 - out
    carried = moved = 0.0
    for client in stayed:
        contraction = weights[client] / share * steps.contraction(counts[client])
        carried += contraction * error
        carried += weights[client] / share * steps.curvature(counts[client]) * distance**2 / 2
        moved += contraction * distance
    if weighting is Weighting.FIXED:
        stale = sum(weights[unit] * steps.from_identity(counts[unit]) for unit in gone)
        sent_back = sum(weights[unit] * (one.moved + one.clients[unit].distance) for unit in gone)
        return carried + out * error + stale * all_lengths, moved + out * distance + sent_back
    apart = steps.apart(min(counts.values()), max(counts.values()))
    for unit, length in lengths.items():
        carried += (out - weights.get(unit, 0.0)) / (1 - weights.get(unit, 0.0)) * apart * length
    for unit in gone:
        own, added = weights[unit], weights[unit] * one.clients[unit].distance
        carried += (out - own) / (1 - out) * added / (1 - own)
        moved += added / (1 - out)
    return carried, moved


def _left_out(
    one: RoundLengths, weights: Mapping[str, float], lengths: Mapping[str, float], steps: "_Steps"
) -> float:
    """What a round of the forgotten alone adds to e: retraining leaves the model as it was, z ← z + θ − θ⁺.

    The vector of one that was alone does the same, exactly. Every other's moves by its own length at most (1 + ρ^K)
    times, and where several took part by what it adds.
    """
    most = max(steps.contraction(one.clients[unit].num_steps) for unit in weights)
    if len(weights) == 1:
        return (1 + most) * sum(length for unit, length in lengths.items() if unit not in weights)
    added = sum(own / (1 - own) * one.clients[unit].distance for unit, own in weights.items())
    return one.moved + added + (1 + most) * sum(lengths.values())


@dataclass(frozen=True, slots=True)
class _Steps:
    """Bounds on K steps of SGD: ρ, η, and the constants."""

    rho: float
    learning_rate: float
    constants: Constants

    @classmethod
    def of(cls, constants: Constants, learning_rate: float) -> "_Steps":
        rho = max(
            abs(1 - learning_rate * constants.strong_convexity), abs(1 - learning_rate * constants.smoothness)
        )
        return cls(rho, learning_rate, constants)

    def contraction(self, count: int) -> float:
        """ρ^K ≥ ‖J‖."""
        return float(self.rho**count)

    def curvature(self, count: int) -> float:
        """κ: what K steps leave beside their derivative is at most κ/2 ‖z‖²."""
        kappa, power = 0.0, 1.0
        for _ in range(count):
            kappa = self.rho * kappa + self.learning_rate * self.constants.hessian_lipschitz * power**2
            power *= self.rho
        return kappa

    def from_identity(self, count: int) -> float:
        """Bound on ‖I − J‖ of K steps, each of them ηS at most from I."""
        length, power = 0.0, 1.0
        for _ in range(count):
            length += power
            power *= self.rho
        return min(1 + power, self.learning_rate * self.constants.smoothness * length)

    def apart(self, fewest: int, most: int) -> float:
        """Bound on ‖J_i − J_j‖ of trainings of `fewest` to `most` steps: step for step, or by their lengths."""
        if self.rho > 1:
            return 2 * self.contraction(most)
        differ = self.learning_rate * (self.constants.smoothness - self.constants.strong_convexity)
        telescoped = fewest * self.contraction(fewest - 1) * differ
        telescoped += self.contraction(fewest) * self.from_identity(most - fewest)
        return min(2 * self.contraction(fewest), telescoped)
