"""A deletion on the live federation, step by step: claim, unlearn, recover, verify, report.

Each of these functions yields what it decides, one `Step` at a time; the live loop commits a step before the next one
is computed. `server.live_loop` says in which order ledger and checkpoint are written, and why a crash costs at most the
work of one step.

    begin       the checkpoint "before" of the claimed requests.
    unlearn     a step per exchange of the method. With the first one the model is measured as it was, and the shadow
                models are asked, if there are any. With the last one the model and the phase change together, the
                model before beside it. The unlearned model is on trial.
    recover     an ordinary round without the forgotten data, which measures the model that it starts from; at last the
                last model is measured, then the gate. Where it accepts the model, exclusions and phase change together
                and the shadow models are erased. Where it does not, `give_up` goes back.
    verify      report and certificate, then the requests are completed and older checkpoints are erased.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from logging import getLogger
from pathlib import Path

from server.deletion.certifying import write_certificate
from server.deletion.exchanges import carry_out
from server.deletion.failed_attempt import give_up
from server.deletion.measuring import (
    classes_left_out,
    first_measurements,
    forget_sets,
    measure_beside,
    measure_model,
    score_on_test,
)
from server.deletion.privacy_account import result_of
from server.deletion.report_facts import report_of
from server.federation.context import FederationContext
from server.federation.gate import judge, name_of_test_score, refusal
from server.federation.state import ActiveDeletion, FederationState, Phase
from server.federation.step import Move, RoundDone, Step
from server.federation.suspensions import with_left_out
from server.report import write_report
from server.report.report_data import ReportData
from server.requests.admission import SITE
from server.state_directory.files import REPORTS
from strategies.sessions.session_grid import SessionGrid
from unlearning.errors import MethodFailed, ModelRefused, RequestError, SessionError
from unlearning.methods.registry import method_named, validated_parameters
from unlearning.parameters import content_hash
from unlearning.requests import DeletionRequest, Status
from unlearning.verification.measurement import Stage

_log = getLogger(__name__)


def begin(
    context: FederationContext, state: FederationState, requests: Sequence[DeletionRequest]
) -> Iterator[Step]:
    """Begin one deletion that serves all `requests`."""
    first, ledger = requests[0], context.ledger
    accepted_loss, accepted_by = ledger.accepted_loss(first.id)
    deletion = ActiveDeletion(
        request_ids=tuple(request.id for request in requests),
        targets=tuple(ledger.target_of(request) for request in requests),
        method=first.method,
        parameters=dict(first.parameters),
        attempt=max(request.attempts for request in requests),
        accepted_loss=accepted_loss,
        accepted_by=accepted_by,
        started_round=state.round,
        hash_before=content_hash(state.parameters),
    )
    _log.info(
        "Deletion of %s by %s begins (%s).",
        ", ".join(target.describe() for target in deletion.targets),
        deletion.method,
        ", ".join(deletion.request_ids),
    )
    yield Step(state=replace(state, deletion=deletion, phase=Phase.UNLEARNING))


def unlearn(context: FederationContext, state: FederationState) -> Iterator[Step]:
    """Carry out the method's next exchange; over a session of its own all that are left, the measurement first."""
    failure: MethodFailed | ModelRefused
    try:
        deletion, grid = state.active_deletion(), context.clients.grid
        if not (method_named(deletion.method).info.is_iterative and isinstance(grid, SessionGrid)):
            yield from carry_out(context, state)
            return
        if not deletion.measurements:
            yield Step(state=measure_model(context, state, "before"))
            return
        with grid.session():
            while state.phase is Phase.UNLEARNING:
                for step in carry_out(context, state):
                    yield step
                    state = step.state
        return
    except (MethodFailed, ModelRefused) as exc:
        failure = exc
    except SessionError as exc:
        failure = MethodFailed(str(exc), retryable=True)
    except RequestError as exc:  # admitted by a version that allowed these parameters
        failure = MethodFailed(str(exc), retryable=False)
    yield give_up(context, state, failure)


def recover(context: FederationContext, state: FederationState) -> Iterator[Step]:
    """Carry out one recovery round, or decide that it is enough; the model that it starts from is measured with it."""
    stage = _stage_to_measure(state, every_round=context.settings.measure_every_recovery_round)
    if stage and context.test_set.examples is None and state.active_deletion().target_score is not None:
        yield Step(state=measure_model(context, state, stage))  # what clients report may end the recovery
        return
    reason = _stop_reason(context, state)
    if reason:
        if stage or first_measurements(state.active_deletion())[-1].round != state.round:
            state = measure_model(context, state, stage or "recovery")
        yield _decide(context, state, reason)
        return
    round_done = None
    state, answers = measure_beside(context, state, stage, context.ask_round(state))
    if answers is not None and (answers.messages or answers.failures):
        done, deletion = context.take_round(state, answers), state.active_deletion()
        deletion = replace(
            deletion,
            recovery_rounds=deletion.recovery_rounds + 1,
            recovery_cost=deletion.recovery_cost.plus(done.exchange, done.memory),
            findings=with_left_out(deletion.findings, done.state.suspensions, done.state.round),
        )
        state = replace(done.state, deletion=deletion)
        round_done = RoundDone(result=done, kind="recovery", request_ids=deletion.request_ids)
    elif not stage:
        return  # no client could be asked: that was no recovery round
    yield Step(state=state, round=round_done)


def _stage_to_measure(state: FederationState, *, every_round: bool) -> Stage | None:
    """Return at which stage the model is, if it has to be measured and has not been."""
    last = first_measurements(state.active_deletion())[-1]
    if last.stage == "before":
        return "unlearned"
    return "recovery" if every_round and last.round != state.round else None


def _decide(context: FederationContext, state: FederationState, reason: str) -> Step:
    """Commit the recovered model, or go back to the model before."""
    deletion = state.active_deletion()
    # A checkpoint that was lost since has committed it: then there is no way back.
    is_committed = context.ledger.get(deletion.request_ids[0]).status is not Status.RECOVERING
    verdict = judge(
        deletion, max_score_loss=context.settings.max_score_loss, score_name=context.task.score_name
    )
    if not verdict.passes and not is_committed:
        return give_up(context, state, refusal(deletion.request_ids[0], verdict))
    state = replace(
        state,
        phase=Phase.VERIFYING,
        exclusions=state.exclusions.including(deletion.targets),
        deletion=replace(deletion, stop_reason=reason, before=None),
    )
    text = f"{reason}; {verdict.text}"
    return Step(
        state=state,
        moves=tuple(
            Move(request_id=request_id, to=Status.VERIFYING, reason=text)
            for request_id in deletion.request_ids
        ),
        cleanup=(context.shadows.erase,),
    )


def verify(context: FederationContext, state: FederationState) -> Iterator[Step]:
    """Write reports and certificates, complete the requests, erase the checkpoints that still carry the data."""
    deletion = state.active_deletion()
    context.clients.notify(state.round, forget_sets(context.ledger, deletion.targets))
    for request_id in deletion.request_ids:
        # Before a crash: the ledger names the certificate that was written then.
        if context.ledger.get(request_id).status is not Status.COMPLETED:
            # This one only checks the fence: an older process must not write over what is certified.
            yield Step(state=state)
            yield Step(
                state=state, moves=(_complete(context, deletion, report_of(context, state, request_id)),)
            )
            _log.info("Deletion request %s is completed.", request_id)
    if any(context.ledger.get(request_id).submitted_role == SITE for request_id in deletion.request_ids):
        # Who asked at its own site learns that it is done; a forgotten client would hear of it never.
        context.clients.restrict(state)
        context.clients.notify(state.round, forget_sets(context.ledger, deletion.targets))
    state = context.preparations.erase(state)
    state = replace(state, phase=Phase.TRAINING, deletion=None)
    yield Step(state=state, cleanup=(partial(_erase_older_checkpoints, context),))


def _erase_older_checkpoints(context: FederationContext) -> None:
    erased = context.checkpoints.erase_older()
    _log.info("%d older checkpoint(s) erased: they still carried what was forgotten.", erased)


def _complete(context: FederationContext, deletion: ActiveDeletion, report: ReportData) -> Move:
    """Write a request's report and certificate; return the move that completes it with both in its result."""
    request_id = report.request.id
    directory = context.state_dir / REPORTS / request_id
    write_report(directory, report)
    certificate = {
        "certificate_sha256": write_certificate(
            context.ledger, report, directory, context.settings.certificate_key
        )
    }
    _log.info("The report of %s is in %s.", request_id, directory)
    return Move(
        request_id=request_id,
        to=Status.COMPLETED,
        detail=certificate,
        result={
            "report": str(Path(REPORTS) / request_id / "report.html"),
            **certificate,
            "model_hash_before": deletion.hash_before,
            "model_hash_unlearned": deletion.hash_unlearned,
            "model_hash_after": report.model_hash_after,
            "recovery_rounds": deletion.recovery_rounds,
            "cost": _cost_of(deletion),
            **result_of(deletion),
        },
    )


def _stop_reason(context: FederationContext, state: FederationState) -> str:
    """Return why recovery ends now; empty while it goes on."""
    deletion = state.active_deletion()
    known = {record.client_id for record in context.ledger.clients()}
    if known and all(state.left_out.is_forgotten(client) for client in known):
        return "no client is left to recover with"
    method = method_named(deletion.method)
    if deletion.recovery_rounds < method.repair_rounds(validated_parameters(method, deletion.parameters)):
        return ""
    classes = classes_left_out(context, state.exclusions.including(deletion.targets))
    if first_measurements(deletion)[-1].round == state.round:
        score = score_on_test(context, deletion)
    else:
        score = context.test_set.score(state.parameters, without=classes)
    if score is not None and deletion.target_score is not None and score >= deletion.target_score:
        name = name_of_test_score(context.task.score_name, classes)
        return f"{name} {score:.4f} reached the target {deletion.target_score:.4f}"
    if deletion.recovery_rounds >= context.settings.recovery_max_rounds:
        return f"recovery-max-rounds ({context.settings.recovery_max_rounds}) is reached"
    return ""


def _cost_of(deletion: ActiveDeletion) -> dict[str, float]:
    """Return what unlearning and recovery took together, for those who plan the next deletion."""
    phases = (deletion.unlearning_cost, deletion.recovery_cost)
    return {
        "seconds": sum(cost.seconds for cost in phases),
        "bytes": sum(cost.bytes_sent + cost.bytes_received for cost in phases),
    }
