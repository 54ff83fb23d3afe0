"""An unlearning attempt that failed, or whose model the gate holds: all is as it was before.

The requests wait for another try or have failed.

This goes to the ledger first and to the checkpoint second, the other way round than what succeeds: the ledger
then holds the verdict, and after a crash in between `finish_giving_up` takes it from there. Were the checkpoint
first, a request that has failed for good would be tried again after a crash.
"""

from dataclasses import replace
from logging import getLogger

from server.federation.context import FederationContext
from server.federation.state import FederationState, Phase
from unlearning.errors import MethodFailed, ModelRefused
from unlearning.requests import Status

_log = getLogger(__name__)


def give_up(
    context: FederationContext, state: FederationState, failure: MethodFailed | ModelRefused
) -> FederationState:
    """Go back to training with the model as it was; the requests wait for another try, or have failed.

    Raises:
        Fenced: a newer server process has taken over.
    """
    deletion = state.active_deletion()
    _log.warning("Unlearning attempt %d failed: %s", deletion.attempt, failure)
    status, reason, retryable = Status.SCHEDULED, str(failure), False
    if isinstance(failure, ModelRefused):  # the same again would give the same: somebody has to decide
        status, retryable = Status.FAILED, True
    elif not failure.retryable:
        status = Status.FAILED
    elif deletion.attempt >= context.settings.max_attempts:
        reason = f"{deletion.attempt} attempts failed, the last one because: {failure}"
        status, retryable = Status.FAILED, True
    for request_id in deletion.request_ids:
        context.writer.move(request_id, status, reason=reason, retryable=retryable)
    state = _go_back(state)
    context.save(state)
    context.preparations.discard(deletion)
    return state


def finish_giving_up(context: FederationContext, state: FederationState) -> FederationState:
    """Give up all of an attempt, after a start, if the ledger says that it was being given up.

    A request may have been retried or cancelled since; one that failed tells the verdict for the others.
    """
    if state.deletion is None or state.phase not in (Phase.UNLEARNING, Phase.RECOVERING):
        return state
    under_way = {Status.UNLEARNING}
    if state.phase is Phase.RECOVERING:
        under_way |= {Status.RECOVERING, Status.VERIFYING, Status.COMPLETED}
    requests = [context.ledger.get(request_id) for request_id in state.deletion.request_ids]
    moved = [request for request in requests if request.status not in under_way]
    if not moved:
        return state
    failed = next((request for request in moved if request.status is Status.FAILED), None)
    for request in requests:
        if request.status in under_way:
            goes_back = failed is None and state.phase is Phase.UNLEARNING
            context.writer.move(
                request.id,
                Status.SCHEDULED if goes_back else Status.FAILED,
                reason=moved[0].reason if failed is None else failed.reason,
                retryable=(failed.retryable if failed is not None else not goes_back),
            )
    deletion = state.deletion
    state = _go_back(state)
    context.preparations.discard(deletion)
    return state


def _go_back(state: FederationState) -> FederationState:
    before = state.deletion.before if state.deletion is not None else None
    if before is not None:
        state = replace(
            state,
            parameters=before.parameters,
            num_examples=before.num_examples,
            prepared_since=before.prepared_since,
            generations=before.generations,
            scores=before.scores,
        )
    return replace(state, phase=Phase.TRAINING, deletion=None, is_resting=True)
