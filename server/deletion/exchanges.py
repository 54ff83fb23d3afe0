"""A method's exchanges, and why one did not suffice."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from server.deletion.model_measurements import measure_beside
from server.deletion.open_deletion import OpenDeletion
from server.deletion.privacy_account import account_for
from server.federation.presence import with_left_out
from server.federation.state import (
    ActiveDeletion,
    FederationState,
    Move,
    Phase,
    Rollback,
    RoundDone,
    RoundResult,
    Step,
)
from strategies.exchange import Exchange
from strategies.messages import model_record
from strategies.unlearning_strategy import UnlearningStrategy
from unlearning.errors import MethodFailed
from unlearning.methods.method import UnlearningState
from unlearning.methods.unlearned_model import check_unlearned
from unlearning.parameters import content_hash
from unlearning.requests import Status
from unlearning.verification.figures import Stage

# How many clients' reasons a failure lists; a federation may have thousands of clients.
_SHOWN = 5


def carry_out(opened: OpenDeletion, strategy: UnlearningStrategy, state: FederationState) -> Iterator[Step]:
    """Carry out the method's next exchange; after the last one the unlearned model is on trial.

    The model as it was is measured with the first one, or before it where the method begins from another model.

    Raises:
        MethodFailed: the replies do not suffice; the message ends with why clients gave no usable one.
        ModelRefused: the method has made a model of them that is not finite, has exploded or has a negative variance.
    """
    context, number, at_first = opened.context, state.round + 1, state
    clients = context.clients
    if opened.method.info.trains_as_rounds and context.training_account is not None:
        context.training_account.refuse_if_spent()
    if state.active_deletion().method_state is None:
        context.preparations.discard(state.active_deletion())
    work = strategy.unlearn_messages(number, model_record(state.parameters), clients.grid)
    stage: Stage | None = None if state.active_deletion().measurements else "before"
    state, done = measure_beside(opened, state, stage, work)
    if done is None:
        yield Step(state=state)
        return
    found = _take_in(done, strategy, number)
    clients.refused |= strategy.outcome.refused  # of this exchange: only the last one has a record
    check_unlearned(context.task, found.parameters, None if found.has_noise else state.parameters)
    deletion, memory = state.active_deletion(), clients.peak_memory(done)
    deletion = replace(
        deletion,
        method_state=found,
        participants=tuple(sorted({*deletion.participants, *strategy.outcome.participants})),
        unlearning_cost=deletion.unlearning_cost.plus(done, memory),
    )
    release = strategy.outcome.release
    if not found.finished:
        yield Step(state=replace(state, round=number, deletion=deletion), release=release)
        return
    findings, note = account_for(opened, deletion, found, number, state.generation_of(deletion.method))
    if note is not None:
        yield Step(state=at_first, notes=(note,))  # counts from now on, whatever becomes of the attempt
    findings = with_left_out(findings, state.suspensions, number)
    state = _put_on_trial(state, replace(deletion, findings=findings), found)
    answered = tuple(sorted({*state.answered, *deletion.participants}))
    state = replace(state, num_examples=dict(clients.fedavg.plan.num_examples), answered=answered)
    state = context.preparations.branch(state, deletion)
    result = RoundResult(state=state, exchange=done, outcome=strategy.outcome, memory=memory)
    yield Step(
        state=state,
        release=release,
        round=RoundDone(result=result, kind="unlearning", request_ids=deletion.request_ids),
        moves=tuple(Move(request_id=request_id, to=Status.RECOVERING) for request_id in deletion.request_ids),
    )


def _put_on_trial(
    state: FederationState, deletion: ActiveDeletion, found: UnlearningState
) -> FederationState:
    """Return `state` with the unlearned model, and the one before as its rollback."""
    return replace(
        state,
        round=state.round + 1,
        parameters=found.parameters,
        scores=(),
        aggregation=None,  # it was made of the forgotten data too
        phase=Phase.RECOVERING,
        deletion=replace(
            deletion,
            method_state=None,
            before=Rollback.of(state),
            work=found.work,
            hash_unlearned=content_hash(found.parameters),
        ),
    )


def _take_in(done: Exchange, strategy: UnlearningStrategy, number: int) -> UnlearningState:
    """Take the answers to the strategy's messages of round `number`; return the method's next state."""
    _check_final(done, strategy)
    with _explain_failure(done, strategy):
        if strategy.fedavg.settings.secure_aggregation:
            strategy.aggregate_sum(done.total)
        else:
            strategy.aggregate_train(number, done.messages.values())
    assert strategy.state is not None
    return strategy.state


def _check_final(done: Exchange, strategy: UnlearningStrategy) -> None:
    """Fail the attempt if a target reports a permanent error; another client is only left out."""
    final = {
        client: str(failure)
        for client, failure in done.failures.items()
        if failure.is_final and strategy.concerns(client)
    }
    if final:
        raise MethodFailed(
            f"A client cannot do its part: {_list_reasons(final)}.", retryable=False, code="client-cannot"
        )


@contextmanager
def _explain_failure(done: Exchange, strategy: UnlearningStrategy) -> Iterator[None]:
    """Let a failure of the method say why clients that were asked gave no usable answer, if any."""
    try:
        yield
    except MethodFailed as exc:
        reasons = {client: str(failure) for client, failure in done.failures.items()}
        reasons |= strategy.outcome.refused
        if not reasons:
            raise
        text = f"{exc} Not usable: {_list_reasons(reasons)}."
        may_help = bool(done.messages) or not all(failure.is_final for failure in done.failures.values())
        raise MethodFailed(text, retryable=exc.retryable and may_help, code=exc.code, **exc.fields) from exc


def _list_reasons(reasons: Mapping[str, str]) -> str:
    shown = [f"client {client}: {reasons[client].rstrip('.')}" for client in sorted(reasons)[:_SHOWN]]
    more = len(reasons) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more else "")
