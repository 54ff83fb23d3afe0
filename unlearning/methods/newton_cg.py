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

Of sums alone the mean is the same. Vectors are sent in units that fix their size (`_unit`), so fixed point loses as
little at the end of a solve as at its beginning. A participant that leaves ends the attempt there: the gradient of the
others at the same model would show its own by subtraction.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unlearning.buffers import without_buffers
from unlearning.curvature.gradients import gradient
from unlearning.curvature.kinds import CurvatureKind
from unlearning.curvature.products import CurvatureProduct
from unlearning.errors import MethodFailed
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
from unlearning.parameters import Vector, accumulate, content_hash, norm
from unlearning.requests import NOTHING
from unlearning.secure_aggregation.addends import MOST_RATE, SecureTotal, SumTerm
from unlearning.solvers.cg_state import cg_advance, cg_begin, cg_direction, cg_precondition, cg_restart
from unlearning.solvers.conjugate_gradient import conjugate_gradient
from unlearning.verification.difference.holders import TargetSends

_FLATTEST = 1e-6
"""Curvature below which a client's own solve, of few steps, finds nothing to divide by."""


class NewtonCg(Method[NewtonCgParameters]):
    """Federated Newton-CG; the server half is a state machine over exchanges."""

    Parameters = NewtonCgParameters
    info = MethodInfo(
        name="newton-cg",
        title="Federated Newton-CG",
        source="Newton step on the retained objective, conjugate gradients over the federation",
        target_sends=TargetSends.KEPT,
        needs=frozenset({Need.RETAINED_ONLINE, Need.LOSS_DERIVATIVES, Need.MEAN_LOSS}),
        remark="many short exchanges: two a preconditioned step",
        cost_remark="each exchange carries the model beside a vector, and preconditioning asks twice a product",
        replies_are_updates=False,
        is_iterative=True,
        asks_everyone=True,
        sums_suffice=True,
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

        def shifted(vector: Vector) -> Vector:
            found = product(vector)
            accumulate(found, shift, vector)
            return found

        solution = conjugate_gradient(
            shifted,
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
        is_forgotten = state.values["phase"] == FORGET_GRADIENT
        given = replies_of_targets("remove_only", problem, replies) if is_forgotten else replies
        answered = replies_with_examples(self.info.title, given)
        asked = state.values["participants"]
        gone = [client for client in asked or () if client not in answered]
        if gone and state.values["phase"] in (PRODUCT, PRECONDITION):
            return restart(state, sorted(answered), gone)
        count = sum(reply.num_examples for reply in answered.values())
        return _advanced(problem, state, _mean(answered), count, sorted(answered))

    def asks_targets_by(self, parameters: NewtonCgParameters) -> str:
        """Return the parameter that asks for the gradient of the forgotten data, where it is set."""
        return "remove_only" if parameters.remove_only else ""

    def uses_forgotten(self, instruction: Instruction) -> bool:
        """Return whether the gradient of the forgotten data is asked for."""
        return instruction.operation == FORGET_GRADIENT

    def sum_terms(self, instruction: Instruction, reply: Reply) -> list[SumTerm]:
        """Return the vector in units of `_unit`, at the largest rate, so that it is hardly ever shortened."""
        own = NewtonCgParameters.model_validate(instruction.values)
        direction = instruction.arrays.get("direction")
        unit = _unit(instruction.operation, direction, own.damping + instruction.training.weight_decay)
        update = reply.vector.astype(np.float64) / (unit * MOST_RATE)
        return [SumTerm(update=update, count=reply.num_examples, rate=MOST_RATE)]

    def after_sum(
        self, problem: Problem[NewtonCgParameters], state: UnlearningState, total: SecureTotal
    ) -> UnlearningState:
        """Go one exchange further, by the mean that a sum gives.

        Raises:
            MethodFailed: a participant has left, a vector was shortened, or no client holds an example.
        """
        phase = state.values["phase"]
        is_product = phase in (PRODUCT, PRECONDITION)
        gone = [client for client in state.values["participants"] or () if client not in total.clients]
        if gone and is_product:
            raise MethodFailed(
                f"Client(s) {', '.join(gone)} left in the middle of the solve. It does not go on with the others, "
                "whose sum would show the missing part. File the request again when all are online, or choose retrain.",
                retryable=False,
                code="client-left",
            )
        if total.num_clipped or not total.num_examples:
            raise MethodFailed(
                f"{total.num_clipped} clients had to shorten what they computed, and {total.num_examples} examples "
                "were counted: the sum is no product. Raise damping or secure-clip-norm, or choose retrain.",
                retryable=False,
                code="no-sum",
            )
        direction = cg_direction(solve_of(state)) if is_product else None
        unit = _unit(phase, direction, problem.parameters.damping + problem.training.weight_decay)
        mean = (total.step * unit).astype(state.parameters.dtype)
        return _advanced(problem, state, mean, total.num_examples, total.clients)

    def cost(self, given: CostSymbols, parameters: NewtonCgParameters, preparation: object) -> Cost:
        """Compute 2 P B (C_r + C_p) (1 + k) bytes, F N (1 + c k) (C_r + C_p) FLOPs, P B stored."""
        products = (given.work.products if given.work else 0) or parameters.iterations
        solve = given.trips(
            given.num_staying, epochs=solver_epochs(products), storage_bytes=given.model_bytes
        )
        return replace(solve, communication_bytes=solve.communication_bytes * (1 + products))


def _advanced(
    problem: Problem, state: UnlearningState, mean: Vector, count: int, answered: Sequence[str]
) -> UnlearningState:
    """Return the state after an exchange that gave `mean` (d,), over `count` examples of those that answered."""
    phase = state.values["phase"]
    if phase == FORGET_GRADIENT:  # ∇ℓ(θ; D_u) + μθ over all targets, and n_u
        state = replace(state, arrays={**state.arrays, "forget": mean + _decay(problem, state, mean)})
        return next_exchange(state, phase=GRADIENT, num_forgotten=count)
    if phase == GRADIENT:
        return _after_gradient(problem, state, mean, count, answered)
    solve = solve_of(state)
    if phase == PRECONDITION:
        return go_on(problem, state, cg_precondition(solve, mean))
    shift = problem.parameters.damping + problem.training.weight_decay
    return go_on(problem, state, cg_advance(solve, mean + (shift * cg_direction(solve)).astype(mean.dtype)))


def _after_gradient(
    problem: Problem, state: UnlearningState, mean: Vector, count: int, answered: Sequence[str]
) -> UnlearningState:
    left = [client for client in state.values["participants"] or () if client not in answered]
    if "forget" in state.arrays:
        share = state.values["num_forgotten"] / count
        right = (-share * state.arrays["forget"]).astype(mean.dtype)
    else:
        right = mean + _decay(problem, state, mean)
    left = [*state.values["left"], *left]
    state = replace(state, values={**state.values, "participants": list(answered), "left": left})
    if "solve" in state.values:  # a participant has gone: on from the last iterate, with the rest
        return go_on(problem, state, cg_restart(solve_of(state), right))
    return go_on(problem, state, cg_begin(right, cg_settings(problem, state)))


def _unit(phase: str, direction: NDArray[Any] | None, shift: float) -> float:
    """Return what a client divides its vector by in a sum: ‖p‖ for H_i p, and for M_i⁻¹ r its bound ‖r‖/(μ+λ)."""
    length = 1.0 if direction is None else norm(direction) or 1.0
    return length / max(shift, _FLATTEST) if phase == PRECONDITION else length


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
