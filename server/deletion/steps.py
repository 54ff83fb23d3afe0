"""A deletion on the live federation, step by step: claim, unlearn, recover, verify, report.

Each of these functions yields what it decides, one `Step` at a time; the live loop commits a step before the next one
is computed. `server.live_loop` says in which order ledger and checkpoint are written, and why a crash costs at most the
work of one step.

    begin       the checkpoint "before" of the claimed requests.
    unlearn     a step per exchange of the method. With the first one the model is measured as it was. With the last
                one the model and the phase change together, the model before kept as its rollback. The unlearned
                model is on trial.
    recover     an ordinary round without the forgotten data, which measures the model that it starts from; at last the
                last model is measured, then the gate. Where it accepts the model, exclusions and phase change together.
                Where it does not, `abandon` goes back.
    verify      report and certificate, then the requests are completed and older checkpoints are erased.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from logging import getLogger

from server.deletion.completion import complete
from server.deletion.exchanges import carry_out
from server.deletion.model_measurements import (
    classes_left_out,
    first_measurements,
    measure_beside,
    measure_model,
    score_on_test,
)
from server.deletion.never_used import STOP_REASON, is_never_used
from server.deletion.open_deletion import OpenDeletion
from server.deletion.rechecking import watched
from server.deletion.report_facts import report_of
from server.federation.context import FederationContext
from server.federation.gate import NOT_COMPARED, UNCHANGED, judge, name_of_test_score, refusal
from server.federation.presence import with_left_out
from server.federation.state import ActiveDeletion, FederationState, Move, Phase, RoundDone, Step
from server.ledger import SITE
from strategies.sessions.session_grid import SessionGrid
from unlearning.advice import CODE
from unlearning.errors import MethodFailed, ModelRefused, RequestError, SessionError
from unlearning.methods.registry import method_named
from unlearning.outcomes import has_noise
from unlearning.parameters import content_hash
from unlearning.requests import DeletionRequest, Status
from unlearning.verification.figures import Stage

_log = getLogger(__name__)


def begin(
    context: FederationContext, state: FederationState, requests: Sequence[DeletionRequest]
) -> Iterator[Step]:
    """Begin one deletion that serves all `requests`."""
    first, ledger = requests[0], context.ledger
    retries = [ledger.requests.last_retry(request.id) for request in requests]
    deletion = ActiveDeletion(
        request_ids=tuple(request.id for request in requests),
        targets=tuple(ledger.requests.target_of(request) for request in requests),
        method=first.method,
        parameters=dict(first.parameters),
        attempt=max(request.attempts for request in requests),
        tries=max(
            request.attempts - retry.attempts_before for request, retry in zip(requests, retries, strict=True)
        ),
        accepted_loss=retries[0].accepted_loss,
        accepted_by=retries[0].accepted_by,
        started_round=state.round,
        hash_before=content_hash(state.parameters),
        is_never_used=is_never_used(state, context.settings, method_named(first.method), first.target),
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
        opened = OpenDeletion.of(context, deletion)
        strategy = opened.strategy(state)
        if not (opened.method.info.is_iterative and isinstance(grid, SessionGrid)):
            yield from carry_out(opened, strategy, state)
            return
        if not deletion.measurements:
            yield Step(state=measure_model(opened, state, "before"))
            return
        with grid.session():
            while state.phase is Phase.UNLEARNING:
                for step in carry_out(opened, strategy, state):
                    yield step
                    state = step.state
        return
    except (MethodFailed, ModelRefused) as exc:
        failure = exc
    except SessionError as exc:
        failure = MethodFailed(str(exc), retryable=True, code="session")
    except RequestError as exc:  # the method, or what it takes, changed after the request was admitted
        failure = MethodFailed(str(exc), retryable=False, code=exc.code)
    yield abandon(context, state, failure)


def recover(context: FederationContext, state: FederationState) -> Iterator[Step]:
    """Carry out one recovery round, or decide that it is enough; the model that it starts from is measured with it."""
    opened = OpenDeletion.of(context, state.active_deletion())
    stage = _stage_to_measure(state, every_round=context.settings.measure_every_recovery_round)
    if stage and context.test_set.examples is None and state.active_deletion().target_score is not None:
        yield Step(state=measure_model(opened, state, stage))  # what clients report may end the recovery
        return
    reason = _stop_reason(opened, state)
    if reason:
        if stage or first_measurements(state.active_deletion())[-1].round != state.round:
            state = measure_model(opened, state, stage or "recovery")
        yield _decide(context, state, reason)
        return
    round_done, release = None, ""
    state, answers = measure_beside(opened, state, stage, context.ask_round(state))
    if answers is not None and not context.clients.fedavg.skips_round:
        done, deletion = context.take_round(state, answers), state.active_deletion()
        is_failed = done.outcome.committed is None
        deletion = replace(
            deletion,
            recovery_rounds=deletion.recovery_rounds + (not is_failed),
            failed_rounds=deletion.failed_rounds + is_failed,
            recovery_cost=deletion.recovery_cost.plus(done.exchange, done.memory),
            findings=with_left_out(deletion.findings, done.state.suspensions, done.state.round),
        )
        state = replace(done.state, deletion=deletion)
        round_done = RoundDone(result=done, kind="recovery", request_ids=deletion.request_ids)
        release = done.outcome.release
    elif not stage:
        return  # too few clients are online: that was no recovery round
    yield Step(state=state, round=round_done, release=release)


def _compares(context: FederationContext, deletion: ActiveDeletion) -> bool:
    """Tell whether recovery and the gate may look at scores: not where these would tell what noise hides."""
    is_private = context.settings.privacy != "none"
    return not has_noise(deletion.findings) and not (is_private and context.test_set.examples is None)


def _stage_to_measure(state: FederationState, *, every_round: bool) -> Stage | None:
    """Return at which stage the model is, if it has to be measured and has not been."""
    last = first_measurements(state.active_deletion())[-1]
    if last.stage == "before":
        return "unlearned"
    return "recovery" if every_round and last.round != state.round else None


def _decide(context: FederationContext, state: FederationState, reason: str) -> Step:
    """Commit the recovered model, or go back to the model before."""
    deletion = state.active_deletion()
    if deletion.failed_rounds:
        tried = deletion.recovery_rounds + deletion.failed_rounds
        reason = f"{reason}; of {tried} recovery rounds {deletion.failed_rounds} left the model as it was"
    # A checkpoint that was lost since has committed it: then there is no way back.
    is_committed = context.ledger.requests.get(deletion.request_ids[0]).status is not Status.RECOVERING
    settings, task = context.settings, context.task
    verdict = NOT_COMPARED
    if deletion.is_never_used:
        verdict = UNCHANGED  # also where other clients answer the second measurement
    elif _compares(context, deletion):
        verdict = judge(deletion, max_score_loss=settings.max_score_loss, score_name=task.score_name)
    if not verdict.passes and not is_committed:
        return abandon(context, state, refusal(deletion.request_ids[0], verdict, reason))
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
    )


def verify(context: FederationContext, state: FederationState) -> Iterator[Step]:
    """Write reports and certificates, complete the requests, erase the checkpoints that still carry the data."""
    deletion = state.active_deletion()
    opened = OpenDeletion.of(context, deletion)
    context.clients.notify(state.round, opened.forget_sets)
    for request_id in deletion.request_ids:
        # Before a crash: the ledger names the certificate that was written then.
        if context.ledger.requests.get(request_id).status is not Status.COMPLETED:
            # This one only checks the fence: an older process must not write over what is certified.
            yield Step(state=state)
            yield Step(
                state=state, moves=(complete(context, deletion, report_of(opened, state, request_id)),)
            )
            _log.info("Deletion request %s is completed.", request_id)
    if any(
        context.ledger.requests.get(request_id).submitted_role == SITE for request_id in deletion.request_ids
    ):
        # Who asked at its own site learns that it is done; a forgotten client would hear of it never.
        context.clients.restrict(state)
        context.clients.notify(state.round, opened.forget_sets)
    state = context.preparations.erase(state, moves_model=opened.method.info.moves_model)
    state = replace(watched(context, state), phase=Phase.TRAINING, deletion=None)
    yield Step(state=state, cleanup=(partial(_erase_older_checkpoints, context),))


def _erase_older_checkpoints(context: FederationContext) -> None:
    erased = context.checkpoints.erase_older()
    _log.info("%d older checkpoint(s) erased: they still carried what was forgotten.", erased)


def _stop_reason(opened: OpenDeletion, state: FederationState) -> str:
    """Return why recovery ends now; empty while it goes on."""
    context, deletion = opened.context, state.active_deletion()
    if deletion.is_never_used:
        return STOP_REASON
    if opened.method.info.rests_on_training:
        return "the model stays as it was, there is nothing to repair"
    if context.training_account is not None and context.training_account.is_spent:
        return "the privacy budget is spent"
    plan = context.clients.fedavg.plan
    # A request that waits for this deletion would keep its client out of recovery permanently.
    if plan.known and all(plan.left_out(client).everything for client in plan.known):
        return "no client is left to recover with: each is forgotten, or an open request would forget it"
    needed, most = opened.method.repair_rounds(opened.parameters), context.settings.recovery_max_rounds
    if context.task.local_layers:  # where samples are forgotten, their site begins its own layers again
        needed = max(needed, min(1, most))
    if deletion.recovery_rounds < needed and deletion.failed_rounds < max(needed, most):
        return ""
    classes = classes_left_out(context, state.exclusions.including(deletion.targets))
    if first_measurements(deletion)[-1].round == state.round:
        score = score_on_test(context, deletion)
    else:
        score = context.test_set.score(state.parameters, without=classes)
    target = deletion.target_score if _compares(context, deletion) else None
    if score is not None and target is not None and score >= target:
        name = name_of_test_score(context.task.score_name, classes)
        return f"{name} {score:.4f} reached the target {target:.4f}"
    if deletion.recovery_rounds + deletion.failed_rounds >= most:
        return f"recovery-max-rounds ({most}) is reached"
    return ""


def abandon(context: FederationContext, state: FederationState, failure: MethodFailed | ModelRefused) -> Step:
    """Go back to training with the model as it was; the requests wait for another try, or have failed."""
    deletion = state.active_deletion()
    _log.warning("Unlearning attempt %d failed: %s", deletion.attempt, failure)
    status, reason, retryable = Status.SCHEDULED, f"{failure}{_since(context, failure)}", False
    if isinstance(failure, ModelRefused):  # the same again would give the same: an operator has to decide
        status, retryable = Status.FAILED, True
    elif not failure.retryable:
        status = Status.FAILED
    elif deletion.tries >= context.settings.max_attempts:
        tries = f"{deletion.tries} attempts failed, the last one because"
        reason = f"{tries if deletion.tries > 1 else 'The attempt failed because'}: {reason}"
        status, retryable = Status.FAILED, True
    return Step(
        state=_go_back(state),
        moves=tuple(
            Move(
                request_id=request_id,
                to=status,
                reason=reason,
                retryable=retryable,
                result={CODE: failure.code} if status is Status.FAILED else None,
            )
            for request_id in deletion.request_ids
        ),
        ledger_first=True,
        cleanup=(partial(context.preparations.discard, deletion),),
    )


def _since(context: FederationContext, failure: MethodFailed | ModelRefused) -> str:
    """Say since when the clients that a failure names were not seen; empty where it names none."""
    named = failure.fields.get("clients")
    seen = [one for one in context.ledger.clients() if isinstance(named, tuple) and one.client_id in named]
    said = [f"{one.client_id} at {one.last_seen:%Y-%m-%d %H:%M} UTC" for one in seen if one.last_seen]
    return f" Last seen: {', '.join(said)}." if said else ""


def finish_abandoning(context: FederationContext, state: FederationState) -> Step | None:
    """Give up all of an attempt, after a start, if the ledger says that it was being given up; else None.

    A request may have been retried or cancelled since; one that failed tells the verdict for the others.
    """
    if state.deletion is None or state.phase not in (Phase.UNLEARNING, Phase.RECOVERING):
        return None
    under_way = {Status.UNLEARNING}
    if state.phase is Phase.RECOVERING:
        under_way |= {Status.RECOVERING, Status.VERIFYING, Status.COMPLETED}
    requests = [context.ledger.requests.get(request_id) for request_id in state.deletion.request_ids]
    moved = [request for request in requests if request.status not in under_way]
    if not moved:
        return None
    failed = next((request for request in moved if request.status is Status.FAILED), None)
    goes_back = failed is None and state.phase is Phase.UNLEARNING
    return Step(
        state=_go_back(state),
        moves=tuple(
            Move(
                request_id=request.id,
                to=Status.SCHEDULED if goes_back else Status.FAILED,
                reason=moved[0].reason if failed is None else failed.reason,
                retryable=failed.retryable if failed is not None else not goes_back,
                result=None if failed is None else failed.result,
            )
            for request in requests
            if request.status in under_way
        ),
        ledger_first=True,
        cleanup=(partial(context.preparations.discard, state.deletion),),
    )


def _go_back(state: FederationState) -> FederationState:
    before = state.deletion.before if state.deletion is not None else None
    state = state if before is None else before.undo(state)
    return replace(state, phase=Phase.TRAINING, deletion=None, is_resting=True)
