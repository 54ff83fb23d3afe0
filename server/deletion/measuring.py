"""Measurements of the model during a deletion: before it, unlearned, and after recovery rounds."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from server.federation import shadow_federations as shadows
from server.federation.context import FederationContext
from server.federation.gate import retained_scores
from server.federation.observing import ModelObservations, observe_all
from server.federation.state import ActiveDeletion, FederationState
from unlearning.requests import NOTHING, Forget, Target
from unlearning.verification.measurement import Measurement, Stage, measure
from unlearning.verification.observations import Outputs, merge


def measured(context: FederationContext, state: FederationState, stage: Stage) -> FederationState:
    """`state` with one more measurement of its model for each request of the deletion."""
    deletion = state.active_deletion()
    forgets = concerned(context, deletion.targets)
    context.clients.restrict(state)
    observed = observe_all(context.clients, context.test_set, state, forgets)
    if stage == "before":
        deletion = _asked_shadows(
            context, state, forgets, replace(deletion, outputs_before=_outputs(observed))
        )
    measurements = {
        request_id: (
            *deletion.measurements.get(request_id, ()),
            _measurement_of(context, replace(state, deletion=deletion), target, stage, observed),
        )
        for request_id, target in zip(deletion.request_ids, deletion.targets, strict=True)
    }
    done = observed.exchange
    deletion = replace(
        deletion,
        measurements=measurements,
        measuring_cost=deletion.measuring_cost.plus(done, context.peak_memory(done)),
        scores=retained_scores(context.test_set, state, deletion, observed),
    )
    if stage == "before":
        deletion = replace(deletion, scores_before=deletion.scores)
        deletion = replace(deletion, target_score=_target_score(context, first_measurements(deletion)[0]))
    return replace(state, deletion=deletion)


def _measurement_of(
    context: FederationContext,
    state: FederationState,
    target: Target,
    stage: Stage,
    observed: ModelObservations,
) -> Measurement:
    deletion = state.active_deletion()
    clients = sorted(concerned(context, [target]))
    mine = [observed.forgotten[client] for client in clients if client in observed.forgotten]
    missing = [
        f"client {client}: {observed.missing[client]}" for client in clients if client in observed.missing
    ]
    return measure(
        stage=stage,
        round=state.round,
        test=observed.test,
        retained=observed.retained,
        forgotten=merge(mine) if mine else None,
        seed=context.settings.seed,
        reasons={"forgotten": "; ".join(missing)} if missing else None,
        outputs_before=deletion.outputs_before if stage != "before" else None,
        shadow_fits=deletion.shadow_fits,
        shadow_notes=[
            f"client {client}: {note}" if client else note
            for client, note in sorted(deletion.shadow_notes.items())
            if client in ("", *clients)
        ],
        learns_change=context.settings.mia_u_classifiers,
    )


def _asked_shadows(
    context: FederationContext,
    state: FederationState,
    forgets: Mapping[str, Forget],
    deletion: ActiveDeletion,
) -> ActiveDeletion:
    """`deletion` with what the shadow models say of its examples, where there are shadow models."""
    found = shadows.ask(context, state, forgets)
    deletion = replace(deletion, shadow_fits=found.fits, shadow_notes=found.notes)
    if found.training is None:
        return deletion
    done = found.exchange
    return replace(
        deletion,
        shadow_cost=found.training.cost,
        measuring_cost=deletion.measuring_cost.plus(done, context.peak_memory(done)),
    )


def _outputs(observed: ModelObservations) -> dict[str, Outputs]:
    """The posteriors by `test` and `forgotten`, as far as there are any."""
    sets = {"test": observed.test, "forgotten": merge(observed.forgotten.values())}
    return {name: one.outputs for name, one in sets.items() if one is not None and one.outputs is not None}


def _target_score(context: FederationContext, before: Measurement) -> float | None:
    if context.settings.recovery_target > 0:
        return context.settings.recovery_target
    if before.test is None or before.test.score is None:
        return None
    return before.test.score - context.settings.recovery_tolerance


def concerned(context: FederationContext, targets: Sequence[Target]) -> dict[str, Forget]:
    """What each client counts as forgotten in these deletions; a class concerns every client that is left."""
    gone = context.ledger.forgotten_clients()
    everyone = [record.client_id for record in context.ledger.clients() if record.client_id not in gone]
    forgets: dict[str, Forget] = {}
    for target in targets:
        for client in [target.client_id] if target.client_id is not None else everyone:
            forgets[client] = forgets.get(client, NOTHING) | target.forget
    return forgets


def first_measurements(deletion: ActiveDeletion) -> tuple[Measurement, ...]:
    """The measurements of the first request: all requests of a deletion are measured together."""
    return tuple(deletion.measurements[deletion.request_ids[0]])
