"""Gradient ascent (NaiveGA): the targets climb the loss on what is to be forgotten.

Source: the naive baseline of Halimi et al., "Federated Unlearning: How to Efficiently Erase a Client in FL?".

    θ' = θ + Σ_U (n_u/Σ_U n_u) Δ_u,   Δ_u from E epochs of SGD on −ℓ over D_u;   buffers stay as they were

The baseline as it is described has neither a ball nor a clip (`clip_norm=0`). But the loss has no upper bound, and
ten such epochs take most networks out of the finite numbers; the climb then ends there, and the deletion fails
with the step at which it did. So each gradient is clipped by default, to the norm of PGA's in the same paper: a
step is at most learning_rate · clip_norm long, and the result is finite. There is still no ball: with many steps
the test accuracy before recovery is that of guessing, as published. No learning rate is; the default is one after
which small networks (FashionMNIST, CIFAR-10, a hundred examples to forget) recover within a few rounds.
"""

from dataclasses import replace
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import nn

from unlearning.errors import MethodFailed
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
    moved,
    replies_of_targets,
    trained_update,
)
from unlearning.verification.difference.holders import TargetSends

_LEFT_AFTER = "steps until a number was not finite"


class GradientAscentParameters(MethodParameters):
    """Parameters of gradient ascent."""

    # Ascent has no end of its own: what it reaches is passes times rate times the gradient's bound.
    epochs: Annotated[int, Safe(high=50)] = Field(
        default=10, ge=1, le=1000, description="passes over the forgotten data"
    )
    learning_rate: Annotated[float, Safe(high=0.1)] = Field(
        default=0.001, gt=0, le=100, description="of the steps uphill"
    )
    clip_norm: Annotated[float, Safe(low=1e-3, high=10)] = Field(
        default=5.0,
        ge=0,
        le=1e6,
        description="bound of the gradient's norm; 0 for none, as the baseline is described",
    )


class GradientAscent(Method[GradientAscentParameters]):
    """NaiveGA."""

    Parameters = GradientAscentParameters
    info = MethodInfo(
        name="gradient-ascent",
        title="Gradient ascent",
        source="Halimi et al., Federated Unlearning: How to Efficiently Erase a Client in FL? (baseline)",
        target_sends=TargetSends.FORGOTTEN,
        needs=frozenset({Need.REQUESTER_ONLINE, Need.STEPS}),
        remark="often destroys the model, and recovery has to mend it; with clip_norm=0 most networks overflow",
    )

    def configure(self, problem: Problem[GradientAscentParameters], state: UnlearningState) -> Instructions:
        """Let the targets climb."""
        training = replace(
            problem.training,
            epochs=problem.parameters.epochs,
            learning_rate=problem.parameters.learning_rate,
            clip_norm=problem.parameters.clip_norm,
            optimizer="sgd",
            maximize=True,
            weight_decay=0.0,
        )
        ascent = Instruction(operation="ascend", model=state.parameters, training=training)
        return ask_targets(problem, ascent)

    def client_step(self, instruction: Instruction, site: ClientSite) -> Reply:
        """Train on −ℓ over the forget examples; no update, but the step, where it has overflowed."""
        climb = _Climb()
        reply = trained_update(instruction, site, site.forget, after_step=climb.after_step)
        if climb.is_finite and np.isfinite(reply.metrics.get("loss", 0.0)):
            return reply
        left = {_LEFT_AFTER: float(climb.steps)}
        return replace(reply, vector=np.zeros_like(instruction.model), metrics=left)

    def aggregate(self, problem: Problem, state: UnlearningState, replies: Replies) -> UnlearningState:
        """Add the mean of the targets' updates by their numbers of forgotten examples.

        Raises:
            MethodFailed: a target did not answer, no client holds an example, or a climb has overflowed.
        """
        climbed = replies_of_targets(self.info.title, problem, replies)
        _check_finite(climbed)
        return moved(problem, state, add_mean_update(state.parameters, climbed))

    def cost(self, given: CostSymbols, parameters: GradientAscentParameters, preparation: object) -> Cost:
        """Compute 2 P B C_u bytes, F N E_asc C_u FLOPs, P B stored."""
        return given.trips(given.num_targets, epochs=parameters.epochs, storage_bytes=given.model_bytes)


class _Climb:
    """Counts the steps of a climb, and ends it where a weight is no finite number any more."""

    def __init__(self) -> None:
        self.steps = 0
        self.is_finite = True

    def after_step(self, model: nn.Module) -> bool:
        self.steps += 1
        ends = (
            torch.stack(torch.aminmax(weight.detach())) for weight in model.parameters() if weight.numel()
        )
        self.is_finite = all(bool(two.isfinite().all()) for two in ends)  # of a NaN both are NaN
        return not self.is_finite


def _check_finite(climbed: Replies) -> None:
    left = {
        client: reply.metrics[_LEFT_AFTER]
        for client, reply in sorted(climbed.items())
        if _LEFT_AFTER in reply.metrics
    }
    if left:
        steps = ", ".join(f"at client {client} after {number:.0f} step(s)" for client, number in left.items())
        raise MethodFailed(
            f"The loss has no upper bound, and the ascent left the finite numbers {steps}. File the request again "
            "with a lower bound on the gradient (clip_norm, 5 by default), fewer epochs or a lower learning_rate.",
            retryable=False,
            code="diverged",
        )
