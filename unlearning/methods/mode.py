"""MoDe: momentum degradation towards a model that never saw the data, then guidance by that model's answers.

Source: Zhao, Wang, Qi, Huang, Wei, Zhang, "Federated Unlearning with Momentum Degradation", IEEE Internet of
Things Journal 2024, with the numbers of rounds and rates of PUF's comparison.

    G   the global model     De   the degradation model, from fresh weights     λ  momentum, 0.95

    rounds 1 to 6     De ← FedAvg over the retained clients, one epoch from De;   G ← λ G + (1 − λ) De
    rounds 1 to 10    G ← FedAvg over all: the target trains on the labels argmax De(x) of its own examples,
                      the others on the true ones with a much smaller rate, each one epoch from G

Both happen in the same round, guidance second. Here either is one exchange, 16 of them as it is published. Buffers are
not mixed: G's become the retained clients' in each guidance.
"""

from dataclasses import replace
from typing import Annotated, Literal, cast

import torch
from pydantic import Field

from unlearning.buffers import with_buffers_of
from unlearning.evaluation import predict
from unlearning.methods.costs import Cost, CostSymbols
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
    add_mean_update,
    ask_targets,
    check_some_keep,
    replies_of_targets,
    replies_with_examples,
    trained_update,
    with_kept_buffers,
)
from unlearning.parameters import Vector, in_chunks
from unlearning.requests import Granularity
from unlearning.verification.difference.holders import TargetSends

DEGRADATION = "degradation"
"""Under which the state and an instruction carry De."""

Step = Literal["degrade", "guide"]


class MoDeParameters(MethodParameters):
    """Parameters of MoDe; the defaults are those of PUF's comparison."""

    # Each is an exchange of the whole federation: 1,000 are hours.
    degradation_rounds: Annotated[int, Safe(high=50)] = Field(
        default=6, ge=1, le=1000, description="exchanges with the retained clients"
    )
    guidance_rounds: Annotated[int, Safe(high=50)] = Field(
        default=10, ge=1, le=1000, description="exchanges with all clients"
    )
    momentum: float = Field(default=0.95, ge=0, lt=1, description="λ, how much of G a degradation keeps")
    epochs: Annotated[int, Safe(high=10)] = Field(
        default=1, ge=1, le=1000, description="of each local training"
    )
    learning_rate: Annotated[float, Safe(high=1)] = Field(
        default=0.1, gt=0, le=100, description="of De, and of the target's guidance"
    )
    retained_learning_rate: Annotated[float, Safe(high=1)] = Field(
        default=0.0005, gt=0, le=100, description="of the others' guidance"
    )


class MoDe(Method[MoDeParameters]):
    """Momentum degradation and memory guidance. State: `degradation` is De; the number of exchanges says what next."""

    Parameters = MoDeParameters
    info = MethodInfo(
        name="mode",
        title="MoDe",
        source="Zhao et al., Federated Unlearning with Momentum Degradation; numbers as in PUF's comparison",
        target_sends=TargetSends.FORGOTTEN,
        granularities=frozenset({Granularity.CLIENT}),
        several_at_once=False,
        needs=frozenset({Need.EVERY_CLIENT_ONLINE, Need.CLASSIFIER}),
        remark="16 exchanges by default, ten of them with the client that leaves",
    )

    def begin(self, problem: Problem, parameters: Vector) -> UnlearningState:
        """Begin with a De as fresh as the run's first model.

        Raises:
            MethodFailed: no client stays that De could learn from, or the task is no classification.
        """
        check_some_keep(self.info.title, problem)
        state = super().begin(problem, parameters)
        fresh = problem.first_model().astype(parameters.dtype)
        return replace(state, arrays={DEGRADATION: fresh})

    def configure(self, problem: Problem[MoDeParameters], state: UnlearningState) -> Instructions:
        """Degrade: the retained clients train De. Or guide: all train G, the target on De's labels."""
        own = problem.parameters
        ordinary = replace(problem.training, epochs=own.epochs, optimizer="sgd")
        fast = replace(ordinary, learning_rate=own.learning_rate)
        degradation = cast(Vector, state.arrays[DEGRADATION])
        if steps(own)[state.exchanges] == "degrade":
            learn = Instruction(operation="degrade", model=degradation, training=fast)
            return dict.fromkeys(problem.retained, learn)
        slow = replace(ordinary, learning_rate=own.retained_learning_rate)
        guide = Instruction(operation="guide", model=state.parameters, training=slow)
        forget = replace(guide, operation="forget", training=fast, arrays={DEGRADATION: degradation})
        return {**dict.fromkeys(problem.retained, guide), **ask_targets(problem, forget)}

    def client_step(self, instruction: Instruction, site: ClientSite) -> Reply:
        """Train as ever; the target on the labels that De gives its examples."""
        examples = site.forget if instruction.operation == "forget" else site.retain
        if instruction.operation == "forget" and len(examples):
            outputs = predict(site.task, cast(Vector, instruction.arrays[DEGRADATION]), examples)
            examples = examples.with_targets(torch.from_numpy(outputs.argmax(axis=1)))
        return trained_update(instruction, site, examples)

    def aggregate(
        self, problem: Problem[MoDeParameters], state: UnlearningState, replies: Replies
    ) -> UnlearningState:
        """Go one step further; clients that stay and gave no answer are left out of it.

        Raises:
            MethodFailed: no client that stays answered a degradation, or the target no guidance.
        """
        own = problem.parameters
        plan = steps(own)
        if plan[state.exchanges] == "degrade":
            before = cast(Vector, state.arrays[DEGRADATION])
            degradation = add_mean_update(before, replies_with_examples(self.info.title, replies))
            degradation = with_kept_buffers(problem.task, degradation, replies)
            mixed = degrade(state.parameters, degradation, own.momentum)
            parameters = with_buffers_of(problem.task, mixed, state.parameters)
            state = replace(state, arrays={DEGRADATION: degradation})
        else:
            replies_of_targets(self.info.title, problem, replies)
            staying = {client: reply for client, reply in replies.items() if client not in problem.targets}
            parameters = with_kept_buffers(problem.task, add_mean_update(state.parameters, replies), staying)
        done = state.exchanges + 1
        findings = {"degradations": plan[:done].count("degrade"), "guidances": plan[:done].count("guide")}
        return replace(state.advance(parameters, finished=done == len(plan)), findings=findings)

    def cost(self, given: CostSymbols, parameters: MoDeParameters, preparation: object) -> Cost:
        """Compute 2 P B (C_r R_d + C R_m) bytes, F N E (C_r R_d + C R_m) FLOPs: R_d degradations, R_m guidances."""
        degradations = given.num_retained * parameters.degradation_rounds
        guidances = given.num_clients * parameters.guidance_rounds
        return given.trips(
            degradations + guidances, epochs=parameters.epochs, storage_bytes=2 * given.model_bytes
        )


def steps(parameters: MoDeParameters) -> list[Step]:
    """Return what each exchange does: in every round degradation, then guidance, each for its number of rounds."""
    found: list[Step] = []
    for number in range(max(parameters.degradation_rounds, parameters.guidance_rounds)):
        if number < parameters.degradation_rounds:
            found.append("degrade")
        if number < parameters.guidance_rounds:
            found.append("guide")
    return found


def degrade(model: Vector, degradation: Vector, momentum: float) -> Vector:
    """Compute λ G + (1 − λ) De, in float64. Source: MoDe, momentum degradation."""
    return in_chunks(lambda one, other: momentum * one + (1 - momentum) * other, model, degradation)
