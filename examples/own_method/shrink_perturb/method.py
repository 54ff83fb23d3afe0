"""Shrink and perturb as an unlearning method: pull the model towards nothing, add noise, and train on what is kept.

Source: Ash and Adams, "On Warm-Starting Neural Network Training", NeurIPS 2020, Section 4, who restart a model so where
its data changes: θ ← λ θ + σ ε, ε ~ N(0, 1). To forget is such a change; the rounds that follow are FedAvg on the
retained data.

    θ the model (d,)    λ shrink    σ perturb    n_i examples that client i keeps    φ_i local training

    θ_0 = λ θ + σ ε          θ_{t+1} = θ_t + Σ_i (n_i / Σ n_j) (φ_i(θ_t) − θ_t)

Parameters alone are shrunk: buffers, such as running variances, become the retained clients'.
With λ = 1 and σ = 0 it only leaves the data out. It promises nothing about what is left of the forgotten data.
"""

from collections.abc import Mapping

import numpy as np
from pydantic import Field

from unlearning.buffers import with_buffers_of
from unlearning.errors import MethodFailed
from unlearning.methods.costs import Cost, CostSymbols
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
)
from unlearning.methods.updates import add_mean_update, ask_staying, trained_update, with_kept_buffers
from unlearning.parameters import Vector
from unlearning.requests import Granularity


class ShrinkPerturbParameters(MethodParameters):
    """How far to shrink, how much noise, how long to train; out of these bounds a request is refused."""

    shrink: float = Field(default=0.5, ge=0, le=1, description="λ")
    perturb: float = Field(default=0.01, ge=0, le=1, description="σ")
    rounds: int = Field(default=5, ge=1, le=1000, description="of training on what is retained")


class ShrinkPerturb(Method[ShrinkPerturbParameters]):
    """θ_0 = λ θ + σ ε, and rounds of FedAvg without the forgotten data."""

    Parameters = ShrinkPerturbParameters
    info = MethodInfo(
        name="shrink-perturb",
        title="Shrink and perturb",
        source="Ash and Adams, On Warm-Starting Neural Network Training, NeurIPS 2020, Section 4",
        granularities=frozenset(Granularity),
        several_at_once=True,
        needs=frozenset({Need.RETAINED_ONLINE}),
        remark="its source is about new data, not about forgetting",
    )

    def begin(self, problem: Problem[ShrinkPerturbParameters], parameters: Vector) -> UnlearningState:
        """Shrink and perturb; the noise is the same whenever the round is done again."""
        noise = np.random.default_rng([problem.seed, problem.round]).normal(size=parameters.size)
        start = problem.parameters.shrink * parameters + problem.parameters.perturb * noise
        start = with_buffers_of(problem.task, start.astype(parameters.dtype), parameters)
        return UnlearningState(parameters=start)

    def configure(
        self, problem: Problem[ShrinkPerturbParameters], state: UnlearningState
    ) -> Mapping[str, Instruction]:
        """Let the retained clients train, and targets that keep something on that."""
        ordinary = Instruction(operation="train", model=state.parameters, training=problem.training)
        return ask_staying(problem, ordinary)

    def client_step(self, instruction: Instruction, site: ClientSite) -> Reply:
        """Train as in any round, on what is retained; the answer is the update."""
        return trained_update(instruction, site, site.retain)

    def aggregate(
        self,
        problem: Problem[ShrinkPerturbParameters],
        state: UnlearningState,
        replies: Mapping[str, Reply],
    ) -> UnlearningState:
        """Go one round further.

        Raises:
            MethodFailed: nobody answered.
        """
        if not any(reply.num_examples for reply in replies.values()):
            raise MethodFailed("No retained client answered; there is nothing to train on.", retryable=True)
        is_last = state.exchanges + 1 == problem.parameters.rounds
        moved = add_mean_update(state.parameters, replies)
        return state.advance(with_kept_buffers(problem.task, moved, replies), finished=is_last)

    def cost(self, given: CostSymbols, parameters: ShrinkPerturbParameters, preparation: object) -> Cost:
        """Compute 2 P B (C_r + C_p) R bytes, F N E (C_r + C_p) R FLOPs, P B stored."""
        return given.trips(given.num_staying * parameters.rounds, storage_bytes=given.model_bytes)
