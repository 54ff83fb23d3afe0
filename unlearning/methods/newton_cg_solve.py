"""The solve of federated Newton-CG between two exchanges: begun, continued, restarted, and taken as a step.

The legend is in `unlearning.methods.newton_cg`.
"""

from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from pydantic import Field
from torch import nn

from unlearning.buffers import without_buffers
from unlearning.curvature.kinds import CurvatureKind
from unlearning.curvature.products import relative_damping
from unlearning.errors import MethodFailed
from unlearning.methods.costs import WorkDone
from unlearning.methods.method import MethodParameters, Problem, UnlearningState
from unlearning.methods.safe_range import Safe
from unlearning.methods.updates import change_of
from unlearning.parameters import in_chunks, norm
from unlearning.solvers.cg_state import Awaits, CgSettings, CgState, cg_solution
from unlearning.tasks.task import Task
from unlearning.training import structure

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
    curvature: CurvatureKind = Field(
        default=CurvatureKind.GAUSS_NEWTON, description="which matrix: gauss-newton or hessian"
    )
    precondition: bool = Field(default=True, description="by every client's own inverse curvature")
    local_iterations: Annotated[int, Safe(high=200)] = Field(
        default=50, ge=1, le=1000, description="CG steps of a client's own solve"
    )
    newton_steps: Annotated[int, Safe(high=3)] = Field(
        default=1, ge=1, le=10, description="how often to repeat the whole"
    )
    remove_only: bool = Field(default=False, description="use the gradient of the forgotten data only")


def first_phase(problem: Problem[NewtonCgParameters]) -> str:
    """Return what is asked for first: the gradient of what is forgotten, or that of what is retained."""
    return FORGET_GRADIENT if problem.parameters.remove_only else GRADIENT


def cg_settings(problem: Problem[NewtonCgParameters], state: UnlearningState) -> CgSettings:
    """Return how the server solves, with the trust radius as a length."""
    chosen = problem.parameters
    size = norm(without_buffers(problem.task, state.parameters))
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
        for module in structure(task).modules()
        if any(parameter.requires_grad for parameter in module.parameters(recurse=False))
    ]
    return 0.5 if len(with_weights) == 1 and isinstance(with_weights[0], nn.Linear) else 0.05


def restart(state: UnlearningState, remaining: list[str], gone: list[str]) -> UnlearningState:
    """Ask those that remain for their gradient; the solve then goes on from its last iterate."""
    return next_exchange(state, phase=GRADIENT, participants=remaining, left=[*state.values["left"], *gone])


def next_exchange(state: UnlearningState, **values: Any) -> UnlearningState:
    """Return the state after an exchange that leaves the model as it is, with what is new in `values`."""
    return replace(state, exchanges=state.exchanges + 1, values={**state.values, **values})


def go_on(problem: Problem, state: UnlearningState, solve: CgState) -> UnlearningState:
    """Return the state that waits for the solve's next need, or the step when it has ended."""
    if solve.awaits is Awaits.NOTHING:
        return _take_step(problem, state, solve)
    arrays = {name: value for name, value in state.arrays.items() if not name.startswith("cg.")}
    phase = PRECONDITION if solve.awaits is Awaits.PRECONDITIONED else PRODUCT
    arrays |= {f"cg.{name}": value for name, value in solve.arrays().items()}
    return replace(next_exchange(state, phase=phase, solve=solve.values()), arrays=arrays)


def solve_of(state: UnlearningState) -> CgState:
    """Return where the solve stands."""
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
        raise MethodFailed(
            f"The solve broke down. {solution.outcome.advice}", retryable=False, code="no-solution"
        )
    parameters = in_chunks(lambda before, step: before - step, state.parameters, solution.value)
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
            values={**values, "phase": first_phase(problem), "steps": steps},
            findings=findings,
            work=work,
        )
    findings |= {
        "exchanges": state.exchanges + 1,
        "clients whose curvature was used": state.values["participants"],
        **change_of(problem.task, state.arrays["start"], parameters),
    }
    if state.values["left"]:
        left = ", ".join(state.values["left"])
        findings["clients lost during the solve"] = (
            f"{left}; the solve went on from its last iterate over those that remained"
        )
    known = {*state.values["participants"], *state.values["left"], *problem.targets}
    if absent := sorted(set(problem.num_examples) - known):
        findings["clients that were not there"] = f"{', '.join(absent)}; their data have no part in the step"
    return replace(state.advance(parameters, finished=True), findings=findings, work=work)
