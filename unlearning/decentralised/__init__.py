"""Learning and unlearning without a server: the mathematics, with no word about messages or processes.

Import from here:

- graphs: `Graph`, `ring`, `erdos_renyi`, `complete`, `from_edges`; weights: `mixing_row`, `metropolis_weights`,
  `check_mixing`;
- D-PSGD: `local_move`, `mix`, `example_scale`;
- deletion: `sample_correction` (also for a class), `client_correction`, `local_curvature`, `mean_curvature`;
- noise: `NoiseSettings`, `correction_bound`, `noise_certificate`, `perturb`; the baseline PDUDT: `influence_after`,
  `without_influence`.

`client/peer` runs it between processes; `docs/decentralised.md` says what is promised. May import
`unlearning.certified`, `unlearning.curvature`, `unlearning.solvers`, `unlearning.tasks`, `unlearning.training`
and what these may; not `unlearning.methods`, whose exchanges need a server.
"""

from unlearning.decentralised.calibration import (
    APPROXIMATE_CURVATURE,
    NoiseSettings,
    correction_bound,
    noise_certificate,
    perturb,
    published_sensitivity,
)
from unlearning.decentralised.corrections import (
    Correction,
    CorrectionSettings,
    FederationCounts,
    PeerCurvature,
    client_correction,
    local_curvature,
    mean_curvature,
    sample_correction,
)
from unlearning.decentralised.dpsgd import example_scale, local_move, mix
from unlearning.decentralised.graphs import Graph, complete, erdos_renyi, from_edges, ring
from unlearning.decentralised.mixing import MixingReport, check_mixing, metropolis_weights, mixing_row
from unlearning.decentralised.pdudt import influence_after, without_influence

__all__ = [
    "APPROXIMATE_CURVATURE",
    "Correction",
    "CorrectionSettings",
    "FederationCounts",
    "Graph",
    "MixingReport",
    "NoiseSettings",
    "PeerCurvature",
    "check_mixing",
    "client_correction",
    "complete",
    "correction_bound",
    "erdos_renyi",
    "example_scale",
    "from_edges",
    "influence_after",
    "local_curvature",
    "local_move",
    "mean_curvature",
    "metropolis_weights",
    "mix",
    "mixing_row",
    "noise_certificate",
    "perturb",
    "published_sensitivity",
    "ring",
    "sample_correction",
    "without_influence",
]
