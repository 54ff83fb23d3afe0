"""The vector that takes deleted examples out of every peer's model.

    S_c, n_c   the requester's examples        U_c, m_c   those it deletes        n, N   all examples, all peers
    Ĥ          curvature of what is retained   x^Δ        the correction          w      its weight: x_i ← x_i + w x^Δ

sample    x^Δ = (n_c−m_c)⁻¹ Ĥ⁻¹ Σ_{U_c} ∇ℓ      w = (n_c−m_c)/(n−m), as published 1/N
class     the same at every peer, m = Σ m_c
client    x^Δ = n_c/(n−n_c) Ĥ⁻¹ ∇f_c             w = 1; as published x^Δ = (N−1)⁻¹ Ĥ⁻¹ ∇f_c and w = 1/N

Ĥ is the requester's own (sample and class, as the paper has it) or the mean over all peers, which is what
the Newton step calls for and what the client level needs, since a client that leaves has nothing to retain. Our
mean weights peers by their examples; the published one does not. The published weights assume peers of one size.
At the client level the text divides by N−1 and adds 1/N of that; taken literally, as here, the step is N times
too short.

Gradients include the L2 term. The gradients that training left over are not made up for: no peer knows them.

Source: Wu et al., Certified Unlearning in Decentralized Federated Learning, Algorithm 1, Eqs. 2 to 7.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from unlearning.certified.newton_step import InfluenceSettings, newton_step
from unlearning.curvature.gradients import fisher_diagonal, gradient
from unlearning.curvature.kinds import CurvatureKind
from unlearning.curvature.products import CurvatureProduct
from unlearning.errors import NumericalError
from unlearning.parameters import Vector, check_length
from unlearning.solvers.direct import dense_matrix, direct_solve
from unlearning.solvers.solution import Outcome
from unlearning.tasks.task import Examples, Task

MAX_SHARED_DIMENSION = 2_000
"""Largest d whose whole matrix a peer sends to others: 32 MB in float64."""


class PeerCurvature(StrEnum):
    """The approximation of Ĥ: a whole matrix known by its products, or the Fisher matrix's diagonal."""

    HESSIAN = "hessian"
    GAUSS_NEWTON = "gauss-newton"
    FISHER = "fisher"
    FISHER_DIAGONAL = "fisher-diagonal"


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionSettings:
    """How a correction is computed.

    l2: training's weight decay. damping: added to Ĥ's diagonal; a Fisher matrix needs some.
    as_published: the paper's weights, which assume peers of one size.
    dense_up_to, max_iterations, tolerance: see `InfluenceSettings`.
    """

    curvature: PeerCurvature = PeerCurvature.HESSIAN
    l2: float = 0.0
    damping: float = 0.0
    as_published: bool = False
    dense_up_to: int = 1000
    max_iterations: int = 200
    tolerance: float = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class FederationCounts:
    """N peers with n examples before the deletion, of which m are deleted, at all peers together."""

    num_peers: int
    num_examples: int
    num_deleted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """x^Δ (d,), by what weight each peer adds it, and how the solve went."""

    vector: Vector
    weight: float
    outcome: Outcome
    relative_residual: float


def sample_correction(
    task: Task,
    parameters: Vector,
    retained: Examples,
    forgotten: Examples,
    settings: CorrectionSettings,
    counts: FederationCounts,
    shared: Vector | None = None,
) -> Correction:
    """Return what takes `forgotten` out, computed at their peer, which keeps `retained`.

    shared: the curvature over all peers' retained examples (`mean_curvature`); None for the peer's own.

    Raises:
        DataError: nothing is forgotten, or nothing retained (then it is a client deletion).
        NumericalError: the curvature cannot be had or inverted, or the counts do not fit.
    """
    left = counts.num_examples - counts.num_deleted
    if left < 1:
        raise NumericalError(f"Deleting {counts.num_deleted} of {counts.num_examples} examples leaves none.")
    weight = 1 / counts.num_peers if settings.as_published else len(retained) / left
    if shared is None and settings.curvature is not PeerCurvature.FISHER_DIAGONAL:
        influence = InfluenceSettings(
            l2=settings.l2,
            damping=settings.damping,
            kind=CurvatureKind(settings.curvature.value),
            dense_up_to=settings.dense_up_to,
            max_iterations=settings.max_iterations,
            tolerance=settings.tolerance,
        )
        solution = newton_step(task, parameters, retained, forgotten, influence).solution
        return Correction(
            vector=solution.value,
            weight=weight,
            outcome=solution.outcome,
            relative_residual=solution.relative_residual,
        )
    slope = gradient(task, parameters, forgotten, l2=settings.l2).astype(np.float64)
    right = len(forgotten) / len(retained) * slope
    basis = local_curvature(task, parameters, retained, settings) if shared is None else shared
    return _solve(right, basis, settings, weight, parameters)


def client_correction(
    task: Task,
    parameters: Vector,
    examples: Examples,
    settings: CorrectionSettings,
    counts: FederationCounts,
    shared: Vector,
) -> Correction:
    """Return what takes a whole client out, computed at that client from the others' mean curvature `shared`.

    Raises:
        DataError: the client has no example.
        NumericalError: the client is the only one, or the curvature cannot be inverted.
    """
    left = counts.num_examples - len(examples)
    if left < 1 or counts.num_peers < 2:
        raise NumericalError("The last peer with examples cannot be taken out: nothing would be left.")
    factor = 1 / (counts.num_peers - 1) if settings.as_published else len(examples) / left
    weight = 1 / counts.num_peers if settings.as_published else 1.0
    slope = gradient(task, parameters, examples, l2=settings.l2).astype(np.float64)
    return _solve(factor * slope, shared, settings, weight, parameters)


def local_curvature(
    task: Task, parameters: Vector, examples: Examples, settings: CorrectionSettings
) -> Vector:
    """Return a peer's curvature as others can use it, float64, without L2 and damping: (d²,) by rows, or
    (d,) diagonal.

    Raises:
        DataError: there is no example.
        NumericalError: the whole matrix is too large to be sent; use the Fisher diagonal.
    """
    if settings.curvature is PeerCurvature.FISHER_DIAGONAL:
        return fisher_diagonal(task, parameters, examples).astype(np.float64)
    if parameters.size > MAX_SHARED_DIMENSION:
        raise NumericalError(
            f"A {settings.curvature} matrix of {parameters.size:,} rows is too large to send to other peers (at "
            f"most {MAX_SHARED_DIMENSION:,}). Set the curvature to {PeerCurvature.FISHER_DIAGONAL}."
        )
    kind = CurvatureKind(settings.curvature.value)
    matrix: Vector = dense_matrix(
        CurvatureProduct(task, parameters, examples, kind=kind), parameters.size
    ).reshape(-1)
    return matrix


def mean_curvature(parts: Mapping[str, tuple[int, Vector]], *, as_published: bool = False) -> Vector:
    """Return the mean of peers' curvatures, given with their numbers of examples; weighted by these unless
    published.

    Raises:
        NumericalError: there is none, or they differ in length.
    """
    if len({vector.size for _, vector in parts.values()}) != 1:
        raise NumericalError(
            "The peers' curvatures must be of one kind and size, got "
            f"{sorted({vector.size for _, vector in parts.values()})} numbers. Give all peers the same settings."
        )
    shares = {peer: 1 if as_published else count for peer, (count, _) in parts.items()}
    if not sum(shares.values()):
        raise NumericalError("No peer that stays has an example, so there is no curvature to divide by.")
    total = np.zeros_like(next(iter(parts.values()))[1], dtype=np.float64)
    for peer in sorted(parts):
        total += shares[peer] / sum(shares.values()) * parts[peer][1]
    return total


def _solve(
    right: Vector, basis: Vector, settings: CorrectionSettings, weight: float, parameters: Vector
) -> Correction:
    """Compute (Ĥ + (μ+γ)I)⁻¹ `right` for Ĥ the diagonal or matrix `basis`."""
    shift = settings.l2 + settings.damping
    if settings.curvature is PeerCurvature.FISHER_DIAGONAL:
        check_length(basis, right.size)
        diagonal = basis + shift
        if (diagonal <= 0).any():
            raise NumericalError(
                f"{int((diagonal <= 0).sum()):,} entries of the Fisher diagonal are zero, so it cannot be inverted. "
                "Set a damping, such as 0.01."
            )
        value, outcome, residual = right / diagonal, Outcome.CONVERGED, 0.0
    else:
        check_length(basis, right.size**2)
        matrix = basis.reshape(right.size, right.size)
        solution = direct_solve(lambda v: matrix @ v + shift * v, right)
        value, outcome, residual = solution.value, solution.outcome, solution.relative_residual
    return Correction(
        vector=value.astype(parameters.dtype), weight=weight, outcome=outcome, relative_residual=residual
    )
