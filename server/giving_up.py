"""An unlearning attempt that failed: the model is as it was, and the requests wait for another try or have failed.

This goes to the ledger first and to the checkpoint second, the other way round than what succeeds: the ledger
then holds the verdict, and after a crash in between `finish_giving_up` takes it from there. Were the checkpoint
first, a request that has failed for good would be tried again after a crash.
"""

from dataclasses import replace
from logging import getLogger

from server.driver import Driver
from server.state import FederationState, Phase
from unlearning.errors import MethodFailed
from unlearning.requests import Status

_log = getLogger(__name__)


def give_up(driver: Driver, state: FederationState, failure: MethodFailed) -> FederationState:
    """Back to training with the model as it was; the requests wait for another try, or have failed.

    Raises:
        Fenced: a newer server process has taken over.
    """
    batch = state.batch
    assert batch is not None, "only what was begun can be given up"
    _log.warning("Unlearning attempt %d failed: %s", batch.attempt, failure)
    status, reason, retryable = Status.SCHEDULED, str(failure), False
    if not failure.retryable:
        status = Status.FAILED
    elif batch.attempt >= driver.settings.max_attempts:
        reason = f"{batch.attempt} attempts failed, the last one because: {failure}"
        status, retryable = Status.FAILED, True
    for request_id in batch.request_ids:
        driver.ledger.move(
            request_id, status, token=driver.token, now=driver.now(), reason=reason, retryable=retryable
        )
    driver.preparations.discard(batch)
    return driver.save(_resting(state))


def finish_giving_up(driver: Driver, state: FederationState) -> FederationState:
    """After a start: if the ledger says that the state's batch was being given up, give up all of it.

    A request may have been retried or cancelled since; one that failed tells the verdict for the others.
    """
    if state.batch is None or state.phase is not Phase.UNLEARNING:
        return state
    requests = [driver.ledger.get(request_id) for request_id in state.batch.request_ids]
    moved = [request for request in requests if request.status is not Status.UNLEARNING]
    if not moved:
        return state
    failed = next((request for request in moved if request.status is Status.FAILED), None)
    for request in requests:
        if request.status is Status.UNLEARNING:
            driver.ledger.move(
                request.id,
                Status.SCHEDULED if failed is None else Status.FAILED,
                token=driver.token,
                now=driver.now(),
                reason=moved[0].reason if failed is None else failed.reason,
                retryable=failed is not None and failed.retryable,
            )
    return _resting(state)


def _resting(state: FederationState) -> FederationState:
    return replace(state, phase=Phase.TRAINING, batch=None, is_resting=True)
