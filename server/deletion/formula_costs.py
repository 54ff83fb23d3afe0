"""The closed cost formulas of one deletion beside what was measured, for its report."""

from dataclasses import replace

from server.deletion.open_deletion import OpenDeletion
from server.federation.state import FederationState, PhaseCost
from server.report.report_data import FormulaCost
from unlearning.methods.costs import Cost, CostSymbols
from unlearning.methods.eligibility import FederationProfile
from unlearning.requests import Granularity

TOLERANCE = 0.01
"""A difference between formula and measurement above this share is explained."""

_SETTINGS_TOO = "it counts model vectors only, and messages carry settings and names too"
_FEWER = "fewer clients answered than it counts, or they sent less than a model"


def formula_costs(opened: OpenDeletion, state: FederationState) -> tuple[FormulaCost, ...]:
    """Return unlearning and recovery of the deletion by formula, as far as there is one, and as measured."""
    deletion, method, prepared = state.active_deletion(), opened.method, opened.prepared
    symbols = _symbols(state, opened.context.federation)
    lines = []
    cost = method.cost(symbols, opened.parameters, prepared)
    if cost is not None:
        line = _line("unlearning", cost, deletion.unlearning_cost, method.info.cost_remark)
        lines.append(replace(line, storage_bytes=cost.storage_bytes))
    # every answer is counted, so that clients that were away do not look like a saving
    trips = sum(deletion.recovery_cost.answers.values())
    lines.append(_line("recovery", symbols.trips(trips), deletion.recovery_cost))
    is_counted = bool(symbols.flops_per_example)
    return tuple(line if is_counted else replace(line, formula_flops=None) for line in lines)


def explain(formula_bytes: int, measured_bytes: int, num_messages: int, why: str = "") -> str:
    """Say why a formula and what was measured differ, where it is by more than 1 %; else nothing.

    num_messages: how many messages to clients the measured bytes belong to.
    why: the reason where it is known; else the messages' headers are named.
    """
    difference = measured_bytes - formula_bytes
    if abs(difference) <= TOLERANCE * formula_bytes:
        return ""
    if difference < 0:
        return f"{-difference:,} bytes fewer than in the formula: {why or _FEWER}"
    if not num_messages:
        return "the formula counts no message, but some were exchanged"
    return (
        f"{difference / num_messages:,.0f} bytes for each message and its answer are not in the formula: "
        f"{why or _SETTINGS_TOO}"
    )


def _line(phase: str, cost: Cost, spent: PhaseCost, why: str = "") -> FormulaCost:
    formula, measured = cost.communication_bytes, spent.bytes_sent + spent.bytes_received
    return FormulaCost(
        phase=phase,
        formula_bytes=formula,
        measured_bytes=measured,
        ratio=measured / formula if formula else None,
        explanation=explain(formula, measured, sum(spent.answers.values()), why),
        formula_flops=cost.computation_flops,
    )


def _symbols(state: FederationState, federation: FederationProfile) -> CostSymbols:
    deletion = state.active_deletion()
    of_class = any(target.granularity is Granularity.CLASS for target in deletion.targets)
    named = {target.client_id for target in deletion.targets}
    whole = {target.client_id for target in deletion.targets if target.granularity is Granularity.CLIENT}
    answered = set(deletion.unlearning_cost.answers)
    forgetting = answered if of_class else answered & named
    examples = [state.num_examples[client] for client in sorted(answered) if client in state.num_examples]
    counted = examples or list(state.num_examples.values())
    return CostSymbols(
        num_parameters=state.parameters.size,
        bytes_per_parameter=state.parameters.itemsize,
        num_targets=len(forgetting),
        num_partial=len(forgetting - whole),
        num_retained=len(answered - forgetting),
        flops_per_example=federation.flops_per_example,
        examples_per_client=sum(counted) / len(counted) if counted else 0.0,
        epochs=federation.local_epochs,
        num_head_parameters=federation.num_head_parameters,
        num_classes=federation.num_classes,
        training_rounds=state.training_rounds,
        work=deletion.work,
    )
