"""One vector for each forgettable client, carried through a round of FedAvg: deletion is to add it.

    θ, θ⁺   the model before and after the round         φ_i(θ)   client i's local model; θ⁺ = Σ_i w_i φ_i(θ)
    w_i     n_i by Σ n_j over those that took part        J_i      the derivative of φ_i at θ
    a_u     client u's vector, 0 until it first takes part; θ + a_u is the model without it

renormalised (default)   a_u ← Σ_{i≠u} w_i/(1−w_u) J_i a_u + w_u/(1−w_u) (θ⁺ − φ_u(θ))
    equals, to first order, retraining in which the others' weights add up to one. Where u was alone in the
    round, retraining leaves the model as it is: a_u ← a_u + θ − θ⁺, exactly
fixed (the paper)        a_u ← Σ_i w_i J_i a_u + w_u (θ − φ_u(θ))
    equals, to first order, retraining with the old weights in which u sends the model back as it came

A client that did not take part has w_u = 0, and nothing of it enters. "To first order" means: what is left out
is of the size of ‖a_u‖² and w_u ‖a_u‖, so a client of half the weight has a quarter of the error.

Source: Qiao et al., Hessian-Free Online Certified Unlearning (Eqs. 8 and 9), with FedAvg's map in the place of
a step of SGD; the derivation is ours.
"""

from collections.abc import Mapping

import numpy as np

from unlearning.certified.sensitivity import Weighting
from unlearning.parameters import Models, Vector


def vector_after_round(
    vector: Vector,
    carried: Mapping[str, Vector],
    models: Models,
    *,
    unit: str,
    before: Vector,
    after: Vector,
    weighting: Weighting,
) -> Vector:
    """Return `unit`'s vector (d,) after a round, summed in float64 in the order of client ids.

    vector: the unit's vector a_u before the round.
    carried: J_i a_u by client, of all that took part.
    models: by client, number of examples and φ_i(θ). before, after: θ and θ⁺.
    """
    total = sum(count for count, _ in models.values())
    own = models[unit][0] if unit in models else 0
    moved = np.zeros(vector.size)
    if weighting is Weighting.FIXED:
        for client in sorted(models):
            moved += models[client][0] / total * carried[client].astype(np.float64)
        if own:
            moved += own / total * (before.astype(np.float64) - models[unit][1])
    elif own == total:
        moved = vector.astype(np.float64) + before - after
    else:
        for client in sorted(models):
            if client != unit:
                moved += models[client][0] / (total - own) * carried[client].astype(np.float64)
        if own:
            moved += own / (total - own) * (after.astype(np.float64) - models[unit][1])
    after_round: Vector = moved.astype(vector.dtype)
    return after_round
