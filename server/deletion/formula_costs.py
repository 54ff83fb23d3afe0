"""The closed cost formulas of one deletion beside what was measured, for its report."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from server.federation.context import FederationContext
from server.federation.state import ActiveDeletion, FederationState
from server.report.data import FormulaCost
from unlearning.errors import DataError
from unlearning.methods.costs import (
    CostSymbols,
    compare,
    formula_cost,
    recovery_cost,
    with_parameters,
)
from unlearning.requests import Granularity

# whoever takes part does so as a retained client, with what it keeps
_WORK_OF_THE_RETAINED = {"newton-cg", "retrain", "sisa"}

_REPEATED_ROUNDS = {"federaser": "stored rounds replayed", "sisa": "rounds done again"}
"""Where a method says itself how many rounds it repeated."""

_WHY = {
    "fedau": "without a head trained beforehand the target gets the whole model and trains one now",
    "newton-cg": "each exchange carries the model beside a vector, and preconditioning asks twice a product",
    "pga": "the formula is that of one target",
    "fedau-learning": "the target gets the whole model, as with every instruction, and sends its head",
    "federaser": "the first stored round is replayed without asking anybody",
}


def formula_costs(
    context: FederationContext, state: FederationState, parameters: Mapping[str, Any]
) -> tuple[FormulaCost, ...]:
    """Unlearning and recovery of the deletion by formula, as far as there is one, and as measured.

    parameters: the method's own, validated.
    """
    deletion = state.deletion
    assert deletion is not None, "costs are those of a deletion"
    trips = _recovery_participations(context, deletion)
    symbols = with_parameters(deletion.method, parameters, _symbols(context, state, deletion))
    products = sum(
        int(found["products"])
        for found in deletion.findings.values()
        if isinstance(found, Mapping) and "products" in found
    )
    if deletion.method == "newton-cg" and products:
        symbols = replace(symbols, num_products=products)
    phases = []
    try:
        cost = formula_cost(deletion.method, symbols)
    except DataError:
        pass  # a method of the user's own; the page shows no line for it
    else:
        spent = deletion.unlearning_cost
        phases.append(("unlearning", cost, spent, spent.exchanges * len(deletion.participants)))
    # every participation is counted, so that clients that were away do not look like a saving
    recovery = recovery_cost(replace(symbols, num_retained=trips), 1)
    phases.append(("recovery", recovery, deletion.recovery_cost, trips))
    lines = []
    for phase, cost, spent, messages in phases:
        comparison = compare(
            cost.communication_bytes,
            spent.bytes_sent + spent.bytes_received,
            num_messages=messages,
            why=_WHY.get(deletion.method, "") if phase == "unlearning" else "",
        )
        lines.append(
            FormulaCost(
                phase=phase,
                formula_bytes=comparison.formula_bytes,
                measured_bytes=comparison.measured_bytes,
                ratio=comparison.ratio,
                explanation=comparison.explanation,
                formula_flops=cost.computation_flops if symbols.flops_per_example else None,
                storage_bytes=cost.storage_bytes if phase == "unlearning" else None,
            )
        )
    return tuple(lines)


def _symbols(context: FederationContext, state: FederationState, deletion: ActiveDeletion) -> CostSymbols:
    targets = {target.client_id for target in deletion.targets}
    of_class = any(target.granularity is Granularity.CLASS for target in deletion.targets)
    asked = set(deletion.participants)
    forgetting = asked if of_class else asked & targets
    retained = asked if deletion.method in _WORK_OF_THE_RETAINED else asked - forgetting
    examples = [state.num_examples[client] for client in sorted(asked) if client in state.num_examples]
    everyone = list(state.num_examples.values())
    counted = examples or everyone
    return CostSymbols(
        num_parameters=state.parameters.size,
        bytes_per_parameter=state.parameters.itemsize,
        num_targets=len(forgetting),
        num_retained=len(retained),
        flops_per_example=context.federation.flops_per_example,
        examples_per_client=sum(counted) / len(counted) if counted else 0.0,
        epochs=context.settings.training(state.round).epochs,
        num_head_parameters=context.federation.num_head_parameters,
        repeated_rounds=int(
            deletion.findings.get(_REPEATED_ROUNDS.get(deletion.method, ""), state.training_rounds)
        ),
        num_shards=int(deletion.findings.get("shards in all", 1)),
        num_vectors=int(deletion.findings.get("clients that may be forgotten so", 0)),
    )


def _recovery_participations(context: FederationContext, deletion: ActiveDeletion) -> int:
    """How often a client took part in a recovery round, over all of them; a repeated round counts once."""
    participants = {
        record.round: len(record.metrics["participants"])
        for record in context.ledger.all_rounds()
        if record.kind == "recovery" and set(record.request_ids) & set(deletion.request_ids)
    }
    return sum(participants.values())
