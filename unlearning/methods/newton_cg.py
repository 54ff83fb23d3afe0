"""Federated Newton-CG: one (or more) Newton steps on the retained objective, with everybody's curvature.

Ours; the classical Newton step of influence-based unlearning carried out over a federation.

    F_R    retained objective: Σ_i w_i ℓ_i(θ; D_i∖D_u) + μ/2 ‖θ‖²     w_i   n_i/n_R over all that are online
    g      ∇F_R(θ)          H    Σ_i w_i H_i, Hessian or Gauss-Newton  μ     weight decay      λ   damping
    M⁻¹    Σ_i w_i (H_i+(μ+λ)I)⁻¹, the preconditioner: every client solves with its own curvature

    θ' = θ − (H + (μ+λ)I)⁻¹ g                                                          (default)
    θ' = θ + (n_u/n_R) (H + (μ+λ)I)⁻¹ (∇ℓ(θ; D_u) + μθ)                                (remove_only)

The server runs conjugate gradients; for each product every participant returns n_i and H_i p over its own
retained data. Everybody who is online is asked, whatever share of the clients trains in a round: the objective of a
sample is another one, and its minimum lies elsewhere. Nobody sees another's data, and what leaves a client is one
vector a product. The first form
needs no convergence of θ and fixes sign, scale and L2 at once; the requester need not be online. A participant
that stops answering is left out for good: the solve goes on from its last iterate over those that remain, with
with their gradient, and says so. λ is a bias, not a safety margin: keep it as small as the solver can bear.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import numpy as np
from pydantic import Field
from torch import nn

from unlearning.curvature import CurvatureKind, CurvatureProduct, gradient
from unlearning.curvature.damping import relative_damping
from unlearning.errors import MethodFailed
from unlearning.methods.costs import Cost, CostSymbols, WorkDone, solver_epochs
from unlearning.methods.method import (
    ClientSite,
    Instruction,
    Method,
    MethodInfo,
    MethodParameters,
    Need,
    Problem,
    Reply,
    UnlearningState,
    add_mean_update,
    relative_change,
    replies_of_targets,
)
from unlearning.methods.safe_range import Safe
from unlearning.parameters import Vector, content_hash
from unlearning.requests import NOTHING, Granularity
from unlearning.solvers import (
    Awaits,
    CgSettings,
    CgState,
    cg_advance,
    cg_begin,
    cg_direction,
    cg_precondition,
    cg_restart,
    cg_solution,
    conjugate_gradient,
)
from unlearning.tasks.task import Task
from unlearning.training import build

GRADIENT, FORGET_GRADIENT, PRODUCT, PRECONDITION = "gradient", "forget-gradient", "product", "precondition"


class NewtonCgParameters(MethodParameters):
    """Parameters of federated Newton-CG."""

    # Every step is an exchange with every client: 1,000 are hours.
    iterations: Annotated[int, Safe(high=100)] = Field(
        default=20, ge=1, le=1000, description="CG steps at most"
    )
    tolerance: float = Field(default=1e-4, ge=0, lt=1, description="stop at this relative residual")
    damping: float = Field(default=0.0, ge=0, le=1e6, description="λ, beside the weight decay")
    # Beyond half of ‖θ‖ the quadratic model was seen to be wrong; 1e6 is no bound at all.
    trust_radius: Annotated[float, Safe(high=0.5)] = Field(
        default=0.0,
        ge=0,
        le=1e6,
        description="largest step as a share of ‖θ‖; 0: 0.5 for one linear layer, else 0.05",
    )
    curvature: CurvatureKind = CurvatureKind.GAUSS_NEWTON
    precondition: bool = Field(default=True, description="by every client's own inverse curvature")
    local_iterations: Annotated[int, Safe(high=200)] = Field(
        default=50, ge=1, le=1000, description="CG steps of a client's own solve"
    )
    newton_steps: Annotated[int, Safe(high=3)] = Field(
        default=1, ge=1, le=10, description="how often to repeat the whole"
    )
    remove_only: bool = Field(default=False, description="use the gradient of the forgotten data only")


class NewtonCg(Method[NewtonCgParameters]):
    """Federated Newton-CG; the server half is a state machine over exchanges."""

    Parameters = NewtonCgParameters
    info = MethodInfo(
        name="newton-cg",
        title="Federated Newton-CG",
        source="Newton step on the retained objective, conjugate gradients over the federation",
        granularities=frozenset(Granularity),
        several_at_once=True,
        needs=frozenset({Need.RETAINED_ONLINE, Need.LOSS_DERIVATIVES}),
        remark="many short exchanges: two a preconditioned step",
        cost_remark="each exchange carries the model beside a vector, and preconditioning asks twice a product",
        replies_are_updates=False,
        is_iterative=True,
        asks_everyone=True,
    )

    def begin(self, problem: Problem, parameters: Vector) -> UnlearningState:
        """Begin with the gradient; nothing is known yet."""
        return UnlearningState(
            parameters=parameters,
            arrays={"start": parameters},
            values={"phase": _first_phase(problem), "steps": 0, "participants": None, "left": []},
        )

    def configure(
        self, problem: Problem[NewtonCgParameters], state: UnlearningState
    ) -> Mapping[str, Instruction]:
        """Ask the participants for their next piece of work: a gradient, a product or a preconditioned residual."""
        phase = state.values["phase"]
        arrays = {} if phase in (GRADIENT, FORGET_GRADIENT) else {"direction": cg_direction(_solve(state))}
        participants = state.values["participants"]
        if phase == FORGET_GRADIENT:
            participants = sorted(problem.targets)
        elif participants is None:
            participants = sorted({*problem.retained, *problem.partial})
        return {
            client: Instruction(
                operation=phase,
                model=state.parameters,
                training=problem.training,
                forget=problem.targets.get(client, NOTHING),
                arrays=arrays,
                values=problem.parameters.model_dump(mode="json"),
            )
            for client in participants
        }

    def client_step(self, instruction: Instruction, site: ClientSite) -> Reply:
        """Compute a gradient, H_i p or (H_i+(μ+λ)I)⁻¹ r over the client's own retained examples."""
        own = NewtonCgParameters.model_validate(instruction.values)
        examples = site.forget if instruction.operation == FORGET_GRADIENT else site.retain
        if len(examples) == 0:
            return Reply(vector=np.zeros_like(instruction.model), num_examples=0)
        if instruction.operation in (GRADIENT, FORGET_GRADIENT):
            vector = gradient(site.task, instruction.model, examples)
            return Reply(vector=vector, num_examples=len(examples))
        product = _kept_product(own.curvature, instruction, site)
        direction = instruction.arrays["direction"]
        if instruction.operation == PRODUCT:
            return Reply(vector=product(direction), num_examples=len(examples))
        shift = own.damping + instruction.training.weight_decay
        solution = conjugate_gradient(
            lambda vector: product(vector) + (shift * vector).astype(vector.dtype, copy=False),
            direction,
            max_iterations=own.local_iterations,
            tolerance=1e-6,
        )
        return Reply(vector=solution.value, num_examples=len(examples))

    def aggregate(
        self, problem: Problem[NewtonCgParameters], state: UnlearningState, replies: Mapping[str, Reply]
    ) -> UnlearningState:
        """Go one exchange further.

        Raises:
            MethodFailed: nobody answered, or there is nothing to forget or to retain.
        """
        phase = state.values["phase"]
        if phase == FORGET_GRADIENT:
            return _after_forget_gradient(problem, state, replies)
        answered = {client: reply for client, reply in replies.items() if reply.num_examples}
        if not answered:
            raise MethodFailed(
                "No retained client answered; federated Newton-CG cannot go on.", retryable=True
            )
        asked = state.values["participants"]
        gone = [client for client in asked or () if client not in answered]
        if gone and phase != GRADIENT:
            return _restart(state, sorted(answered), gone)
        mean = _mean(answered)
        shift = problem.parameters.damping + problem.training.weight_decay
        if phase == GRADIENT:
            return self._after_gradient(problem, state, mean, answered)
        solve = _solve(state)
        if phase == PRECONDITION:
            solve = cg_precondition(solve, mean)
        else:
            solve = cg_advance(solve, mean + (shift * cg_direction(solve)).astype(mean.dtype))
        return _continue(problem, state, solve)

    def cost(self, given: CostSymbols, parameters: NewtonCgParameters, options: object) -> Cost:
        """Compute 2 P B (C_r + C_p) (1 + k) bytes, F N (1 + c k) (C_r + C_p) FLOPs, P B stored."""
        products = (given.work.products if given.work else 0) or parameters.iterations
        solve = given.trips(
            given.num_staying, epochs=solver_epochs(products), storage_bytes=given.model_bytes
        )
        return replace(solve, communication_bytes=solve.communication_bytes * (1 + products))

    def _after_gradient(
        self, problem: Problem, state: UnlearningState, mean: Vector, answered: Mapping[str, Reply]
    ) -> UnlearningState:
        participants = sorted(answered)
        left = [client for client in state.values["participants"] or () if client not in answered]
        num_retained = sum(reply.num_examples for reply in answered.values())
        if "forget" in state.arrays:
            share = state.values["num_forgotten"] / num_retained
            right = (-share * state.arrays["forget"]).astype(mean.dtype)
        else:
            right = mean + (problem.training.weight_decay * state.parameters).astype(mean.dtype)
        values = {
            **state.values,
            "participants": participants,
            "left": [*state.values["left"], *left],
        }
        state = replace(state, values=values)
        if "solve" in state.values:  # a participant has gone: on from the last iterate, with the rest
            return _continue(problem, state, cg_restart(_solve(state), right))
        return _continue(problem, state, cg_begin(right, _cg_settings(problem, state)))


def _kept_product(kind: CurvatureKind, instruction: Instruction, site: ClientSite) -> CurvatureProduct:
    """Return the product with the client's own curvature, one for all exchanges at a model, so its graph pays."""
    key = f"{kind} at {content_hash(instruction.model)}"
    product = site.memo.get(key)
    if not isinstance(product, CurvatureProduct):
        site.memo.clear()  # the graph of an older model holds memory and is not asked for again
        product = site.memo[key] = CurvatureProduct(site.task, instruction.model, site.retain, kind=kind)
    return product


def _first_phase(problem: Problem[NewtonCgParameters]) -> str:
    return FORGET_GRADIENT if problem.parameters.remove_only else GRADIENT


def _cg_settings(problem: Problem[NewtonCgParameters], state: UnlearningState) -> CgSettings:
    chosen = problem.parameters
    size = float(np.linalg.norm(state.parameters.astype(np.float64)))
    return CgSettings(
        max_iterations=chosen.iterations,
        tolerance=chosen.tolerance,
        preconditioned=chosen.precondition,
        trust_radius=(chosen.trust_radius or _default_radius(problem.task)) * size if size else None,
    )


def _default_radius(task: Task) -> float:
    """Return a small radius for a network, whose quadratic model is good near the point only.

    What is trained decides: a linear head on a frozen network is one linear layer.

    Measured on a CNN in docs/results/second-order-fashion-mnist.md: half of ‖θ‖ does harm there.
    """
    with_weights = [
        module
        for module in build(task, seed=0).modules()
        if any(parameter.requires_grad for parameter in module.parameters(recurse=False))
    ]
    return 0.5 if len(with_weights) == 1 and isinstance(with_weights[0], nn.Linear) else 0.05


def _mean(answered: Mapping[str, Reply]) -> Vector:
    """Compute Σ n_i v_i / Σ n_i, summed in float64 in the order of client ids."""
    return add_mean_update(np.zeros_like(next(iter(answered.values())).vector), answered)


def _after_forget_gradient(
    problem: Problem, state: UnlearningState, replies: Mapping[str, Reply]
) -> UnlearningState:
    """Compute ∇ℓ(θ; D_u) + μθ over all targets, and n_u."""
    answered = replies_of_targets("remove_only", problem, replies)
    forgotten = _mean(answered)
    forgotten = forgotten + (problem.training.weight_decay * state.parameters).astype(forgotten.dtype)
    return replace(
        state,
        exchanges=state.exchanges + 1,
        arrays={**state.arrays, "forget": forgotten},
        values={
            **state.values,
            "phase": GRADIENT,
            "num_forgotten": sum(reply.num_examples for reply in answered.values()),
        },
    )


def _restart(state: UnlearningState, remaining: list[str], gone: list[str]) -> UnlearningState:
    """Ask those that remain for their gradient; the solve then goes on from its last iterate."""
    return replace(
        state,
        exchanges=state.exchanges + 1,
        values={
            **state.values,
            "phase": GRADIENT,
            "participants": remaining,
            "left": [*state.values["left"], *gone],
        },
    )


def _continue(problem: Problem, state: UnlearningState, solve: CgState) -> UnlearningState:
    """Return the state that waits for the solve's next need, or the step when it has ended."""
    if solve.awaits is Awaits.NOTHING:
        return _take_step(problem, state, solve)
    arrays = {name: value for name, value in state.arrays.items() if not name.startswith("cg.")}
    phase = PRECONDITION if solve.awaits is Awaits.PRECONDITIONED else PRODUCT
    return replace(
        state,
        exchanges=state.exchanges + 1,
        arrays={**arrays, **{f"cg.{name}": value for name, value in solve.arrays().items()}},
        values={**state.values, "phase": phase, "solve": solve.values()},
    )


def _solve(state: UnlearningState) -> CgState:
    prefix = "cg."
    arrays = {
        name.removeprefix(prefix): value for name, value in state.arrays.items() if name.startswith(prefix)
    }
    return CgState.from_arrays(arrays, state.values["solve"])


def _take_step(
    problem: Problem[NewtonCgParameters], state: UnlearningState, solve: CgState
) -> UnlearningState:
    """Take the step θ' = θ − x, and begin the next Newton step or end."""
    solution = cg_solution(solve)
    if not np.isfinite(solution.value).all():
        raise MethodFailed(f"The solve broke down. {solution.outcome.advice}", retryable=False)
    parameters = (state.parameters.astype(np.float64) - solution.value.astype(np.float64)).astype(
        state.parameters.dtype
    )
    steps = state.values["steps"] + 1
    damping = problem.parameters.damping
    work = WorkDone(products=state.work.products + solution.num_products)
    findings = {
        **state.findings,
        f"solve {steps}": {
            "outcome": str(solution.outcome),
            "advice": solution.outcome.advice,
            "relative residual": solution.relative_residual,
            "products": solution.num_products,
            **(relative_damping(damping, max(solution.curvatures) - damping) if solution.curvatures else {}),
            "residuals": [float(value) for value in solution.residuals],
        },
    }
    if steps < problem.parameters.newton_steps:
        values = {name: value for name, value in state.values.items() if name != "solve"}
        return replace(
            state,
            parameters=parameters,
            exchanges=state.exchanges + 1,
            arrays={"start": state.arrays["start"]},
            values={**values, "phase": _first_phase(problem), "steps": steps},
            findings=findings,
            work=work,
        )
    findings |= {
        "exchanges": state.exchanges + 1,
        "clients whose curvature was used": state.values["participants"],
        "relative change of the model ‖Δθ‖/‖θ‖": relative_change(state.arrays["start"], parameters),
    }
    if state.values["left"]:
        left = ", ".join(state.values["left"])
        findings["clients lost during the solve"] = (
            f"{left}; the solve went on from its last iterate over those that remained"
        )
    known = {*state.values["participants"], *state.values["left"], *problem.targets}
    if absent := sorted(set(problem.num_examples) - known):
        findings["clients that were not there"] = f"{', '.join(absent)}; their data have no part in the step"
    return replace(
        state.advance(parameters, finished=True),
        findings=findings,
        work=work,
    )
