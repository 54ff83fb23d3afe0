"""Moves of requests in the ledger, in the name of this server process."""

from server.federation.context import FederationContext
from server.federation.state import ActiveDeletion, FederationState
from unlearning.requests import DeletionRequest, Status


def active_deletion(state: FederationState) -> ActiveDeletion:
    """Return the deletion that is under way; only steps of a deletion ask."""
    assert state.deletion is not None, "only a step of a deletion asks"
    return state.deletion


def move_all(context: FederationContext, deletion: ActiveDeletion, to: Status, reason: str = "") -> None:
    """Move all requests of a deletion, one after the other."""
    for request_id in deletion.request_ids:
        move(context, request_id, to, reason=reason)


def move(
    context: FederationContext, request_id: str, to: Status, *, reason: str = "", retryable: bool = False
) -> DeletionRequest:
    """Move a request as the holder of the fencing token.

    Raises:
        Fenced: a newer server process has taken over.
        IllegalMove: the ledger has moved on meanwhile.
    """
    return context.ledger.move(
        request_id, to, token=context.token, now=context.now(), reason=reason, retryable=retryable
    )
