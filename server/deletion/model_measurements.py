"""Measurements of the model during a deletion: before it, unlearned, and after recovery rounds."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from flwr.app import Message

from server.deletion.open_deletion import OpenDeletion
from server.federation.context import FederationContext
from server.federation.gate import TEST_SET, retained_scores
from server.federation.observing import TOGETHER, ModelObservations, measuring_messages, read_all
from server.federation.state import ActiveDeletion, FederationState
from strategies.exchange import Exchange
from strategies.joint_exchange import JointMessages
from unlearning.requests import Exclusions, Target
from unlearning.verification.figures import Measurement, Stage
from unlearning.verification.measurement import measure
from unlearning.verification.observations import Outputs, merge


def measure_model(opened: OpenDeletion, state: FederationState, stage: Stage) -> FederationState:
    """Return `state` with one more measurement of its model for each request of the deletion."""
    clients = opened.context.clients
    done = clients.exchange(measuring_messages(clients, state.parameters, state.round, opened.forget_sets))
    return _with_measurement(opened, state, stage, done)


def measure_beside(
    opened: OpenDeletion, state: FederationState, stage: Stage | None, work: Mapping[str, Message]
) -> tuple[FederationState, Exchange | None]:
    """Exchange `work`, and with it the measurement of the state's model where it is due, at a `stage`.

    The exchange is None where the work starts from another model, as also from a rounded one, or each is a sum of its
    own: then it waits, and only the measurement was done.
    """
    clients = opened.context.clients
    if stage is None:
        return state, clients.exchange(work)
    measurement = measuring_messages(clients, state.parameters, state.round, opened.forget_sets)
    both = JointMessages(work=work, measurement=measurement)
    settings = clients.fedavg.settings
    if settings.secure_aggregation or settings.rounded_to or not both.is_possible:
        return measure_model(opened, state, stage), None
    done, measured = clients.exchange_both(both)
    return _with_measurement(opened, state, stage, measured), done


def _with_measurement(
    opened: OpenDeletion, state: FederationState, stage: Stage, done: Exchange
) -> FederationState:
    """Return `state` with the measurement of its model that clients answered in the exchange `done`."""
    context, deletion = opened.context, state.active_deletion()
    observed = read_all(context.clients, context.test_set, state.parameters, opened.forget_sets, done)
    if stage == "before":
        deletion = replace(deletion, outputs_before=_outputs(observed))
    measurements = _measure_each(opened, deletion, observed, stage, state)
    deletion = replace(
        deletion,
        measurements=measurements,
        measuring_cost=deletion.measuring_cost.plus(done, context.clients.peak_memory(done)),
        scores=retained_scores(
            context.test_set,
            state.parameters,
            state.exclusions.including(deletion.targets).classes,
            observed,
        ),
    )
    if stage == "before":
        target_score = _target_score(context, deletion)
        deletion = replace(deletion, scores_before=deletion.scores, target_score=target_score)
    return replace(state, deletion=deletion)


def _measure_each(
    opened: OpenDeletion,
    deletion: ActiveDeletion,
    observed: ModelObservations,
    stage: Stage,
    state: FederationState,
) -> dict[str, tuple[Measurement, ...]]:
    """Return the measurements of each request so far, with one of the state's model more."""
    of_model = partial(
        measure,
        stage=stage,
        round=state.round,
        test=observed.test,
        retained=observed.retained,
        seed=opened.context.settings.seed,
        outputs_before=deletion.outputs_before if stage != "before" else None,
        learns_change=opened.context.settings.mia_u_classifiers,
        metric_names=opened.context.task.metric_names,
    )
    found, newest = {}, {}
    for request_id, target in zip(deletion.request_ids, deletion.targets, strict=True):
        clients = tuple(opened.concerned(target))
        if clients not in newest:  # what a client forgets in all its requests together
            newest[clients] = of_model(**forgotten_by(clients, observed))
        measured = with_class_test(opened.context, state, target, newest[clients])
        found[request_id] = (*deletion.measurements.get(request_id, ()), measured)
    return found


def with_class_test(
    context: FederationContext, state: FederationState, target: Target, measured: Measurement
) -> Measurement:
    """Return a measurement with what the server's own test examples say of the target's class, where it is one."""
    if target.class_label is None:
        return measured
    return replace(measured, class_test=context.test_set.recognised(state.parameters, target.class_label))


def forgotten_by(clients: Sequence[str], observed: ModelObservations) -> dict[str, Any]:
    """Return what a measurement says of these clients' forgotten examples, and what is missing of it."""
    if observed.together is not None and {*clients} == observed.together:
        return {"forgotten": observed.forgotten.get(TOGETHER)}
    mine = [observed.forgotten[client] for client in clients if client in observed.forgotten]
    missing = [
        f"client {client}: {observed.missing[client]}" for client in clients if client in observed.missing
    ]
    return {
        "forgotten": merge(mine) if mine else None,
        "reasons": {"forgotten": "; ".join(missing)} if missing else None,
    }


def _outputs(observed: ModelObservations) -> dict[str, Outputs]:
    """Return the posteriors by `test` and `forgotten`, as far as there are any."""
    sets = {"test": observed.test, "forgotten": merge(observed.forgotten.values())}
    return {name: one.outputs for name, one in sets.items() if one is not None and one.outputs is not None}


def _target_score(context: FederationContext, deletion: ActiveDeletion) -> float | None:
    settings = context.settings
    if settings.recovery_target > 0:
        return settings.recovery_target
    before = score_on_test(context, deletion)
    return None if before is None else before - settings.recovery_tolerance


def score_on_test(context: FederationContext, deletion: ActiveDeletion) -> float | None:
    """Return the test score of the model that was measured last: the server's without the forgotten classes.

    A model that has forgotten them never comes back to the score over all classes, and one that has not comes too soon.
    A server without test examples has only what the clients say of theirs, all classes together.
    """
    if context.test_set.examples is not None:
        return deletion.scores.get(TEST_SET)
    return first_measurements(deletion)[-1].score("test")


def classes_left_out(context: FederationContext, exclusions: Exclusions) -> frozenset[int]:
    """Return the classes that the test score leaves out: the forgotten ones, where the server has the test examples."""
    return exclusions.classes if context.test_set.examples is not None else frozenset()


def first_measurements(deletion: ActiveDeletion) -> tuple[Measurement, ...]:
    """Return the measurements of the first request: all requests of a deletion are measured together."""
    return tuple(deletion.measurements[deletion.request_ids[0]])
