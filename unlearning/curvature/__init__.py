"""Gradients and curvature of a task's mean loss over one data set, as flat vectors and products.

Import from here: `gradient`, `fisher_diagonal`, `CurvatureProduct` with `CurvatureKind` and `ProductPath`,
and `check_reproducible`. Everything speaks flat vectors in the order of `unlearning.parameters.layout`.
`docs/curvature.md` says which kind to use and what it costs.

May import `unlearning.errors`, `unlearning.parameters`, `unlearning.tasks` and `unlearning.training`;
not `unlearning.methods`, which is built on it.
"""

from unlearning.curvature.gradients import fisher_diagonal, gradient
from unlearning.curvature.kinds import CurvatureKind
from unlearning.curvature.products import (
    DEFAULT_MEMORY_BUDGET_BYTES,
    CurvatureProduct,
    ProductPath,
    check_reproducible,
)

__all__ = [
    "DEFAULT_MEMORY_BUDGET_BYTES",
    "CurvatureKind",
    "CurvatureProduct",
    "ProductPath",
    "check_reproducible",
    "fisher_diagonal",
    "gradient",
]
