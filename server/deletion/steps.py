"""A deletion on the live federation, step by step: claim, unlearn, recover, verify, report.

Each step takes a state and gives the next one, and leaves ledger and checkpoint so that doing the step
again after a crash changes nothing:

    claim       ledger: scheduled → unlearning, then checkpoint. A crash in between leaves requests that
                no checkpoint knows; `reconcile` puts them back into the queue.
    unlearn     a checkpoint after every exchange of the method. With the first one the model is measured as it was,
                and the shadow models are asked, if there are any. With the last one the model and the phase change
                in one checkpoint, which keeps the model before; then the ledger follows. Nothing is committed yet.
    recover     ordinary rounds without the forgotten data, each of which measures the model that it starts from, a
                checkpoint after each; at last the last model is measured, then the gate. Where it lets
                the model pass, the exclusions and the phase change in one checkpoint, the shadow models are erased,
                and the ledger follows, with its exclusions. Where it does not, `give_up` goes back.
    verify      report and certificate, ledger: completed, then checkpoint; older checkpoints are erased.
"""

from dataclasses import replace
from logging import getLogger
from pathlib import Path

from server.deletion.certifying import write_certificate
from server.deletion.exchanges import take_in
from server.deletion.failed_attempt import give_up
from server.deletion.measuring import (
    ask_to_measure,
    first_measurements,
    forget_sets,
    measure_model,
    with_measurement,
)
from server.deletion.privacy_account import account_for, result_of
from server.deletion.report_facts import report_of
from server.federation.context import FederationContext
from server.federation.gate import check_unlearned, judge, refusal
from server.federation.roster_records import RoundResult
from server.federation.state import ActiveDeletion, Before, FederationState, Phase
from server.report import write_report
from server.state_directory.files import REPORTS
from server.state_directory.noise_secret import noise_key
from strategies.exchange import Exchange
from strategies.joint_exchange import JointMessages
from strategies.messages import model_record
from strategies.sessions.session_grid import SessionGrid
from strategies.unlearning_strategy import UnlearningStrategy
from unlearning.errors import MethodFailed, ModelRefused, RequestError, SessionError
from unlearning.methods.method import UnlearningState
from unlearning.methods.registry import method_named, validated_parameters
from unlearning.parameters import content_hash
from unlearning.requests import Status
from unlearning.verification.measurement import Stage

_log = getLogger(__name__)


def begin(context: FederationContext, state: FederationState, deletion: ActiveDeletion) -> FederationState:
    """Write the checkpoint "before"."""
    _log.info(
        "Deletion of %s by %s begins (%s).",
        ", ".join(target.describe() for target in deletion.targets),
        deletion.method,
        ", ".join(deletion.request_ids),
    )
    return context.save(replace(state, deletion=deletion, phase=Phase.UNLEARNING))


def unlearn(context: FederationContext, state: FederationState) -> FederationState:
    """Carry out the method's next exchange; over a session of its own all that are left, the measurement first."""
    failure: MethodFailed | ModelRefused
    try:
        deletion, grid = state.active_deletion(), context.clients.grid
        if not (method_named(deletion.method).info.is_iterative and isinstance(grid, SessionGrid)):
            return _exchange(context, state)
        if not deletion.measurements:
            return context.save(measure_model(context, state, "before"))
        with grid.session():
            while state.phase is Phase.UNLEARNING:
                state = _exchange(context, state)
        return state
    except MethodFailed as exc:
        failure = exc
    except ModelRefused as exc:
        failure = exc
    except SessionError as exc:
        failure = MethodFailed(str(exc), retryable=True)
    except RequestError as exc:  # admitted by a version that allowed these parameters
        failure = MethodFailed(str(exc), retryable=False)
    return give_up(context, state, failure)


def recover(context: FederationContext, state: FederationState) -> FederationState:
    """Carry out one recovery round, or decide that it is enough; the model that it starts from is measured with it."""
    deletion = state.active_deletion()
    stage = _stage_to_measure(context, state, deletion)
    if stage and context.test_set.examples is None and deletion.target_score is not None:
        return context.save(measure_model(context, state, stage))  # what clients say may end the recovery
    reason = _stop_reason(context, state, deletion)
    if reason:
        if stage or first_measurements(deletion)[-1].round != state.round:
            state = measure_model(context, state, stage or "recovery")
        return _decide(context, state, reason)
    state, answers = _ask_recovery(context, state, stage)
    if not answers.messages and not answers.failures:
        return context.save(state) if stage else state  # nobody could be asked: that was no recovery round
    done = context.take_round(state, answers)
    deletion = state.active_deletion()
    state = replace(
        done.state,
        deletion=replace(
            deletion,
            recovery_rounds=deletion.recovery_rounds + 1,
            recovery_cost=deletion.recovery_cost.plus(done.exchange, done.memory),
        ),
    )
    context.records.record(done, "recovery", deletion.request_ids)
    return context.save(state)


def _stage_to_measure(
    context: FederationContext, state: FederationState, deletion: ActiveDeletion
) -> Stage | None:
    """Return at which stage the model is, if it has to be measured and has not been."""
    last = first_measurements(deletion)[-1]
    if last.stage == "before":
        return "unlearned"
    is_due = context.settings.measure_every_recovery_round and last.round != state.round
    return "recovery" if is_due else None


def _ask_recovery(
    context: FederationContext, state: FederationState, stage: Stage | None
) -> tuple[FederationState, Exchange]:
    """Ask for the next round, and, where there is a `stage`, for the measurement of the model before it."""
    work = context.ask_round(state)
    if stage is None:
        return state, context.clients.exchange(work)
    both = JointMessages(work=work, measurement=ask_to_measure(context, state))
    answers, measured = context.clients.exchange_both(both)
    return with_measurement(context, state, stage, measured), answers


def _decide(context: FederationContext, state: FederationState, reason: str) -> FederationState:
    """Commit the recovered model, or go back to the model before."""
    deletion = state.active_deletion()
    # An earlier version, or a checkpoint that was lost since, has committed it: then there is no way back.
    is_committed = (
        deletion.before is None or context.ledger.get(deletion.request_ids[0]).status is not Status.RECOVERING
    )
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
    state = context.save(state)
    context.shadows.erase()
    context.writer.move_all(deletion.request_ids, Status.VERIFYING, reason=f"{reason}; {verdict.text}")
    return state


def verify(context: FederationContext, state: FederationState) -> FederationState:
    """Write reports and certificates, complete the requests, erase the checkpoints that still carry the data."""
    deletion = state.active_deletion()
    context.clients.notify(state, forget_sets(context.ledger, deletion.targets))
    after = content_hash(state.parameters)
    for request_id in deletion.request_ids:
        if context.ledger.get(request_id).status is Status.COMPLETED:
            continue  # before a crash: the ledger names the certificate that was written then
        context.writer.check_fence()  # an older process must not write over what is certified
        report = report_of(context, state, request_id)
        directory = context.state_dir / REPORTS / request_id
        write_report(directory, report)
        certificate_sha256 = write_certificate(
            context.ledger, report, directory, context.settings.certificate_key
        )
        context.writer.move(
            request_id,
            Status.COMPLETED,
            detail={"certificate_sha256": certificate_sha256},
            result={
                "report": str(Path(REPORTS) / request_id / "report.html"),
                "certificate_sha256": certificate_sha256,
                "model_hash_before": deletion.hash_before,
                "model_hash_unlearned": deletion.hash_unlearned,
                "model_hash_after": after,
                "recovery_rounds": deletion.recovery_rounds,
                "cost": _cost_of(deletion),
                **result_of(deletion),
            },
        )
        _log.info("Deletion request %s is completed; report in %s", request_id, directory)
    state = context.preparations.erase(state)
    state = context.save(replace(state, phase=Phase.TRAINING, deletion=None))
    erased = context.checkpoints.erase_older()
    _log.info("%d older checkpoint(s) erased: they still carried what was forgotten.", erased)
    return state


def _exchange(context: FederationContext, state: FederationState) -> FederationState:
    """Carry out the method's next exchange; after the last one the unlearned model is on trial."""
    deletion, clients = state.active_deletion(), context.clients
    if deletion.method_state is None:
        context.preparations.discard(deletion)
    measurement = None if deletion.measurements else ask_to_measure(context, state)
    strategy = _strategy_of(context, state, deletion)
    number = state.round + 1
    work = strategy.unlearn_messages(number, model_record(state.parameters), clients.grid)
    if measurement is None:
        done = clients.exchange(work)
    else:
        both = JointMessages(work=work, measurement=measurement)
        if not both.is_possible:  # the method begins from another model
            return context.save(measure_model(context, state, "before"))
        done, measured = clients.exchange_both(both)
        state = with_measurement(context, state, "before", measured)
        deletion = state.active_deletion()
    take_in(done, strategy, number)
    found, outcome = strategy.state, strategy.outcome
    assert found is not None
    clients.refused |= outcome.refused  # of this exchange: only the last one has a record
    check_unlearned(found.parameters, state.parameters)
    memory = clients.peak_memory(done)
    deletion = replace(
        deletion,
        method_state=found,
        participants=tuple(sorted({*deletion.participants, *outcome.participants})),
        unlearning_cost=deletion.unlearning_cost.plus(done, memory),
    )
    if not found.finished:
        return context.save(replace(state, round=number, deletion=deletion))
    findings = account_for(context, state, deletion, found)
    following = _put_on_trial(state, replace(deletion, findings=findings), found)
    following = replace(following, num_examples=dict(clients.fedavg.plan.num_examples))
    following = context.preparations.branch(following, deletion)
    result = RoundResult(state=following, exchange=done, outcome=outcome, memory=memory)
    context.records.record(result, "unlearning", deletion.request_ids)
    following = context.save(following)
    context.writer.move_all(deletion.request_ids, Status.RECOVERING)
    return following


def _strategy_of(
    context: FederationContext, state: FederationState, deletion: ActiveDeletion
) -> UnlearningStrategy:
    """Return the deletion's method as a strategy that goes on where the method stands."""
    method = method_named(deletion.method)
    return UnlearningStrategy(
        method,
        deletion.targets,
        context.clients.fedavg,
        parameters=validated_parameters(method, deletion.parameters),
        state=deletion.method_state,
        rounds_trained=state.training_rounds,
        kept=context.preparations.store_for(state, deletion),
        noise_key=noise_key(context.state_dir, deletion.request_ids) if method.info.draws_noise else None,
    )


def _put_on_trial(
    state: FederationState, deletion: ActiveDeletion, found: UnlearningState
) -> FederationState:
    """Return `state` with the unlearned model, the one before beside it."""
    before = Before(
        parameters=state.parameters,
        num_examples=state.num_examples,
        prepared_since=state.prepared_since,
        generations=state.generations,
    )
    return replace(
        state,
        round=state.round + 1,
        parameters=found.parameters,
        phase=Phase.RECOVERING,
        deletion=replace(
            deletion,
            method_state=None,
            before=before,
            work=found.work,
            hash_unlearned=content_hash(found.parameters),
        ),
    )


def _stop_reason(context: FederationContext, state: FederationState, deletion: ActiveDeletion) -> str:
    """Return why recovery ends now; empty while it goes on."""
    known = {record.client_id for record in context.ledger.clients()}
    if known and all(state.left_out.is_forgotten(client) for client in known):
        return "no client is left to recover with"
    method = method_named(deletion.method)
    if deletion.recovery_rounds < method.repair_rounds(validated_parameters(method, deletion.parameters)):
        return ""
    last = first_measurements(deletion)[-1]
    score = last.test.score if last.test is not None and last.round == state.round else None
    if score is None and deletion.target_score is not None and last.round != state.round:
        test = context.test_set.observe(state.parameters)
        score = test.mean_score if test is not None else None
    if score is not None and deletion.target_score is not None and score >= deletion.target_score:
        name = context.task.score_name
        return f"test {name} {score:.4f} reached the target {deletion.target_score:.4f}"
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
