"""A deletion that training with differential privacy has covered from the start: the model stays as it is.

    θ' = θ          (ε_k, δ) for all k clients that have left so far, by `unlearning.certified.private_training`,
                    or for all k samples deleted at a site, by `unlearning.certified.private_samples`

An observer of the models of all rounds cannot tell them, within (ε_k, δ), from those of rounds to which these clients
or samples added nothing. So the request is answered at once, without a round. What is stated gets weaker with every
deletion; the server refuses the method where it would be weaker than the federation's limit. For samples it is
the site's own statement.

Source: the definition of unlearning of Sekhari, Acharya, Kamath, Suresh, Remember What You Want to Forget (2021), which
a differentially private model meets as it is.
"""

from unlearning.methods.costs import Cost, CostSymbols
from unlearning.methods.method import AsksNobody, MethodInfo, MethodParameters, Need, Problem, UnlearningState
from unlearning.parameters import Vector
from unlearning.requests import Granularity
from unlearning.verification.difference.holders import TargetSends


class DpCovered(AsksNobody[MethodParameters]):
    """No exchange and no recovery."""

    Parameters = MethodParameters
    info = MethodInfo(
        name="dp-covered",
        title="Covered by private training",
        source="Sekhari et al., Remember What You Want to Forget; rounds as in McMahan et al. (2018)",
        target_sends=TargetSends.KEPT,
        granularities=frozenset({Granularity.CLIENT, Granularity.SAMPLE}),
        needs=frozenset({Need.NO_STATISTICS}),
        remark="a guarantee (ε, δ) at no cost, of a federation that trains with privacy",
        several_at_once=False,
        moves_model=False,
        rests_on_training=True,
    )

    def begin(self, problem: Problem[MethodParameters], parameters: Vector) -> UnlearningState:
        """Finish at once, with the model as it is."""
        return UnlearningState(parameters=parameters, finished=True)

    def cost(self, given: CostSymbols, parameters: MethodParameters, preparation: object) -> Cost:
        """Compute 0 and P B stored, the model before: no client is asked."""
        return given.trips(0, storage_bytes=given.model_bytes)
