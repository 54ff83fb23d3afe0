"""The two reference points: Natural (leave the data out and train on) and Retrain (from scratch).

Natural does nothing before the recovery: it shows whether the influence would fade by itself. Retrain starts
from fresh weights and repeats the training rounds on what is retained, with the schedule of the first rounds:
the gold standard, at its full price.

    Natural: θ' = θ          Retrain: θ' = θ_R,  θ_0 fresh,  θ_{t+1} = Σ_i (n_i/n) φ_i(θ_t) over the retained
"""

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from unlearning.methods.costs import Cost, CostSymbols
from unlearning.methods.method import (
    AsksNobody,
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
    ask_staying,
    replies_with_examples,
    trained_update,
    with_kept_buffers,
)
from unlearning.parameters import Vector
from unlearning.secure_aggregation.addends import SecureTotal
from unlearning.verification.difference.holders import TargetSends


class Natural(AsksNobody[MethodParameters]):
    """Recovery only."""

    Parameters = MethodParameters
    info = MethodInfo(
        name="natural",
        title="No unlearning (natural)",
        source="PUF, Figure 5: the baseline that only leaves the data out",
        remark="leaves the data out from now on, and takes nothing out of the model",
        moves_model=False,
        sums_suffice=True,
        target_sends=TargetSends.KEPT,
    )

    def begin(self, problem: Problem, parameters: Vector) -> UnlearningState:
        """Finish at once, with the model as it is."""
        return UnlearningState(parameters=parameters, finished=True)

    def cost(self, given: CostSymbols, parameters: MethodParameters, preparation: object) -> Cost:
        """Compute 0 and P B stored, the model before: no client is asked."""
        return given.trips(0, storage_bytes=given.model_bytes)


class RetrainParameters(MethodParameters):
    """How long to retrain."""

    # Rounds of the whole federation: 100,000 are months.
    rounds: Annotated[int, Safe(high=1000)] = Field(
        default=0, ge=0, le=100_000, description="0: the rounds trained so far"
    )


class Retrain(Method[RetrainParameters]):
    """Training from scratch on what is retained, one exchange a round."""

    Parameters = RetrainParameters
    info = MethodInfo(
        name="retrain",
        title="Retrain",
        source="training from scratch without the forgotten data",
        needs=frozenset({Need.RETAINED_ONLINE}),
        remark="the gold standard at its full price: every training round again",
        is_exact=True,
        trains_as_rounds=True,
        sums_suffice=True,
        target_sends=TargetSends.KEPT,
    )

    def begin(self, problem: Problem[RetrainParameters], parameters: Vector) -> UnlearningState:
        """Begin with fresh weights, the same as the run started from."""
        rounds = problem.parameters.rounds or max(problem.rounds_trained, 1)
        fresh = problem.first_model().astype(parameters.dtype)
        return UnlearningState(parameters=fresh, values={"rounds": rounds})

    def configure(self, problem: Problem, state: UnlearningState) -> Instructions:
        """Let the retained clients, and partial targets on what they keep, train as in that round."""
        training = problem.schedule(state.exchanges + 1)
        ordinary = Instruction(operation="train", model=state.parameters, training=training)
        return ask_staying(problem, ordinary)

    def client_step(self, instruction: Instruction, site: ClientSite) -> Reply:
        """Train as ever on what is retained; the answer is the update."""
        return trained_update(instruction, site, site.retain)

    def aggregate(self, problem: Problem, state: UnlearningState, replies: Replies) -> UnlearningState:
        """Go one FedAvg round further, with the noise of private training where there is some, of no answer too.

        Raises:
            MethodFailed: no client that keeps an example answered, and there is no noise.
        """
        if problem.noisy_mean is not None:
            updates = [replies[client].vector for client in sorted(replies) if replies[client].num_examples]
            return _advanced(state, problem.noisy_mean(state.parameters, updates))
        answered = replies_with_examples(self.info.title, replies)
        return _advanced(
            state, with_kept_buffers(problem.task, add_mean_update(state.parameters, answered), answered)
        )

    def after_sum(self, problem: Problem, state: UnlearningState, total: SecureTotal) -> UnlearningState:
        """Go one FedAvg round further."""
        return _advanced(state, total.applied_to(state.parameters))

    def cost(self, given: CostSymbols, parameters: RetrainParameters, preparation: object) -> Cost:
        """Compute 2 P B (C_r + C_p) R_ret bytes, F N E (C_r + C_p) R_ret FLOPs, P B stored."""
        rounds = parameters.rounds or given.training_rounds
        return given.trips(given.num_staying * rounds, storage_bytes=given.model_bytes)


def _advanced(state: UnlearningState, parameters: Vector) -> UnlearningState:
    done = state.exchanges + 1
    state = state.advance(parameters, finished=done >= state.values["rounds"])
    return replace(state, findings={"rounds retrained": done})
