"""HF-KCU: the requester solves with its own curvature by conjugate gradients and sends one vector.

Source: "HF-KCU: Hessian-Free Krylov Causal Unlearning", Algorithm 1, Equation 6 and Theorem 3.

    A      affected clients             D_u    what client i forgets     n_i, n   examples of i, of all
    g_i    ∇ℓ_i(θ; D_u∩D_i)             H_i    curvature of ℓ_i on D_i   λ        damping
    v_i    k CG steps on (H_i+λI)v=g_i  β      cap on the step           μ        weight decay (L2)
    α_i    ‖g_i‖ / Σ_A ‖g_j‖            s_i    min(1, β‖θ‖/‖v_i‖)        w_i      n_i/n

`hf-kcu` is the algorithm as published: θ' = θ − Σ_A w_i α_i s_i v_i; no other client is asked. Its limits:
(a) ‖θ'−θ‖/‖θ‖ ≤ Σ w_i α_i β, a tenth of a percent for a tenth of the data, whatever v is; (b) −H⁻¹g is the
influence of giving the forgotten data *more* weight: it lowers the loss on them.

`hf-kcu-influence` has the sign and scale of a removal: θ' = θ + Σ_A (n_u,i/(n−n_u)) (H_i+(μ+λ)I)⁻¹ (g_i+μθ),
H_i over what client i retains, or over all it has where it retains nothing. Still one message to the requester,
and only a rough approximation, because one client's curvature stands for everybody's.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from unlearning.buffers import without_buffers
from unlearning.curvature.gradients import gradient
from unlearning.curvature.kinds import CurvatureKind
from unlearning.curvature.products import CurvatureProduct, relative_damping
from unlearning.errors import MethodFailed
from unlearning.methods.costs import Cost, CostSymbols, solver_epochs
from unlearning.methods.method import (
    ClientSite,
    Instruction,
    Instructions,
    Method,
    MethodInfo,
    MethodParameters,
    Need,
    Problem,
    Replies,
    Reply,
    UnlearningState,
)
from unlearning.methods.safe_range import Safe
from unlearning.methods.updates import (
    NUM_RETAINED,
    ask_targets,
    moved,
    num_retained,
    replies_of_targets,
)
from unlearning.parameters import Vector, add_weighted, norm
from unlearning.solvers.conjugate_gradient import conjugate_gradient
from unlearning.solvers.lanczos import lanczos_extremes
from unlearning.solvers.solution import Solution
from unlearning.tasks.task import Examples
from unlearning.verification.difference.holders import TargetSends

SOURCE = "HF-KCU, Algorithm 1, Eq. 6, Theorem 3"


class HfKcuParameters(MethodParameters):
    """Parameters of HF-KCU as published; the defaults are the paper's."""

    # Every step is an exchange with every client, or a product of its own at the client: 1,000 are hours.
    iterations: Annotated[int, Safe(high=100)] = Field(default=10, ge=1, le=1000, description="k, CG steps")
    damping: float = Field(default=0.01, ge=0, le=1e6, description="λ")
    cap: Annotated[float, Safe(high=0.1)] = Field(
        default=0.01, gt=0, le=1, description="β, the largest step as a share of ‖θ‖"
    )
    curvature: CurvatureKind = Field(
        default=CurvatureKind.HESSIAN, description="which matrix: gauss-newton or hessian"
    )
    lanczos_steps: Annotated[int, Safe(high=50)] = Field(
        default=10, ge=0, le=200, description="products spent on the condition number; 0 for none"
    )


class HfKcuInfluenceParameters(MethodParameters):
    """Parameters of the corrected form; Gauss-Newton by default, which has no negative curvature."""

    iterations: Annotated[int, Safe(high=100)] = Field(default=20, ge=1, le=1000, description="CG steps")
    # No cap holds this form's step: what is flat in the loss is moved by 1/λ.
    damping: Annotated[float, Safe(low=1e-3)] = Field(default=0.01, ge=0, le=1e6, description="λ")
    curvature: CurvatureKind = Field(
        default=CurvatureKind.GAUSS_NEWTON, description="which matrix: gauss-newton or hessian"
    )
    lanczos_steps: Annotated[int, Safe(high=50)] = Field(
        default=10, ge=0, le=200, description="products spent on the condition number; 0 for none"
    )


class HfKcu(Method[HfKcuParameters | HfKcuInfluenceParameters]):
    """HF-KCU as published (`corrected=False`), or with the sign and scale of a removal."""

    def __init__(self, *, corrected: bool) -> None:
        self._corrected = corrected
        self.Parameters = HfKcuInfluenceParameters if corrected else HfKcuParameters
        self.info = MethodInfo(
            name="hf-kcu-influence" if corrected else "hf-kcu",
            title="HF-KCU, corrected" if corrected else "HF-KCU as published",
            source=SOURCE,
            target_sends=TargetSends.FORGOTTEN,
            needs=frozenset({Need.REQUESTER_ONLINE, Need.LOSS_DERIVATIVES, Need.MEAN_LOSS}),
            remark=(
                "a rough approximation: the target's own curvature replaces that of all clients"
                if corrected
                else "moves the model by at most Σ w α β of its norm, in the direction that lowers the loss "
                "on the forgotten data"
            ),
        )

    def configure(
        self, problem: Problem[HfKcuParameters | HfKcuInfluenceParameters], state: UnlearningState
    ) -> Instructions:
        """Ask only the affected clients."""
        asked = Instruction(
            operation="solve",
            model=state.parameters,
            training=problem.training,
            values=problem.parameters.model_dump(mode="json"),
        )
        return ask_targets(problem, asked)

    def client_step(self, instruction: Instruction, site: ClientSite) -> Reply:
        """Compute s_i·v_i (or v_i of the corrected form), and what is needed to judge it."""
        own = self.Parameters.model_validate(instruction.values)
        theta = instruction.model
        if len(site.forget) == 0:  # a class that this client never had
            return Reply(vector=np.zeros_like(theta), num_examples=0, values={NUM_RETAINED: len(site.retain)})
        l2 = instruction.training.weight_decay if self._corrected else 0.0
        forgetting = gradient(site.task, theta, site.forget, l2=l2)
        product = CurvatureProduct(
            site.task,
            theta,
            self._curvature_examples(site),
            kind=own.curvature,
            damping=own.damping,  # Eq. (20)
            l2=l2,
        )
        solution = conjugate_gradient(
            product,
            forgetting,
            max_iterations=own.iterations,
            tolerance=0.0,
            ignore_negative_curvature=not self._corrected,
        )
        weights = without_buffers(site.task, theta)
        scale = _scale_of(weights, solution.value, own.cap) if isinstance(own, HfKcuParameters) else 1.0
        return Reply(
            vector=(scale * solution.value).astype(theta.dtype),
            num_examples=len(site.forget),
            metrics={"gradient_norm": norm(forgetting), "scale": scale},
            values={
                NUM_RETAINED: len(site.retain),
                **_account(solution),
                **_bound(product, solution, own.lanczos_steps, instruction.training.seed),
            },
        )

    def aggregate(
        self,
        problem: Problem[HfKcuParameters | HfKcuInfluenceParameters],
        state: UnlearningState,
        replies: Replies,
    ) -> UnlearningState:
        """Take the published or the corrected step.

        Raises:
            MethodFailed: a target did not answer, or no client holds what is to be forgotten.
        """
        affected = replies_of_targets(self.info.title, problem, replies)
        own = {client: reply.num_examples + num_retained(reply) for client, reply in replies.items()}
        total = sum({**problem.num_examples, **own}.values())
        weights = (
            _removal_weights(total, affected) if self._corrected else _causal_weights(own, total, affected)
        )
        terms = {client: (weights[client], reply.vector) for client, reply in affected.items()}
        parameters = add_weighted(state.parameters, terms)
        findings: dict[str, Any] = {}
        if isinstance(problem.parameters, HfKcuParameters):
            cap = sum(-weights[client] for client in affected) * problem.parameters.cap
            findings["cap on the relative change Σ w α β"] = cap
            findings["what the cap means"] = (
                f"whatever the solve gives, the model moves by at most {100 * cap:.3g} % of its norm"
            )
        for client, reply in sorted(affected.items()):
            findings[f"client {client}"] = {
                key: value for key, value in reply.values.items() if key not in ("curvatures", NUM_RETAINED)
            }
        return moved(problem, state, parameters, findings)

    def cost(
        self,
        given: CostSymbols,
        parameters: HfKcuParameters | HfKcuInfluenceParameters,
        preparation: object,
    ) -> Cost:
        """Compute 2 P B C_u bytes, F N (1 + c k) C_u FLOPs, P B stored."""
        return given.trips(
            given.num_targets,
            epochs=solver_epochs(parameters.iterations),
            storage_bytes=given.model_bytes,
        )

    def _curvature_examples(self, site: ClientSite) -> Examples:
        """Return D_i as published; what the client retains in the corrected form, if it retains anything."""
        if not self._corrected:
            return site.own
        return site.retain if len(site.retain) else site.forget


def _causal_weights(own: Mapping[str, int], total: int, affected: Replies) -> dict[str, float]:
    """Compute −w_i α_i: by n_i of n, and by the client's share of the gradient norms."""
    norms = sum(reply.metrics.get("gradient_norm", 0.0) for reply in affected.values())
    if not norms > 0:
        raise MethodFailed(
            "The gradients on the forgotten data are zero; HF-KCU has no step.",
            retryable=False,
            code="no-direction",
        )
    return {
        # Eqs. (7), (8)
        client: -own[client] / total * reply.metrics.get("gradient_norm", 0.0) / norms
        for client, reply in affected.items()
    }


def _removal_weights(total: int, affected: Replies) -> dict[str, float]:
    """Compute n_u,i / (n − n_u)."""
    retained = total - sum(reply.num_examples for reply in affected.values())
    if retained < 1:
        raise MethodFailed(
            "Nothing would be retained; the federation has nothing to keep.",
            retryable=False,
            code="no-client-stays",
        )
    return {client: reply.num_examples / retained for client, reply in affected.items()}


def _scale_of(theta: Vector, value: Vector, cap: float) -> float:
    size = norm(value)
    return min(1.0, cap * norm(theta) / size) if size else 1.0  # Eq. (21)


def _account(solution: Solution) -> dict[str, Any]:
    return {
        "outcome": str(solution.outcome),
        "residuals": [float(value) for value in solution.residuals],
        "curvatures": [float(value) for value in solution.curvatures],
        "negative curvature events": len(solution.negative_curvature_at),
    }


def _bound(product: CurvatureProduct, solution: Solution, steps: int, seed: int) -> dict[str, Any]:
    """Compute Theorem 3's bound with an estimated condition number: 2((√κ−1)/(√κ+1))^k."""
    if not steps:
        return {}
    draws = np.random.default_rng(seed)
    ends = lanczos_extremes(product, product.dimension, steps=steps, generator=draws)
    found: dict[str, Any] = relative_damping(product.damping, ends.largest - product.damping)
    if ends.smallest <= 0:
        return {**found, "bound of Theorem 3": "does not hold: the curvature is not positive definite"}
    root = float(np.sqrt(ends.condition_number))
    return {
        **found,
        "condition number (Lanczos estimate)": ends.condition_number,
        # Eq. (6)
        "bound of Theorem 3 on the relative error": 2 * ((root - 1) / (root + 1)) ** len(solution.curvatures),
    }
