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

A target that forgets a part only (samples, a class) is in U with that part, and in PUF-Regular in R with the rest: it
trains twice from θ and sends both updates. So does the authors' code, and without it a class, of which every client
is a target, would leave R empty and make the step η_u = 20 times Δ. The paper has formulas for whole clients only. In
PUF-Special the authors' code has n = Σ_U of all that the targets hold, what they keep included: for half of a client's
samples half of the step. That is `as_published_code`; the default reads Eq. 7 with the examples that were trained on.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, cast

import numpy as np
from pydantic import Field

from unlearning.errors import MethodFailed
from unlearning.methods.method import (
    NUM_RETAINED,
    RETAINED_UPDATE,
    ClientSite,
    Instruction,
    MethodInfo,
    MethodParameters,
    Need,
    Problem,
    Reply,
    UnlearningState,
    num_retained,
    replies_of_targets,
    trained_update,
)
from unlearning.methods.safe_range import Safe
from unlearning.parameters import Vector, add_weighted
from unlearning.requests import Granularity

SOURCE = "Mora et al., Federated Unlearning Made Practical (PUF), Algorithm 1, Eqs. 5-9"
FORGET, RETAIN = "forget", "retain"


class PufSpecialParameters(MethodParameters):
    """Parameters of PUF-Special; the default is the paper's."""

    # Figure 5 of the paper ends at 20; beyond 1,000 a step leaves any model behind.
    unlearning_rate: Annotated[float, Safe(high=10)] = Field(default=2.0, gt=0, le=1000, description="η_u")
    flip_at_client: bool = Field(default=False, description="the client sends −Δ itself")
    as_published_code: bool = Field(
        default=False,
        description="weigh by all that the targets hold, as the authors' code: half the step for half the samples",
    )


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
        """Ordinary local training; the answer is the update Δ (or −Δ), of a partial target in PUF-Regular two of them.

        A client that holds nothing of what is forgotten (a class it never had) gives that update weight 0.
        """
        if instruction.operation == RETAIN:
            return trained_update(instruction, site, site.retain)
        reply = trained_update(instruction, site, site.forget)
        if instruction.values.get("flip", False):
            reply = replace(reply, vector=-reply.vector)
        reply = replace(reply, values={NUM_RETAINED: len(site.retain)})
        if not self._with_retained or len(site.retain) == 0:
            return reply
        kept = trained_update(instruction, site, site.retain)
        return replace(reply, arrays={RETAINED_UPDATE: kept.vector})

    def aggregate(
        self, problem: Problem, state: UnlearningState, replies: Mapping[str, Reply]
    ) -> UnlearningState:
        """Equation 9: add the retained updates, subtract the targets'.

        Raises:
            MethodFailed: a target did not answer, or not with the update of what it keeps; without it the model would
                not be unlearned, or destroyed. Or no target holds an example of what is to be forgotten.
        """
        replies_of_targets(self.info.title, problem, replies)
        parameters = problem.parameters
        assert isinstance(parameters, PufSpecialParameters | PufRegularParameters)
        sign = 1.0 if parameters.flip_at_client else -1.0
        retained_rate = getattr(parameters, "retained_rate", 1.0)
        terms: dict[str, tuple[float, Vector]] = {}
        total = 0
        for client, reply in replies.items():
            total += reply.num_examples
            if client not in problem.targets:
                terms[client] = (retained_rate * reply.num_examples, reply.vector)
                continue
            terms[client] = (sign * parameters.unlearning_rate * reply.num_examples, reply.vector)
            if problem.targets[client].everything:
                continue
            if self._with_retained:
                kept, update = _update_of_kept(client, reply)
                total += kept
                terms[f"{client}\n"] = (retained_rate * kept, update)  # no client's id ends so
            elif getattr(parameters, "as_published_code", False):
                total += num_retained(reply)
        shares = {name: (weight / total, vector) for name, (weight, vector) in terms.items()}
        return state.advance(add_weighted(state.parameters, shares), finished=True)


def _update_of_kept(client: str, reply: Reply) -> tuple[int, Vector]:
    """Of a partial target: how many examples it keeps, and its update of training on these."""
    kept, update = num_retained(reply), reply.arrays.get(RETAINED_UPDATE)
    if NUM_RETAINED not in reply.values or (kept and update is None):
        raise MethodFailed(
            f"Client {client} forgets a part of its examples and sent no update of the rest, which PUF-Regular needs. "
            "It runs an earlier version: update it, or choose another method.",
            retryable=True,
        )
    return kept, np.zeros_like(reply.vector) if update is None else cast(Vector, update)
