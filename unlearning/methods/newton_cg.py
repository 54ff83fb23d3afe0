"""Federated Newton-CG: one (or more) Newton steps on the retained objective, with everybody's curvature.

Ours; the classical Newton step of influence-based unlearning carried out over a federation.

    F_R    retained objective: Σ_i w_i ℓ_i(θ; D_i∖D_u) + μ/2 ‖θ‖²     w_i   n_i/n_R over all that are online
    g      ∇F_R(θ)          H    Σ_i w_i H_i, Hessian or Gauss-Newton  μ     weight decay      λ   damping
    M⁻¹    Σ_i w_i (H_i+(μ+λ)I)⁻¹, the preconditioner: every client solves with its own curvature

    θ' = θ − (H + (μ+λ)I)⁻¹ g                                                          (default)
    θ' = θ + (n_u/n_R) (H + (μ+λ)I)⁻¹ (∇ℓ(θ; D_u) + μθ)                                (remove_only)

The server runs conjugate gradients; for each product every participant returns n_i and H_i p over its own retained
data. Every client that is online is asked, whatever share of the clients trains in a round: the objective of a sample
is another one, and its minimum lies elsewhere. No client sees another's data, and what leaves a client is one vector
per product. The first form needs no convergence of θ and fixes sign, scale and L2 at once; the requester need not be
online. A participant that stops answering is left out from then on: the solve goes on from its last iterate over those
that remain, with their gradient, and says so. λ is a bias, not a safety margin: keep it small.
"""

from dataclasses import replace

import numpy as np

from unlearning.buffers import without_buffers
from unlearning.curvature.gradients import gradient
from unlearning.curvature.kinds import CurvatureKind
from unlearning.curvature.products import CurvatureProduct
from unlearning.methods.costs import Cost, CostSymbols, solver_epochs
from unlearning.methods.method import (
    ClientSite,
    Instruction,
    Instructions,
    Method,
    MethodInfo,
    Need,
    Problem,
    Replies,
    Reply,
    UnlearningState,
)
from unlearning.methods.newton_cg_solve import (
    FORGET_GRADIENT,
    GRADIENT,
    PRECONDITION,
    PRODUCT,
    NewtonCgParameters,
    cg_settings,
    first_phase,
    go_on,
    next_exchange,
    restart,
    solve_of,
)
from unlearning.methods.updates import add_mean_update, replies_of_targets, replies_with_examples
from unlearning.parameters import Vector, content_hash
from unlearning.requests import NOTHING
from unlearning.solvers.cg_state import cg_advance, cg_begin, cg_direction, cg_precondition, cg_restart
from unlearning.solvers.conjugate_gradient import conjugate_gradient


class NewtonCg(Method[NewtonCgParameters]):
    """Federated Newton-CG; the server half is a state machine over exchanges."""

    Parameters = NewtonCgParameters
    info = MethodInfo(
        name="newton-cg",
        title="Federated Newton-CG",
        source="Newton step on the retained objective, conjugate gradients over the federation",
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
            values={"phase": first_phase(problem), "steps": 0, "participants": None, "left": []},
        )

    def configure(self, problem: Problem[NewtonCgParameters], state: UnlearningState) -> Instructions:
        """Ask the participants for their next piece of work: a gradient, a product or a preconditioned residual."""
        phase = state.values["phase"]
        arrays = {} if phase in (GRADIENT, FORGET_GRADIENT) else {"direction": cg_direction(solve_of(state))}
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
        self, problem: Problem[NewtonCgParameters], state: UnlearningState, replies: Replies
    ) -> UnlearningState:
        """Go one exchange further.

        Raises:
            MethodFailed: no client answered, or there is nothing to forget or to retain.
        """
        phase = state.values["phase"]
        if phase == FORGET_GRADIENT:
            return _after_forget_gradient(problem, state, replies)
        answered = replies_with_examples(self.info.title, replies)
        asked = state.values["participants"]
        gone = [client for client in asked or () if client not in answered]
        if gone and phase != GRADIENT:
            return restart(state, sorted(answered), gone)
        mean = _mean(answered)
        shift = problem.parameters.damping + problem.training.weight_decay
        if phase == GRADIENT:
            return self._after_gradient(problem, state, mean, answered)
        solve = solve_of(state)
        if phase == PRECONDITION:
            solve = cg_precondition(solve, mean)
        else:
            solve = cg_advance(solve, mean + (shift * cg_direction(solve)).astype(mean.dtype))
        return go_on(problem, state, solve)

    def cost(self, given: CostSymbols, parameters: NewtonCgParameters, preparation: object) -> Cost:
        """Compute 2 P B (C_r + C_p) (1 + k) bytes, F N (1 + c k) (C_r + C_p) FLOPs, P B stored."""
        products = (given.work.products if given.work else 0) or parameters.iterations
        solve = given.trips(
            given.num_staying, epochs=solver_epochs(products), storage_bytes=given.model_bytes
        )
        return replace(solve, communication_bytes=solve.communication_bytes * (1 + products))

    def _after_gradient(
        self, problem: Problem, state: UnlearningState, mean: Vector, answered: Replies
    ) -> UnlearningState:
        left = [client for client in state.values["participants"] or () if client not in answered]
        num_retained = sum(reply.num_examples for reply in answered.values())
        if "forget" in state.arrays:
            share = state.values["num_forgotten"] / num_retained
            right = (-share * state.arrays["forget"]).astype(mean.dtype)
        else:
            right = mean + _decay(problem, state, mean)
        left = [*state.values["left"], *left]
        state = replace(state, values={**state.values, "participants": sorted(answered), "left": left})
        if "solve" in state.values:  # a participant has gone: on from the last iterate, with the rest
            return go_on(problem, state, cg_restart(solve_of(state), right))
        return go_on(problem, state, cg_begin(right, cg_settings(problem, state)))


def _kept_product(kind: CurvatureKind, instruction: Instruction, site: ClientSite) -> CurvatureProduct:
    """Return the product with the client's own curvature, one for all exchanges at a model, so its graph pays."""
    key = f"{kind} at {content_hash(instruction.model)}"
    product = site.memo.get(key)
    if not isinstance(product, CurvatureProduct):
        site.memo.clear()  # the graph of an older model holds memory and is not asked for again
        product = site.memo[key] = CurvatureProduct(site.task, instruction.model, site.retain, kind=kind)
    return product


def _mean(answered: Replies) -> Vector:
    """Compute Σ n_i v_i / Σ n_i, summed in float64 in the order of client ids."""
    return add_mean_update(np.zeros_like(next(iter(answered.values())).vector), answered)


def _decay(problem: Problem, state: UnlearningState, like: Vector) -> Vector:
    """Compute μθ, the gradient of the L2 term; buffers have none."""
    weights = without_buffers(problem.task, state.parameters)
    return (problem.training.weight_decay * weights).astype(like.dtype)


def _after_forget_gradient(problem: Problem, state: UnlearningState, replies: Replies) -> UnlearningState:
    """Compute ∇ℓ(θ; D_u) + μθ over all targets, and n_u."""
    answered = replies_of_targets("remove_only", problem, replies)
    forgotten = _mean(answered)
    forgotten = forgotten + _decay(problem, state, forgotten)
    state = replace(state, arrays={**state.arrays, "forget": forgotten})
    num_forgotten = sum(reply.num_examples for reply in answered.values())
    return next_exchange(state, phase=GRADIENT, num_forgotten=num_forgotten)
