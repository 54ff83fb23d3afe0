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
D_u are those of this run, known to the server, so the bound needs no bound on gradients and holds whatever noise was
added before. A momentum would break the first sentence. All of it is per round: the constants, the learning rate
and the numbers of steps are those that the round was trained with, and may differ from round to round.

Rounding (`unlearning.certified.rounding`): local models are off by up to r, what they carry by up to t of its
length, and means by m, in both trainings. To e and x come 2r + 4m (1 + |U|)/(1−w_U) + (t + 2m/W (1 + ρ^K)) Σ |a_u|
each round, and 2u (|U|+2)(W + Σ |a_u|) for the addition itself. Recorded lengths are taken to be longer by 10⁻⁸.

Until one of U first trains both trainings are the same to the bit, so nothing needs to be known of those rounds.

Earlier releases: the model that release j gave away is the same in both worlds for an observer of it, so their noise
differs by up to Δ_j, and from there on the clean models do. Hence e ← e + Δ_j after release j. With that the Δ of
successive releases may be added up by `Account`, whose composition is for those who see all of them.

Derived here; the recursion that it bounds is that of `unlearning.certified.unit_vectors`.
"""

import math
from collections.abc import Mapping, Sequence

from unlearning.certified.local_steps import LocalSteps
from unlearning.certified.round_lengths import EarlierRelease, Premises, RoundLengths
from unlearning.certified.rounding import UNIT, largest_norm, local_rounding, mean_rounding
from unlearning.certified.sensitivity import Constants, Sensitivity, Weighting
from unlearning.errors import NumericalError

_SLACK = 1 + 1e-8  # for the rounding of the lengths and of this very computation


def federated_bound(
    rounds: Sequence[RoundLengths],
    forgotten: frozenset[str],
    weighting: Weighting,
    *,
    earlier: Sequence[EarlierRelease] = (),
) -> Sensitivity:
    """Compute Δ of forgetting the clients `forgotten` by addition of their vectors after `rounds`, which are
    all there were.

    forgotten: all that are forgotten by then, those of earlier releases too.
    The reference is the federation that never had them: same start, batches, participants, and noise of
    earlier releases.

    Raises:
        NumericalError: a round that counts has nothing to prove it by, or the length of a vector is missing; or the
            bound is no finite number, the learning rate being too large for these constants.
    """
    error, distance = 0.0, 0.0
    waiting = sorted(earlier, key=lambda one: one.number)
    trained: set[str] = set()
    used: list[Constants] = []
    for one in rounds:
        while waiting and waiting[0].number < one.number:
            error += waiting[0].sensitivity
            distance = math.inf  # the model has been moved: only its error is known now
            trained -= waiting.pop(0).clients
        lengths = _lengths_of(one, forgotten, trained)
        distance = min(distance, error + sum(lengths.values()))
        trained |= forgotten & one.clients.keys()
        if error == distance == 0 and not trained:
            continue
        premises = _premises_of(one)
        used += [premises.constants] if premises.constants not in used else []
        try:
            rounded = _rounding_of(premises, one, forgotten, lengths, distance)
            error, distance = _after_round(
                premises.constants, one, forgotten, lengths, weighting, error, distance
            )
            error, distance = error + rounded, distance + rounded
        except (OverflowError, ZeroDivisionError):
            error = math.inf
        if not math.isfinite(error):
            raise NumericalError(
                f"In round {one.number} the bound is no finite number any more: with a smoothness of "
                f"{premises.constants.smoothness:.4g} a learning rate of {one.learning_rate:g} is too large. Scale the "
                "features, or train with smaller steps."
            )
    piecewise = f", over {len(used)} sets of constants" if len(used) > 1 else ""
    return Sensitivity(
        value=(error + _addition_rounding(rounds, forgotten, trained)) * _SLACK
        + sum(one.sensitivity for one in waiting),
        is_bound=True,
        source=(
            f"bound of deletion by vector addition along FedAvg's rounds, {weighting} weights, rounding "
            f"included{piecewise}"
        ),
        constants=used[-1] if len(used) == 1 else None,
    )


def _lengths_of(one: RoundLengths, forgotten: frozenset[str], trained: set[str]) -> dict[str, float]:
    """Compute |a_u| of the forgotten that have trained and are still in the model; no length is taken for
    granted.
    """
    missing = sorted(trained - one.vectors.keys())
    if missing:
        raise NumericalError(
            f"No length is kept of the vector of client(s) {', '.join(missing)} before round {one.number}, "
            "although they had trained."
        )
    unknown = sorted(unit for unit in forgotten - trained if one.vectors.get(unit))
    if unknown:
        raise NumericalError(
            f"Client(s) {', '.join(unknown)} have vectors before round {one.number}, and no round is kept in which "
            "they trained."
        )
    return {unit: one.vectors.get(unit, 0.0) * _SLACK for unit in forgotten}


def _premises_of(one: RoundLengths) -> Premises:
    if one.premises is None:
        raise NumericalError(" ".join([f"Of round {one.number} nothing is proven.", *one.unmet]))
    return one.premises


def _after_round(
    constants: Constants,
    one: RoundLengths,
    forgotten: frozenset[str],
    lengths: Mapping[str, float],
    weighting: Weighting,
    error: float,
    distance: float,
) -> tuple[float, float]:
    """Compute e and x after the round, in exact arithmetic."""
    weights, whole_move = _weights_of(one), one.moved * _SLACK
    counts = {client: one.clients[client].num_steps for client in weights}
    distances = {client: one.clients[client].distance * _SLACK for client in weights}
    steps = LocalSteps.of(constants, one.learning_rate)
    all_lengths = sum(lengths.values())
    gone, stayed = sorted(weights.keys() & forgotten), sorted(weights.keys() - forgotten)
    out = sum(weights[client] for client in gone)
    share = 1.0
    if weighting is Weighting.RENORMALISED:
        if not stayed:
            left_out = _left_out(weights, counts, distances, lengths, steps, whole_move)
            return error + left_out, distance + whole_move
        share = sum(weights[client] for client in stayed)  # 1 − w_U, and above 0 however small
    carried = moved = 0.0
    for client in stayed:
        contraction = weights[client] / share * steps.contraction(counts[client])
        carried += contraction * error
        carried += weights[client] / share * steps.curvature(counts[client]) * distance**2 / 2
        moved += contraction * distance
    if weighting is Weighting.FIXED:
        stale = sum(weights[unit] * steps.from_identity(counts[unit]) for unit in gone)
        sent_back = sum(weights[unit] * (whole_move + distances[unit]) for unit in gone)
        return carried + out * error + stale * all_lengths, moved + out * distance + sent_back
    apart = steps.apart(min(counts.values()), max(counts.values()))
    for unit, length in lengths.items():
        others = sum(weights[client] for client in gone if client != unit)
        carried += others / (others + share) * apart * length
        if unit in gone:
            added = weights[unit] * distances[unit]
            carried += others / share * added / (others + share)
            moved += added / share
    return carried, moved


def _left_out(
    weights: Mapping[str, float],
    counts: Mapping[str, int],
    distances: Mapping[str, float],
    lengths: Mapping[str, float],
    steps: LocalSteps,
    whole_move: float,
) -> float:
    """Return what a round of the forgotten alone adds to e: retraining leaves the model as it was, z ← z + θ
    − θ⁺.

    The vector of one that was alone does the same, exactly. Every other's moves by its own length at most (1 + ρ^K)
    times, and where several took part by what it adds.
    """
    most = max(steps.contraction(counts[unit]) for unit in weights)
    if len(weights) == 1:
        return (1 + most) * sum(length for unit, length in lengths.items() if unit not in weights)
    added = sum(
        own * distances[unit] / sum(weights[other] for other in weights if other != unit)
        for unit, own in weights.items()
    )
    return whole_move + added + (1 + most) * sum(lengths.values())


def _weights_of(one: RoundLengths) -> dict[str, float]:
    total = sum(work.num_examples for work in one.clients.values())
    return {client: work.num_examples / total for client, work in one.clients.items() if work.num_examples}


def _rounding_of(
    premises: Premises,
    one: RoundLengths,
    forgotten: frozenset[str],
    lengths: Mapping[str, float],
    distance: float,
) -> float:
    """Return what rounding adds to e and to x in a round; see the module's docstring."""
    weights = _weights_of(one)
    most = max(one.clients[client].num_steps for client in weights)
    rate, of = one.learning_rate, premises.arithmetic
    norm = largest_norm(
        one.norm * _SLACK + distance,
        learning_rate=rate,
        l2=premises.constants.strong_convexity,
        feature_norm=of.feature_norm,
        count=most,
    )
    local = local_rounding(premises.constants, of, weight_norm=norm, learning_rate=rate, count=most)
    mean = mean_rounding(weight_norm=norm, num_clients=len(weights))
    stayed = sum(weight for client, weight in weights.items() if client not in forgotten)
    steps = LocalSteps.of(premises.constants, rate)
    relative = local.tangent + 2 * mean / norm * (1 + max(1.0, steps.contraction(most)))
    means = 4 * mean * (1 + len(forgotten)) / (stayed or 1.0)
    return 2 * local.model + means + relative * sum(lengths.values())


def _addition_rounding(rounds: Sequence[RoundLengths], forgotten: frozenset[str], trained: set[str]) -> float:
    """Return what rounding adds when the vectors that are left are added to the model."""
    if not trained:
        return 0.0
    last = rounds[-1]
    after = last.norm + last.moved
    weights = _weights_of(last)
    steps = LocalSteps.of(_premises_of(last).constants, last.learning_rate)
    most = max(1.0, max(steps.contraction(work.num_steps) for work in last.clients.values()))
    longest = most * sum(last.vectors.get(unit, 0.0) for unit in trained)
    own = (weights.get(unit, 0.0) for unit in trained)
    longest += sum(weight / (1 - weight) if weight < 1 else 1.0 for weight in own) * _farthest(last)
    return 2 * UNIT * (len(forgotten) + 2) * (after + longest) * _SLACK


def _farthest(one: RoundLengths) -> float:
    return one.moved + max(work.distance for work in one.clients.values())
