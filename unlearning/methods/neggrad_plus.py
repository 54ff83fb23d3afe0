"""NegGrad+: descend the loss on what is kept and climb it on what is forgotten, at the same time.

Source: Kurmanji, Triantafillou, Hayes, Triantafillou, "Towards Unbounded Machine Unlearning" (NeurIPS 2023), a
baseline beside their SCRUB; their code. It is centralised there; carried over to a federation here:

    L(θ) = β · mean_R ℓ − (1 − β) · mean_U ℓ          R, U  examples that are kept and forgotten    β  balance, 0.95

    round:  Δ_i  change by local SGD on ℓ over what client i keeps         n_i  number of these examples
            Δ_u  the same on −ℓ over what target u forgets, clipped        m_u  number of these
            θ ← θ + β Σ_R (n_i/Σ n) Δ_i + (1 − β) Σ_U (m_u/Σ m) Δ_u

With one full-batch step a client this is a step of gradient descent on L. A target that keeps a part is on both sides
and trains twice. Buffers become those of the descent. The paper joins a batch of either kind in each step and goes over
the forgotten examples again until the kept ones are through; here each side makes as many passes as the other over its
own. Its gradients are not clipped; those of the climb are here, as in gradient ascent. The paper itself could not be
read: the objective is that of its code, β (0.95 on small data, 0.9999 on large), rate and passes (ten and five) are as
others report them.
"""

from dataclasses import replace
from typing import Annotated, cast

from pydantic import Field

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
    ask_targets,
    check_some_keep,
    moved,
    replies_of_targets,
    retained_side,
    shares,
    trained_update,
    with_kept_buffers,
    with_retained_update,
)
from unlearning.parameters import Vector, add_weighted
from unlearning.verification.difference.holders import TargetSends

START = "start"


class NegGradPlusParameters(MethodParameters):
    """Parameters of NegGrad+."""

    balance: Annotated[float, Safe(low=0.5)] = Field(
        default=0.95, ge=0, le=1, description="β: 1 only trains on, 0 only climbs"
    )
    rounds: Annotated[int, Safe(high=50)] = Field(
        default=5, ge=1, le=1000, description="rounds of all clients, a pass over their data in each"
    )
    learning_rate: Annotated[float, Safe(high=1)] = Field(
        default=0.01, gt=0, le=100, description="of the targets' and retained clients' steps"
    )
    clip_norm: Annotated[float, Safe(high=10)] = Field(
        default=5.0, gt=0, le=1e6, description="bound of the climbing gradient's norm"
    )


class NegGradPlus(Method[NegGradPlusParameters]):
    """Descent on what is kept, ascent on what is forgotten. State: `start` is the model before."""

    Parameters = NegGradPlusParameters
    info = MethodInfo(
        name="neggrad-plus",
        title="NegGrad+",
        source="Kurmanji et al., Towards Unbounded Machine Unlearning (baseline); carried over to a federation",
        target_sends=TargetSends.FORGOTTEN,
        needs=frozenset({Need.REQUESTER_ONLINE, Need.RETAINED_ONLINE, Need.STEPS}),
        remark="every client works in each of its rounds, five by default",
        cost_remark="a target that keeps a part trains on it as well",
    )

    def begin(self, problem: Problem, parameters: Vector) -> UnlearningState:
        """Begin; each exchange is one round.

        Raises:
            MethodFailed: no client keeps anything that could be descended on.
        """
        check_some_keep(self.info.title, problem)
        return UnlearningState(parameters=parameters, arrays={START: parameters})

    def configure(self, problem: Problem[NegGradPlusParameters], state: UnlearningState) -> Instructions:
        """Let the retained clients descend and the targets climb, from the same model."""
        own = problem.parameters
        descent = replace(problem.training, epochs=1, learning_rate=own.learning_rate, optimizer="sgd")
        ordinary = Instruction(operation="descend", model=state.parameters, training=descent)
        climb = replace(ordinary, operation="climb", values={"clip_norm": own.clip_norm})
        return {**dict.fromkeys(problem.retained, ordinary), **ask_targets(problem, climb)}

    def client_step(self, instruction: Instruction, site: ClientSite) -> Reply:
        """Train on what is kept; a target climbs on what it forgets, and sends the update of the rest beside."""
        if instruction.operation == "descend":
            return trained_update(instruction, site, site.retain)
        ascent = replace(
            instruction.training,
            maximize=True,
            weight_decay=0.0,
            clip_norm=float(instruction.values["clip_norm"]),
        )
        climbed = trained_update(replace(instruction, training=ascent), site, site.forget)
        return with_retained_update(climbed, instruction, site)

    def aggregate(
        self, problem: Problem[NegGradPlusParameters], state: UnlearningState, replies: Replies
    ) -> UnlearningState:
        """Go one step on both sides.

        Raises:
            MethodFailed: a target did not answer, or no client holds an example to forget, or one to keep.
        """
        climbed = replies_of_targets(self.info.title, problem, replies)
        kept = retained_side(self.info.title, problem, replies)
        own = problem.parameters
        terms = {f"climb {name}": term for name, term in shares(climbed, 1 - own.balance).items()}
        terms |= {f"descend {name}": term for name, term in shares(kept, own.balance).items()}
        parameters = with_kept_buffers(problem.task, add_weighted(state.parameters, terms), kept)
        done = state.exchanges + 1
        start, findings = cast(Vector, state.arrays[START]), {"rounds of descent and ascent": done}
        return moved(problem, state, parameters, findings, start=start, finished=done == own.rounds)

    def cost(self, given: CostSymbols, parameters: NegGradPlusParameters, preparation: object) -> Cost:
        """Compute (2 P B C + P B C_p) R bytes, F N C R FLOPs, 2 P B stored: R rounds of one pass."""
        return given.trips(
            given.num_clients * parameters.rounds,
            epochs=1,
            storage_bytes=2 * given.model_bytes,
            second_vectors=given.num_partial * parameters.rounds,
        )
