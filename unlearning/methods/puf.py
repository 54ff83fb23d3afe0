"""PUF: unlearning by negated pseudo-gradients.

Source: Mora, Mazzocca, Montanari, Bellavista, "Federated Unlearning Made Practical: Seamless
Integration via Negated Pseudo-Gradients", Algorithm 1 and Equations 5 to 9.

    θ      the global model               Δ_i = θ_i − θ   what client i's local training changed
    U, R   targets and retained clients   n_i             the examples client i trained on
    η_u    unlearning rate                η_r             rate of the retained clients

PUF-Special asks the targets only, n = Σ_U n_u:        θ' = θ − η_u Σ_U (n_u/n) Δ_u
PUF-Regular is one ordinary round, n = Σ_R + Σ_U:      θ' = θ + η_r Σ_R (n_i/n) Δ_i − η_u Σ_U (n_u/n) Δ_u

A target trains as in any round, but on its forget examples only (for a whole client these are all)
and without augmentation. The server flips the sign; with `flip_at_client` the client sends −Δ itself.
Every floating-point tensor is negated; integer buffers are left alone.
"""

from collections.abc import Mapping
from typing import Annotated

import numpy as np
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
    replies_of_targets,
)
from unlearning.methods.safe_range import Safe
from unlearning.parameters import Vector, add_weighted
from unlearning.requests import Granularity
from unlearning.training import train

SOURCE = "Mora et al., Federated Unlearning Made Practical (PUF), Algorithm 1, Eqs. 5-9"
FORGET, RETAIN = "forget", "retain"


class PufSpecialParameters(MethodParameters):
    """Parameters of PUF-Special; the default is the paper's."""

    # Figure 5 of the paper ends at 20; beyond 1,000 a step leaves any model behind.
    unlearning_rate: Annotated[float, Safe(high=10)] = Field(default=2.0, gt=0, le=1000, description="η_u")
    flip_at_client: bool = Field(default=False, description="the client sends −Δ itself")


class PufRegularParameters(MethodParameters):
    """Parameters of PUF-Regular; the defaults are the paper's."""

    # Here n counts the retained too, so the same η_u is a smaller step. η_r is the server's rate, which is 1 in FedAvg.
    unlearning_rate: Annotated[float, Safe(high=40)] = Field(default=20.0, gt=0, le=1000, description="η_u")
    retained_rate: Annotated[float, Safe(high=2)] = Field(default=1.0, gt=0, le=100, description="η_r")
    flip_at_client: bool = Field(default=False, description="the client sends −Δ itself")


class Puf:
    """PUF-Special (`with_retained=False`) or PUF-Regular (`with_retained=True`)."""

    def __init__(self, *, with_retained: bool) -> None:
        self._with_retained = with_retained
        self.Parameters: type[MethodParameters] = (
            PufRegularParameters if with_retained else PufSpecialParameters
        )
        self.info = MethodInfo(
            name="puf-regular" if with_retained else "puf-special",
            title="PUF-Regular" if with_retained else "PUF-Special",
            source=SOURCE,
            granularities=frozenset(Granularity),
            several_at_once=True,
            needs=frozenset({Need.REQUESTER_ONLINE}),
        )

    def begin(self, problem: Problem, parameters: Vector) -> UnlearningState:
        """One exchange will do."""
        return UnlearningState(parameters=parameters)

    def configure(self, problem: Problem, state: UnlearningState) -> Mapping[str, Instruction]:
        """The targets train on what they forget; in PUF-Regular the retained ones train as ever."""
        flip = bool(getattr(problem.parameters, "flip_at_client", False))
        instructions = {
            client: Instruction(
                operation=FORGET,
                model=state.parameters,
                training=problem.training,
                forget=forget,
                values={"flip": flip},
            )
            for client, forget in problem.targets.items()
        }
        if self._with_retained:
            for client in problem.retained:
                instructions[client] = Instruction(
                    operation=RETAIN, model=state.parameters, training=problem.training
                )
        return instructions

    def client_step(self, instruction: Instruction, site: ClientSite) -> Reply:
        """Ordinary local training; the answer is the update Δ (or −Δ).

        A client that holds nothing of what is forgotten (a class it never had) answers with weight 0.
        """
        forgets = instruction.operation == FORGET
        examples = site.forget if forgets else site.retain
        if forgets and len(examples) == 0:
            return Reply(vector=np.zeros_like(instruction.model), num_examples=0)
        trained = train(site.task, instruction.model, examples, instruction.training)
        update = trained.parameters - instruction.model
        if forgets and instruction.values.get("flip", False):
            update = -update
        return Reply(vector=update, num_examples=trained.num_examples, metrics={"loss": trained.loss})

    def aggregate(
        self, problem: Problem, state: UnlearningState, replies: Mapping[str, Reply]
    ) -> UnlearningState:
        """Equation 9: add the retained updates, subtract the targets'.

        Raises:
            MethodFailed: a target did not answer; without it the model would not be unlearned. Or no
                target holds an example of what is to be forgotten.
        """
        replies_of_targets(self.info.title, problem, replies)
        parameters = problem.parameters
        assert isinstance(parameters, PufSpecialParameters | PufRegularParameters)
        total = sum(reply.num_examples for reply in replies.values())
        sign = 1.0 if parameters.flip_at_client else -1.0
        terms: dict[str, tuple[float, Vector]] = {}
        for client, reply in replies.items():
            share = reply.num_examples / total
            if client in problem.targets:
                terms[client] = (sign * parameters.unlearning_rate * share, reply.vector)
            else:
                terms[client] = (getattr(parameters, "retained_rate", 1.0) * share, reply.vector)
        return state.advance(add_weighted(state.parameters, terms), finished=True)
