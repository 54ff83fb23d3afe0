"""PUF: unlearning by negated pseudo-gradients.

Source: Mora, Mazzocca, Montanari, Bellavista, "Federated Unlearning Made Practical: Seamless
Integration via Negated Pseudo-Gradients", Algorithm 1 and Equations 5 to 9.

    θ      the global model               Δ_i = θ_i − θ   what client i's local training changed
    U, R   targets and retained clients   n_i             the examples client i trained on
    η_u    unlearning rate                η_r             rate of the retained clients

PUF-Special asks the targets only, n = Σ_U n_u:        θ' = θ − η_u Σ_U (n_u/n) Δ_u
PUF-Regular is one ordinary round, n = Σ_R + Σ_U:      θ' = θ + η_r Σ_R (n_i/n) Δ_i − η_u Σ_U (n_u/n) Δ_u

A target trains as in any round, but on its forget examples only (for a whole client these are all)
and without augmentation. The server negates it; with `flip_at_client` the client sends −Δ itself.
Every parameter is negated. Buffers are statistics and are not: in PUF-Special they stay as they were, in PUF-Regular
they become the retained clients'.

A target that forgets a part only (samples, a class) is in U with that part, and in PUF-Regular in R with the rest: it
trains twice from θ and sends both updates. So does the authors' code, and without it a class, of which every client
is a target, would leave R empty and make the step η_u = 20 times Δ. The paper has formulas for whole clients only. In
PUF-Special the authors' code has n = Σ_U of all that the targets hold, what they keep included: for half of a client's
samples half of the step. That is `as_published_code`; the default reads Eq. 4 with the examples that were trained on.
"""

from abc import abstractmethod
from dataclasses import replace
from typing import Annotated, TypeVar

from pydantic import Field

from unlearning.buffers import without_buffers
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
    NUM_RETAINED,
    RETAINED_UPDATE,
    ask_targets,
    num_retained,
    replies_of_targets,
    side_that_keeps,
    trained_update,
    with_kept_buffers,
    with_retained_update,
)
from unlearning.parameters import Vector, add_weighted
from unlearning.secure_aggregation.addends import SecureTotal, SumTerm
from unlearning.verification.difference.holders import TargetSends

SOURCE = "Mora et al., Federated Unlearning Made Practical (PUF), Algorithm 1, Eqs. 5-9"
FORGET, RETAIN = "forget", "retain"

_Terms = tuple[dict[str, tuple[float, Vector]], int]


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


PufT = TypeVar("PufT", PufSpecialParameters, PufRegularParameters)


class Puf(Method[PufT]):
    """What both forms share: the targets train, and the server negates their updates."""

    def configure(self, problem: Problem[PufT], state: UnlearningState) -> Instructions:
        """Let the targets train on what they forget."""
        flip = {"flip": problem.parameters.flip_at_client}
        climb = Instruction(operation=FORGET, model=state.parameters, training=problem.training, values=flip)
        return ask_targets(problem, climb)

    def client_step(self, instruction: Instruction, site: ClientSite) -> Reply:
        """Train as ever; the answer is the update Δ (or −Δ), and how many examples are kept.

        A client that holds nothing of what is forgotten (a class it never had) gives that update weight 0.
        """
        reply = trained_update(instruction, site, site.forget)
        if instruction.values.get("flip", False):
            reply = replace(reply, vector=-without_buffers(site.task, reply.vector))
        return replace(reply, values={NUM_RETAINED: len(site.retain)})

    def aggregate(self, problem: Problem[PufT], state: UnlearningState, replies: Replies) -> UnlearningState:
        """Add the retained updates, subtract the targets'.

        Raises:
            MethodFailed: a target did not answer, or not with the update of what it keeps; without it the model would
                not be unlearned, or destroyed. Or no target holds an example of what is to be forgotten.
        """
        replies_of_targets(self.info.title, problem, replies)
        keeping = self._keeping(problem, replies)
        terms, total = self._terms(problem, replies, keeping)
        shares = {name: (weight / total, vector) for name, (weight, vector) in terms.items()}
        stepped = add_weighted(state.parameters, shares)  # Eqs. (8), (9)
        return state.advance(with_kept_buffers(problem.task, stepped, keeping), finished=True)

    def _keeping(self, problem: Problem[PufT], replies: Replies) -> dict[str, Reply]:
        """Return the answers of those that keep something; none where only targets are asked."""
        return {}

    @abstractmethod
    def _terms(self, problem: Problem[PufT], replies: Replies, keeping: Replies) -> _Terms:
        """Return the updates with their rates times numbers of examples, and n."""


class PufSpecial(Puf[PufSpecialParameters]):
    """Only the targets are asked."""

    Parameters = PufSpecialParameters
    info = MethodInfo(
        name="puf-special",
        title="PUF-Special",
        source=SOURCE,
        target_sends=TargetSends.FORGOTTEN,
        needs=frozenset({Need.REQUESTER_ONLINE}),
    )

    def _terms(self, problem: Problem[PufSpecialParameters], replies: Replies, keeping: Replies) -> _Terms:
        terms = _negate(problem, replies)
        total = sum(reply.num_examples for reply in replies.values())  # Eq. (4) with no S⁺
        if problem.parameters.as_published_code:
            total += sum(num_retained(replies[client]) for client in problem.partial)
        return terms, total

    def cost(self, given: CostSymbols, parameters: PufSpecialParameters, preparation: object) -> Cost:
        """Compute 2 P B C_u bytes, F N E C_u FLOPs, P B stored."""
        return given.trips(given.num_targets, storage_bytes=given.model_bytes)


class PufRegular(Puf[PufRegularParameters]):
    """One ordinary round; a partial target takes part in it on both sides."""

    Parameters = PufRegularParameters
    info = replace(PufSpecial.info, name="puf-regular", title="PUF-Regular", sums_suffice=True)

    def configure(self, problem: Problem[PufRegularParameters], state: UnlearningState) -> Instructions:
        """Let the targets train on what they forget, the retained clients as ever."""
        own = problem.parameters
        values = own.model_dump(include={"unlearning_rate", "retained_rate"}) | {"flip": own.flip_at_client}
        ordinary = Instruction(
            operation=RETAIN, model=state.parameters, training=problem.training, values=values
        )
        climbing = super().configure(problem, state).items()
        return {
            **{client: replace(one, values=values) for client, one in climbing},
            **dict.fromkeys(problem.retained, ordinary),
        }

    def sum_terms(self, instruction: Instruction, reply: Reply) -> list[SumTerm]:
        """Return r n Δ of what is kept and −η n Δ of what is forgotten: the sign is flipped at the client always."""
        rates = instruction.values
        if instruction.operation == RETAIN:
            return [SumTerm(update=reply.vector, count=reply.num_examples, rate=rates["retained_rate"])]
        rate = rates["unlearning_rate"] if rates["flip"] else -rates["unlearning_rate"]
        forget = SumTerm(update=reply.vector, count=reply.num_examples, rate=rate, keeps=False)
        kept = reply.arrays.get(RETAINED_UPDATE)
        if kept is None:
            return [forget]
        retain = SumTerm(update=kept, count=num_retained(reply), rate=rates["retained_rate"])
        return [forget, retain]

    def after_sum(
        self, problem: Problem[PufRegularParameters], state: UnlearningState, total: SecureTotal
    ) -> UnlearningState:
        """Take the step that the sum is.

        Raises:
            MethodFailed: a target is not in it, or no target holds an example of what is to be forgotten.
        """
        counts = dict.fromkeys(total.clients, total.num_examples - total.num_kept)
        reply = Reply(vector=total.step, num_examples=0)
        answered = {client: replace(reply, num_examples=count) for client, count in counts.items()}
        replies_of_targets(self.info.title, problem, answered)
        return state.advance(total.applied_to(state.parameters), finished=True)

    def client_step(self, instruction: Instruction, site: ClientSite) -> Reply:
        """Train as in PUF-Special; a partial target sends beside it the update of what it keeps."""
        if instruction.operation == RETAIN:
            return trained_update(instruction, site, site.retain)
        return with_retained_update(super().client_step(instruction, site), instruction, site)

    def _keeping(self, problem: Problem[PufRegularParameters], replies: Replies) -> dict[str, Reply]:
        return side_that_keeps(self.info.title, problem, replies)

    def _terms(self, problem: Problem[PufRegularParameters], replies: Replies, keeping: Replies) -> _Terms:
        rate = problem.parameters.retained_rate
        terms = _negate(problem, replies)
        total = sum(reply.num_examples for reply in replies.values())  # Eq. (4)
        for client, reply in keeping.items():
            is_second = client in problem.targets
            name = f"{client}\n" if is_second else client  # no client's id ends so
            terms[name] = (rate * reply.num_examples, reply.vector)  # Eqs. (5), (7)
            total += reply.num_examples if is_second else 0
        return terms, total

    def cost(self, given: CostSymbols, parameters: PufRegularParameters, preparation: object) -> Cost:
        """Compute 2 P B C + P B C_p bytes, F N E C FLOPs, P B stored: a partial target sends a second vector."""
        return given.trips(
            given.num_clients, storage_bytes=given.model_bytes, second_vectors=given.num_partial
        )


def _negate(
    problem: Problem[PufSpecialParameters] | Problem[PufRegularParameters], replies: Replies
) -> dict[str, tuple[float, Vector]]:
    """Return −η_u n_u and Δ_u of each target, or η_u n_u where the client has flipped the sign, Eq. (6)."""
    own = problem.parameters
    rate = own.unlearning_rate if own.flip_at_client else -own.unlearning_rate
    return {
        client: (rate * replies[client].num_examples, replies[client].vector) for client in problem.targets
    }
