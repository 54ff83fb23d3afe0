"""Solvers of A x = b and estimates of A's spectrum, for a symmetric A known by its products only.

Import from here: `conjugate_gradient` and `direct_solve`, which return a `Solution`; `lanczos_extremes`;
and for a solve that someone else's products drive (a server over a network, with checkpoints) the state
machine `CgState` with `cg_begin`, `cg_direction`, `cg_advance`, `cg_precondition`, `cg_restart` and
`cg_solution`.

A solver never raises for numbers: how it ended is its solution's `outcome`. Dot products are float64
whatever the vectors are. May import `unlearning.errors` and `unlearning.parameters`, and no torch.
"""

from unlearning.solvers.cg_state import (
    Awaits,
    CgSettings,
    CgState,
    cg_advance,
    cg_begin,
    cg_direction,
    cg_precondition,
    cg_restart,
    cg_solution,
)
from unlearning.solvers.conjugate_gradient import conjugate_gradient
from unlearning.solvers.direct import direct_solve
from unlearning.solvers.lanczos import Extremes, lanczos_extremes
from unlearning.solvers.solution import Outcome, Product, Solution

__all__ = [
    "Awaits",
    "CgSettings",
    "CgState",
    "Extremes",
    "Outcome",
    "Product",
    "Solution",
    "cg_advance",
    "cg_begin",
    "cg_direction",
    "cg_precondition",
    "cg_restart",
    "cg_solution",
    "conjugate_gradient",
    "direct_solve",
    "lanczos_extremes",
]
