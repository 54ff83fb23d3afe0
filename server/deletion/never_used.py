"""A deletion of data that entered no round: its client never took part, so the model is one trained without it.

    θ' = θ

Where clients are sampled, many a client is forgotten that was never drawn. A method would move the model against data
that it has not seen, and one that keeps something of training rounds finds nothing of this client. Before the first
round the same holds of a class.
"""

from dataclasses import replace

from server.federation.state import FederationState
from strategies.settings.run_config import RunSettings
from unlearning.methods.costs import Cost, CostSymbols
from unlearning.methods.dp_covered import DpCovered
from unlearning.methods.method import AsksNobody, Method, MethodParameters, Problem, UnlearningState
from unlearning.outcomes import NEVER_USED
from unlearning.parameters import Vector
from unlearning.requests import Target
from unlearning.verification.difference.holders import TargetSends

STOP_REASON = "the model stays as it was: nothing of the data has entered it"


class NeverUsed(AsksNobody[MethodParameters]):
    """No exchange and no recovery, whatever method was asked for."""

    Parameters = MethodParameters
    info = replace(
        DpCovered.info,
        name="never-used",
        title="Nothing to unlearn",
        source="the record of who took part in which round",
        target_sends=TargetSends.NEVER,
        remark="the model is one that was trained without the data",
        needs=frozenset(),
        several_at_once=True,
        is_exact=True,
        rests_on_training=False,
        sums_suffice=True,
    )

    def begin(self, problem: Problem[MethodParameters], parameters: Vector) -> UnlearningState:
        """Finish at once, with the model as it is."""
        clients = ", ".join(sorted(problem.targets))
        finding = (
            f"No answer of client(s) {clients} has entered the model, in training or in another's deletion."
        )
        return UnlearningState(parameters=parameters, finished=True, findings={NEVER_USED: finding})

    def cost(self, given: CostSymbols, parameters: MethodParameters, preparation: object) -> Cost:
        """Compute 0: no client is asked."""
        return given.trips(0)


NOTHING_TO_UNLEARN = NeverUsed()


def is_never_used(state: FederationState, settings: RunSettings, method: Method, target: Target) -> bool:
    """Tell whether nothing of the target's client, or of any for a class, has entered the model, as far as is known.

    Never where training is private, for who was not drawn must stay a secret; nor by a method with noise, which proves
    more from records of its own.
    """
    client = target.client_id
    if settings.is_private or method.info.draws_noise:
        return False
    if client is None:  # who has left may have left something of it in the model
        return not (state.num_examples or state.answered or state.exclusions.clients)
    if state.exclusions.is_forgotten(client):
        return False
    return client not in state.num_examples and client not in state.answered
