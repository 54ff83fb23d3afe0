"""A deletion on the live federation, step by step: claim, unlearn, recover, verify, report.

Each step takes a state and gives the next one, and leaves ledger and checkpoint so that doing the step
again after a crash changes nothing:

    claim       ledger: scheduled → unlearning, then checkpoint. A crash in between leaves requests that
                no checkpoint knows; `reconcile` puts them back into the queue.
    unlearn     measure the model and ask the shadow models, if there are any; then a checkpoint after every
                exchange of the method. With the last one the model and the phase change in one checkpoint, which
                keeps the model before; then the ledger follows. Nothing is committed yet.
    recover     ordinary rounds without the forgotten data, a checkpoint after each; at last the gate. Where it lets
                the model pass, the exclusions and the phase change in one checkpoint, the shadow models are erased,
                and the ledger follows, with its exclusions. Where it does not, `give_up` goes back.
    verify      report and certificate, ledger: completed, then checkpoint; older checkpoints are erased.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from logging import getLogger
from pathlib import Path

from server.certificate.replay_inputs import directory_of, discard
from server.deletion.certifying import recording, warn_of_kept_inputs, write_certificate
from server.deletion.exchanges import carry_out, session_for
from server.deletion.failed_attempt import finish_giving_up, give_up
from server.deletion.privacy_account import METHOD, accounted, may_serve_together, result_of
from server.deletion.report_facts import report_of
from server.federation import shadow_federations as shadows
from server.federation.context import FederationContext, ModelObservations
from server.federation.gate import check_unlearned, judged, refusal, retained_scores
from server.federation.state import ActiveDeletion, Before, FederationState, Phase
from server.report import write_report
from server.requests.admission import check_admissible
from server.state_directory.files import REPORTS
from server.state_directory.noise_secret import noise_key
from strategies.sessions.server_half import Session
from strategies.unlearning_strategy import UnlearningStrategy
from unlearning.errors import IllegalMove, MethodFailed, ModelRefused, RequestError, SessionError
from unlearning.methods import Need, method_named, validated_parameters
from unlearning.parameters import content_hash
from unlearning.requests import NOTHING, DeletionRequest, Forget, Status, Target
from unlearning.verification.measurement import Measurement, Stage, measure
from unlearning.verification.observations import Outputs, merge

_log = getLogger(__name__)


def reconcile(context: FederationContext, state: FederationState) -> FederationState:
    """Make ledger and state agree after a start.

    The checkpoint is the one that is ahead or equal, but where an attempt was being given up.
    """
    state = finish_giving_up(context, state)
    batch = state.batch
    mine = set(batch.request_ids) if batch is not None else set()
    for request in context.ledger.list_requests(statuses=(Status.UNLEARNING,)):
        if request.id not in mine:
            _move(context, request.id, Status.SCHEDULED, reason="the server stopped before it had begun")
    if batch is not None and state.phase is not Phase.UNLEARNING:
        for request_id in batch.request_ids:
            _follow(context, request_id, state.phase)
    return state


def schedule(context: FederationContext) -> None:
    """Check what was received once more, now with the live federation at hand, and put it in the queue."""
    for request in context.ledger.list_requests(statuses=(Status.RECEIVED,)):
        try:
            check_admissible(
                context.ledger,
                context.ledger.target_of(request),
                method=request.method,
                parameters=request.parameters,
            )
        except RequestError as exc:
            _move(context, request.id, Status.FAILED, reason=str(exc))
            continue
        _move(context, request.id, Status.SCHEDULED)


def claim(context: FederationContext, state: FederationState) -> ActiveDeletion | None:
    """Take the first request that can be served now, and those that the method can serve with it."""
    online = set(context.fedavg.roster.online(context.grid))
    ready: list[DeletionRequest] = []
    for request in context.ledger.list_requests(statuses=(Status.SCHEDULED,)):
        absent = _absent(request, online)
        if absent:
            _note_once(context, request, f"waiting for {absent} to come online")
        else:
            ready.append(request)
    if not ready:
        return None
    first = ready[0]
    method = method_named(first.method)
    accepted = context.ledger.accepted_loss(first.id)
    together = [
        request
        for request in ready
        if request.method == first.method
        and dict(request.parameters) == dict(first.parameters)
        and (request is first or context.ledger.accepted_loss(request.id) == accepted)
    ]
    taken: list[DeletionRequest] = []
    is_shared = method.info.several_at_once and may_serve_together(context.settings, first.method)
    for request in together if is_shared else [first]:
        try:
            taken.append(_move(context, request.id, Status.UNLEARNING))
        except IllegalMove as exc:  # it was cancelled at this very moment
            _log.info("%s", exc)
    if not taken:
        return None
    return ActiveDeletion(
        request_ids=tuple(request.id for request in taken),
        targets=tuple(context.ledger.target_of(request) for request in taken),
        method=first.method,
        parameters=dict(first.parameters),
        attempt=1 + max(request.attempts for request in taken),
        accepted_loss=accepted[0],
        accepted_by=accepted[1],
        started_round=state.round,
        hash_before=content_hash(state.parameters),
    )


def begin(context: FederationContext, state: FederationState, batch: ActiveDeletion) -> FederationState:
    """The checkpoint "before"."""
    _log.info(
        "Deletion of %s by %s begins (%s).",
        ", ".join(target.describe() for target in batch.targets),
        batch.method,
        ", ".join(batch.request_ids),
    )
    return context.save(replace(state, batch=batch, phase=Phase.UNLEARNING))


def unlearn(context: FederationContext, state: FederationState) -> FederationState:
    """Measure the model as it was, or carry out the method's next exchange; over a session all that are left.

    What clients must leave out stays the same for as long as a session lasts.
    """
    failure: MethodFailed | ModelRefused
    try:
        if not _batch(state).measurements:
            return context.save(_measured(context, state, "before"))
        with session_for(context, method_named(_batch(state).method)) as session:
            state = _exchange(context, state, session)
            while session is not None and state.phase is Phase.UNLEARNING:
                state = _exchange(context, state, session)
        return state
    except MethodFailed as exc:
        failure = exc
    except ModelRefused as exc:
        failure = exc
    except SessionError as exc:
        failure = MethodFailed(str(exc), retryable=True)
    except RequestError as exc:  # admitted by a version that allowed these parameters
        failure = MethodFailed(str(exc), retryable=False)
    inputs = directory_of(context.state_dir, _batch(state))
    state = give_up(context, state, failure)
    discard(inputs)
    return state


def recover(context: FederationContext, state: FederationState) -> FederationState:
    """Measure the unlearned model, or one recovery round, or decide that it is enough."""
    batch = _batch(state)
    if all(measurement.stage == "before" for measurement in _first_measurements(batch)):
        return context.save(_measured(context, state, "unlearned"))
    reason = _stop_reason(context, state, batch)
    if reason:
        if _first_measurements(batch)[-1].round != state.round:
            state = _measured(context, state, "recovery")
        return _decided(context, state, reason)
    following, done = context.fedavg_round(state)
    if not done.messages and not done.failures:  # nobody could be asked: that was no recovery round
        return state
    state = replace(
        following,
        batch=replace(
            batch,
            recovery_rounds=batch.recovery_rounds + 1,
            recovery_cost=batch.recovery_cost.plus(done, context.peak_memory(done)),
        ),
    )
    context.record(state, "recovery", done, batch.request_ids)
    if context.settings.measure_every_recovery_round:
        state = _measured(context, state, "recovery")
    return context.save(state)


def _decided(context: FederationContext, state: FederationState, reason: str) -> FederationState:
    """The recovered model is committed, or the federation goes back to the model before."""
    batch = _batch(state)
    # An earlier version, or a checkpoint that was lost since, has committed it: then there is no way back.
    is_committed = (
        batch.before is None or context.ledger.get(batch.request_ids[0]).status is not Status.RECOVERING
    )
    verdict = judged(context, batch)
    if not verdict.passes and not is_committed:
        inputs = directory_of(context.state_dir, batch)
        state = give_up(context, state, refusal(batch.request_ids[0], verdict))
        discard(inputs)
        return state
    state = replace(
        state,
        phase=Phase.VERIFYING,
        exclusions=state.exclusions.including(batch.targets),
        batch=replace(batch, stop_reason=reason, before=None),
    )
    state = context.save(state)
    shadows.erase(context)
    _move_all(context, batch, Status.VERIFYING, reason=f"{reason}; {verdict.text}")
    return state


def verify(context: FederationContext, state: FederationState) -> FederationState:
    """Write reports and certificates, complete the requests, erase the checkpoints that still carry the data."""
    batch = _batch(state)
    context.notify(state, concerned(context, batch.targets))
    after = content_hash(state.parameters)
    for request_id in batch.request_ids:
        if context.ledger.get(request_id).status is Status.COMPLETED:
            continue  # before a crash: the ledger names the certificate that was written then
        context.ledger.check_fence(context.token)  # an older process must not write over what is certified
        report = report_of(context, state, request_id)
        directory = context.state_dir / REPORTS / request_id
        write_report(directory, report)
        certificate_sha256 = write_certificate(context, state, report, directory)
        context.ledger.move(
            request_id,
            Status.COMPLETED,
            token=context.token,
            now=context.now(),
            detail={"certificate_sha256": certificate_sha256},
            result={
                "report": str(Path(REPORTS) / request_id / "report.html"),
                "certificate_sha256": certificate_sha256,
                "model_hash_before": batch.hash_before,
                "model_hash_unlearned": batch.hash_unlearned,
                "model_hash_after": after,
                "recovery_rounds": batch.recovery_rounds,
                "cost": _cost_of(batch),
                **result_of(batch),
            },
        )
        _log.info("Deletion request %s is completed; report in %s", request_id, directory)
    state = context.preparations.erase(state)
    state = context.save(replace(state, phase=Phase.TRAINING, batch=None))
    erased = context.checkpoints.erase_older()
    _log.info("%d older checkpoint(s) erased: they still carried what was forgotten.", erased)
    warn_of_kept_inputs(context)
    return state


def concerned(context: FederationContext, targets: Sequence[Target]) -> dict[str, Forget]:
    """What each client counts as forgotten in these deletions; a class concerns every client that is left."""
    gone = context.ledger.forgotten_clients()
    everyone = [record.client_id for record in context.ledger.clients() if record.client_id not in gone]
    forgets: dict[str, Forget] = {}
    for target in targets:
        for client in [target.client_id] if target.client_id is not None else everyone:
            forgets[client] = forgets.get(client, NOTHING) | target.forget
    return forgets


def _exchange(context: FederationContext, state: FederationState, session: Session | None) -> FederationState:
    batch = _batch(state)
    method = method_named(batch.method)
    if batch.method_state is None:
        context.preparations.discard(batch)
    strategy = UnlearningStrategy(
        recording(context, batch),
        batch.targets,
        context.fedavg,
        parameters=validated_parameters(method, batch.parameters),
        state=batch.method_state,
        rounds_trained=state.training_rounds,
        kept=context.preparations.kept(state, batch),
        noise_key=noise_key(context.state_dir, batch.request_ids) if batch.method == METHOD else None,
    )
    number = state.round + 1
    done = carry_out(context, session, strategy, number, state.parameters)
    method_state = strategy.state
    assert method_state is not None
    check_unlearned(method_state.parameters, state.parameters)
    batch = replace(
        batch,
        method_state=method_state,
        participants=tuple(sorted({*batch.participants, *context.fedavg.outcome.participants})),
        unlearning_cost=batch.unlearning_cost.plus(done, context.peak_memory(done)),
    )
    if not method_state.finished:
        return context.save(replace(state, round=number, batch=batch))
    state = replace(
        state,
        round=number,
        parameters=method_state.parameters,
        num_examples=dict(context.fedavg.num_examples),
        phase=Phase.RECOVERING,
        batch=replace(
            batch,
            method_state=None,
            before=Before(
                parameters=state.parameters,
                num_examples=state.num_examples,
                prepared_since=state.prepared_since,
                generations=state.generations,
            ),
            findings=accounted(context, state, batch, method_state),
            hash_unlearned=content_hash(method_state.parameters),
        ),
    )
    state = context.preparations.branched(state, batch)
    context.record(state, "unlearning", done, batch.request_ids)
    state = context.save(state)
    _move_all(context, batch, Status.RECOVERING)
    return state


def _measured(context: FederationContext, state: FederationState, stage: Stage) -> FederationState:
    """`state` with one more measurement of its model for each request of the batch."""
    batch = _batch(state)
    forgets = concerned(context, batch.targets)
    context.restrict(state)
    observed = context.observe_all(state, state.parameters, forgets)
    if stage == "before":
        batch = _asked_shadows(context, state, forgets, replace(batch, outputs_before=_outputs(observed)))
    measurements = {
        request_id: (
            *batch.measurements.get(request_id, ()),
            _measurement_of(context, replace(state, batch=batch), target, stage, observed),
        )
        for request_id, target in zip(batch.request_ids, batch.targets, strict=True)
    }
    done = observed.exchange
    batch = replace(
        batch,
        measurements=measurements,
        measuring_cost=batch.measuring_cost.plus(done, context.peak_memory(done)),
        scores=retained_scores(context, state, batch, observed),
    )
    if stage == "before":
        batch = replace(batch, scores_before=batch.scores)
        batch = replace(batch, target_score=_target_score(context, _first_measurements(batch)[0]))
    return replace(state, batch=batch)


def _measurement_of(
    context: FederationContext,
    state: FederationState,
    target: Target,
    stage: Stage,
    observed: ModelObservations,
) -> Measurement:
    batch = _batch(state)
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
        outputs_before=batch.outputs_before if stage != "before" else None,
        shadow_fits=batch.shadow_fits,
        shadow_notes=[
            f"client {client}: {note}" if client else note
            for client, note in sorted(batch.shadow_notes.items())
            if client in ("", *clients)
        ],
        learns_change=context.settings.mia_u_classifiers,
    )


def _asked_shadows(
    context: FederationContext, state: FederationState, forgets: Mapping[str, Forget], batch: ActiveDeletion
) -> ActiveDeletion:
    """`batch` with what the shadow models say of its examples, where there are shadow models."""
    found = shadows.ask(context, state, forgets)
    batch = replace(batch, shadow_fits=found.fits, shadow_notes=found.notes)
    if found.training is None:
        return batch
    done = found.exchange
    return replace(
        batch,
        shadow_cost=found.training.cost,
        measuring_cost=batch.measuring_cost.plus(done, context.peak_memory(done)),
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


def _stop_reason(context: FederationContext, state: FederationState, batch: ActiveDeletion) -> str:
    """Why recovery ends now; empty while it goes on."""
    known = {record.client_id for record in context.ledger.clients()}
    if known and all(state.left_out.is_forgotten(client) for client in known):
        return "no client is left to recover with"
    if batch.recovery_rounds < int(batch.parameters.get("repair_rounds", 0)):
        return ""
    last = _first_measurements(batch)[-1]
    score = last.test.score if last.test is not None and last.round == state.round else None
    if score is None and batch.target_score is not None and last.round != state.round:
        test = context.observe_test(state.parameters)
        score = test.mean_score if test is not None else None
    if score is not None and batch.target_score is not None and score >= batch.target_score:
        name = context.task.score_name
        return f"test {name} {score:.4f} reached the target {batch.target_score:.4f}"
    if batch.recovery_rounds >= context.settings.recovery_max_rounds:
        return f"recovery-max-rounds ({context.settings.recovery_max_rounds}) is reached"
    return ""


def _absent(request: DeletionRequest, online: set[str]) -> str:
    needs = method_named(request.method).info.needs
    client = request.target.client_id
    if (
        client is not None
        and client not in online
        and needs & {Need.REQUESTER_ONLINE, Need.EVERY_CLIENT_ONLINE}
    ):
        return f"client {client}"
    return "" if online else "any client"


def _note_once(context: FederationContext, request: DeletionRequest, text: str) -> None:
    if context.notes.get(request.id) != text:
        context.notes[request.id] = text
        context.ledger.note(
            request.id, "waiting", token=context.token, now=context.now(), detail={"text": text}
        )


def _follow(context: FederationContext, request_id: str, phase: Phase) -> None:
    """Bring the ledger to where the checkpoint already is."""
    order = [Status.UNLEARNING, Status.RECOVERING, Status.VERIFYING]
    wanted = Status.RECOVERING if phase is Phase.RECOVERING else Status.VERIFYING
    status = context.ledger.get(request_id).status
    while status in order and order.index(status) < order.index(wanted):
        status = _move(context, request_id, order[order.index(status) + 1]).status


def _move_all(context: FederationContext, batch: ActiveDeletion, to: Status, reason: str = "") -> None:
    for request_id in batch.request_ids:
        _move(context, request_id, to, reason=reason)


def _move(
    context: FederationContext, request_id: str, to: Status, *, reason: str = "", retryable: bool = False
) -> DeletionRequest:
    return context.ledger.move(
        request_id, to, token=context.token, now=context.now(), reason=reason, retryable=retryable
    )


def _cost_of(batch: ActiveDeletion) -> dict[str, float]:
    """What unlearning and recovery took together, for those who plan the next deletion."""
    phases = (batch.unlearning_cost, batch.recovery_cost)
    return {
        "seconds": sum(cost.seconds for cost in phases),
        "bytes": sum(cost.bytes_sent + cost.bytes_received for cost in phases),
    }


def _batch(state: FederationState) -> ActiveDeletion:
    assert state.batch is not None, "a step of a deletion needs its batch"
    return state.batch


def _first_measurements(batch: ActiveDeletion) -> tuple[Measurement, ...]:
    """The measurements of the first request: all requests of a batch are measured together."""
    return tuple(batch.measurements[batch.request_ids[0]])
