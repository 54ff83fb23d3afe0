"""An unlearning attempt that failed, or whose model the gate rejects: all is as it was before."""

from dataclasses import replace
from functools import partial
from logging import getLogger

from server.federation.context import FederationContext
from server.federation.state import FederationState, Phase
from server.federation.step import Move, Step
from unlearning.errors import MethodFailed, ModelRefused
from unlearning.requests import Status

_log = getLogger(__name__)


def give_up(context: FederationContext, state: FederationState, failure: MethodFailed | ModelRefused) -> Step:
    """Go back to training with the model as it was; the requests wait for another try, or have failed."""
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
    return Step(
        state=_go_back(state),
        moves=tuple(
            Move(request_id=request_id, to=status, reason=reason, retryable=retryable)
            for request_id in deletion.request_ids
        ),
        ledger_first=True,
        cleanup=(partial(context.preparations.discard, deletion),),
    )


def finish_giving_up(context: FederationContext, state: FederationState) -> Step | None:
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
            )
            for request in requests
            if request.status in under_way
        ),
        ledger_first=True,
        cleanup=(partial(context.preparations.discard, state.deletion),),
    )


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
