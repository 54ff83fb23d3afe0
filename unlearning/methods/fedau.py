"""FedAU after the fact: mix the classifier head with one that learnt random labels of the forgotten data.

Source: Gu et al., "Unlearning during Learning: An Efficient Federated Machine Unlearning Method", in the
post-hoc form of PUF's comparison (PUF, Appendix A); it needs no preparation during training.

    W_head  weight and bias of the model's last linear layer      W_aux  the same of a fresh head that client u
    a       mixing weight of the auxiliary head, 0.96                    trained on D_u with uniform random labels,
                                                                         the trunk frozen, for 10 epochs
    W' = (1 − a) · W_head + a · mean_u W_aux

Only the head travels back.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np
import torch
from pydantic import Field

from unlearning.methods.classifier_head import classifier_head, head_in, head_slots, size_of, with_head
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
from unlearning.methods.updates import ask_targets, moved, replies_of_targets
from unlearning.parameters import Slot, Vector, check_length, flatten, in_chunks
from unlearning.tasks.task import Task
from unlearning.training import model_with, task_of, train, untrained_parameters
from unlearning.verification.difference.holders import TargetSends


class FedAuParameters(MethodParameters):
    """Parameters of post-hoc FedAU; the defaults are those of PUF's comparison."""

    # Work of one client on one layer: 1,000 passes are hours.
    epochs: Annotated[int, Safe(high=100)] = Field(
        default=10, ge=1, le=1000, description="of the auxiliary head"
    )
    weight: float = Field(default=0.96, ge=0, le=1, description="a, the auxiliary head's share")


class FedAu(Method[FedAuParameters]):
    """Post-hoc FedAU."""

    Parameters = FedAuParameters
    info = MethodInfo(
        name="fedau",
        title="FedAU, post-hoc",
        source="Gu et al., Unlearning during Learning; post-hoc as in PUF, Appendix A",
        target_sends=TargetSends.FORGOTTEN,
        needs=frozenset({Need.REQUESTER_ONLINE, Need.CLASSIFIER_HEAD}),
        cost_remark=(
            "the formula is that of one target; without a head trained beforehand a target gets the whole model and "
            "trains one now"
        ),
        replies_are_updates=False,
        replies_have_any_length=True,
    )

    def configure(self, problem: Problem[FedAuParameters], state: UnlearningState) -> Instructions:
        """Let the targets train an auxiliary head."""
        training = replace(problem.training, epochs=problem.parameters.epochs)
        asked = Instruction(operation="auxiliary-head", model=state.parameters, training=training)
        return ask_targets(problem, asked)

    def client_step(self, instruction: Instruction, site: ClientSite) -> Reply:
        """Return the auxiliary head's weight and bias, flat, in the model's order."""
        slots = head_slots(site.task)
        if len(site.forget) == 0:
            return Reply(vector=np.zeros(size_of(slots), dtype=instruction.model.dtype), num_examples=0)
        seed = instruction.training.seed
        task, start, within = _frozen_trunk(site.task, instruction.model, slots, seed)
        labels = torch.randint(
            0, site.task.num_classes, (len(site.forget),), generator=torch.Generator().manual_seed(seed)
        )
        trained = train(task, start, site.forget.with_targets(labels), instruction.training)
        head = head_in(trained.parameters, within)
        return Reply(vector=head, num_examples=trained.num_examples, metrics={"loss": trained.loss})

    def aggregate(
        self, problem: Problem[FedAuParameters], state: UnlearningState, replies: Replies
    ) -> UnlearningState:
        """Mix the heads.

        Raises:
            MethodFailed: a target did not answer, or no client holds an example.
            UpdateRefused: a head has another length than the model's.
        """
        sent = replies_of_targets(self.info.title, problem, replies)
        heads = [sent[client].vector for client in sorted(sent)]
        share = problem.parameters.weight
        parameters = mix_heads(problem.task, state.parameters, heads, own=1 - share, auxiliary=share)
        return moved(problem, state, parameters)

    def cost(self, given: CostSymbols, parameters: FedAuParameters, preparation: object) -> Cost:
        """Compute 2 P_c B bytes, P B stored; the head's training is not counted."""
        return Cost(2 * given.head_bytes, 0.0, given.model_bytes)


def mix_heads(
    task: Task, parameters: Vector, heads: Sequence[Vector], *, own: float, auxiliary: float
) -> Vector:
    """Return `parameters` (d,) with the head own · W_head + auxiliary · mean_u W_aux.

    Raises:
        UpdateRefused: a head has another length than the model's.
    """
    slots = head_slots(task)
    for head in heads:
        check_length(head, size_of(slots))
    mixed = in_chunks(
        lambda head, *others: own * head + auxiliary * (sum(others) / len(others)),
        head_in(parameters, slots),
        *heads,
    )
    return with_head(parameters, slots, mixed)


def _frozen_trunk(
    task: Task, parameters: Vector, slots: Sequence[Slot], seed: int
) -> tuple[Task, Vector, Sequence[Slot]]:
    """Return the task with everything but the head frozen at `parameters` (d,), its vector with a fresh head, and
    where the head lies in that.

    Beside the head that has the running statistics which travel where layers are local, or where the trunk has no
    weights.

    slots: of the head in `parameters`.
    """
    model = model_with(task, parameters)
    model.requires_grad_(False)
    _, head = classifier_head(model)
    assert head is not None
    head.requires_grad_(True)
    frozen = replace(task_of(task, model), augment=None)
    within = head_slots(frozen)
    return frozen, with_head(flatten(model), within, head_in(untrained_parameters(task, seed), slots)), within
