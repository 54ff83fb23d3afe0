"""Unlearning with a guarantee: vectors that forget by addition, their baselines, noise and certificates.

Import from here:

- carrying vectors: `train_online`, `fixed_batches`, `repair`, `retrained_on_batches`, `train_with_tangents`,
  `vector_after_round`, `vector_bytes`; deleting: `forgotten_by_addition`, `UnitVectors`; at rest: `seal`, `unseal`;
- baselines: `newton_step`, `infinitesimal_jackknife`, `PrecomputedJackknife`;
- bounds: `Constants`, `Sensitivity` and the functions that give one; `federated_bound` for FedAvg;
- noise: `analytic_sigma`, `add_noise`, `KeyedNormal`; `certificate`, `Account`, `deletion_capacity`.

`docs/certified.md` says what is certified and what is not. May import `unlearning.curvature`, `unlearning.solvers`,
`unlearning.runtime.stores`, `unlearning.tasks`, `unlearning.training` and what these may; not
`unlearning.methods`, which may import this.
"""

from unlearning.certified.federated import vector_after_round
from unlearning.certified.federated_bound import federated_bound
from unlearning.certified.linear_head import feature_norm, linear_head, linear_layer
from unlearning.certified.newton_step import (
    InfluenceSettings,
    PrecomputedJackknife,
    Step,
    infinitesimal_jackknife,
    newton_step,
)
from unlearning.certified.noise import (
    Mechanism,
    Normal,
    add_noise,
    analytic_sigma,
    classical_sigma,
    deletion_capacity,
    gaussian_delta,
    gaussian_epsilon,
)
from unlearning.certified.noise_certificate import (
    NoiseCertificate,
    certificate,
    unmet_assumptions,
    unmet_convexity,
)
from unlearning.certified.online import (
    BatchStep,
    OnlineSettings,
    OnlineTrained,
    fixed_batches,
    repair,
    retrained_on_batches,
    train_online,
)
from unlearning.certified.online_bound import StepCounts, online_bound
from unlearning.certified.privacy_accountant import Account, AccountedRelease, Basis
from unlearning.certified.round_lengths import (
    EarlierRelease,
    Ground,
    LocalWork,
    RoundLengths,
    declared_logistic_constants,
)
from unlearning.certified.rounding import Arithmetic
from unlearning.certified.sealed_vectors import create_key, read_key, seal, unseal
from unlearning.certified.secret_noise import KeyedNormal, derived_key, noise_secret
from unlearning.certified.sensitivity import (
    Constants,
    Inexactness,
    Sensitivity,
    Weighting,
    jackknife_bound,
    logistic_constants,
    measured_sensitivity,
    minimiser_norm,
    newton_step_bound,
    trajectory_norm,
)
from unlearning.certified.tangents import BlockProducts, check_memory, train_with_tangents, vector_bytes
from unlearning.certified.unit_vectors import UnitVectors, forgotten_by_addition

__all__ = [
    "Account",
    "AccountedRelease",
    "Arithmetic",
    "Basis",
    "BatchStep",
    "BlockProducts",
    "Constants",
    "EarlierRelease",
    "Ground",
    "Inexactness",
    "InfluenceSettings",
    "KeyedNormal",
    "LocalWork",
    "Mechanism",
    "NoiseCertificate",
    "Normal",
    "OnlineSettings",
    "OnlineTrained",
    "PrecomputedJackknife",
    "RoundLengths",
    "Sensitivity",
    "Step",
    "StepCounts",
    "UnitVectors",
    "Weighting",
    "add_noise",
    "analytic_sigma",
    "certificate",
    "check_memory",
    "classical_sigma",
    "create_key",
    "declared_logistic_constants",
    "deletion_capacity",
    "derived_key",
    "feature_norm",
    "federated_bound",
    "fixed_batches",
    "forgotten_by_addition",
    "gaussian_delta",
    "gaussian_epsilon",
    "infinitesimal_jackknife",
    "jackknife_bound",
    "linear_head",
    "linear_layer",
    "logistic_constants",
    "measured_sensitivity",
    "minimiser_norm",
    "newton_step",
    "newton_step_bound",
    "noise_secret",
    "online_bound",
    "read_key",
    "repair",
    "retrained_on_batches",
    "seal",
    "train_online",
    "train_with_tangents",
    "trajectory_norm",
    "unmet_assumptions",
    "unmet_convexity",
    "unseal",
    "vector_after_round",
    "vector_bytes",
]
