"""Gradient ascent (NaiveGA): the targets climb the loss on what is to be forgotten, with no bound.

Source: the naive baseline of Halimi et al., "Federated Unlearning: How to Efficiently Erase a Client in FL?".

    θ' = θ + Σ_U (n_u/Σ_U n_u) Δ_u,   Δ_u from E epochs of SGD on −ℓ over D_u

Without a ball or a clip the loss has no upper bound: too many epochs destroy the model.
"""

from collections.abc import Mapping
from dataclasses import replace

from pydantic import Field

from unlearning.methods.method import (
    ClientSite,
    Instruction,
    MethodInfo,
    MethodParameters,
    Need,
    Problem,
    Reply,
    UnlearningState,
    averaged,
    relative_change,
    replies_of_targets,
    trained_update,
)
from unlearning.parameters import Vector
from unlearning.requests import Granularity


class GradientAscentParameters(MethodParameters):
    """Parameters of gradient ascent."""

    epochs: int = Field(default=10, ge=1, le=1000, description="passes over the forgotten data")
    learning_rate: float = Field(default=0.01, gt=0, le=100)


class GradientAscent:
    """NaiveGA."""

    Parameters: type[MethodParameters] = GradientAscentParameters
    info = MethodInfo(
        name="gradient-ascent",
        title="Gradient ascent",
        source="Halimi et al., Federated Unlearning: How to Efficiently Erase a Client in FL? (baseline)",
        granularities=frozenset(Granularity),
        several_at_once=True,
        needs=frozenset({Need.REQUESTER_ONLINE}),
        remark="unbounded: many epochs or a large rate destroy the model",
    )

    def begin(self, problem: Problem, parameters: Vector) -> UnlearningState:
        """One exchange will do."""
        return UnlearningState(parameters=parameters)

    def configure(self, problem: Problem, state: UnlearningState) -> Mapping[str, Instruction]:
        """The targets climb."""
        assert isinstance(problem.parameters, GradientAscentParameters)
        training = replace(
            problem.training,
            epochs=problem.parameters.epochs,
            learning_rate=problem.parameters.learning_rate,
            optimizer="sgd",
            maximize=True,
            weight_decay=0.0,
        )
        return {
            client: Instruction(operation="ascend", model=state.parameters, training=training, forget=forget)
            for client, forget in problem.targets.items()
        }

    def client_step(self, instruction: Instruction, site: ClientSite) -> Reply:
        """The update of training on −ℓ over the forget examples."""
        return trained_update(instruction, site, site.forget)

    def aggregate(
        self, problem: Problem, state: UnlearningState, replies: Mapping[str, Reply]
    ) -> UnlearningState:
        """The mean of the targets' updates by their numbers of forgotten examples.

        Raises:
            MethodFailed: a target did not answer, nobody holds an example. An update that is not finite
                counts as none: lower the epochs or the learning rate.
        """
        climbed = replies_of_targets(self.info.title, problem, replies)
        parameters = averaged(state.parameters, climbed)
        change = relative_change(state.parameters, parameters)
        return replace(
            state.advance(parameters, finished=True),
            findings={"relative change of the model ‖Δθ‖/‖θ‖": change},
        )
