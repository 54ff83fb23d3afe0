"""The queue of deletion requests: what was received is checked and scheduled, what can be served now is claimed."""

from collections.abc import Sequence
from logging import getLogger

from server.deletion.failed_attempt import finish_giving_up
from server.federation.context import FederationContext
from server.federation.state import FederationState, Phase
from server.ledger import Ledger, LedgerWriter
from server.requests.admission import check_admissible
from server.requests.planning import waits_for
from server.requests.privacy_budget import may_serve_together
from strategies.run_config import RunSettings
from unlearning.errors import IllegalMove, RequestError
from unlearning.methods.registry import method_named
from unlearning.requests import DeletionRequest, Status

_log = getLogger(__name__)


def reconcile(context: FederationContext, state: FederationState) -> FederationState:
    """Make ledger and state agree after a start.

    The checkpoint is the one that is ahead or equal, but where an attempt was being given up.
    """
    state = finish_giving_up(context, state)
    deletion = state.deletion
    mine = set(deletion.request_ids) if deletion is not None else set()
    for request in context.ledger.list_requests(statuses=(Status.UNLEARNING,)):
        if request.id not in mine:
            context.writer.move(request.id, Status.SCHEDULED, reason="the server stopped before it had begun")
    if deletion is not None and state.phase is not Phase.UNLEARNING:
        for request_id in deletion.request_ids:
            _follow(context.writer, request_id, state.phase)
    return state


def schedule(writer: LedgerWriter) -> None:
    """Check what was received once more, now with the live federation at hand, and put it in the queue, unless held."""
    for request in writer.ledger.list_requests(statuses=(Status.RECEIVED,)):
        if request.is_held:
            continue
        to, reason = Status.SCHEDULED, ""
        try:
            check_admissible(
                writer.ledger,
                writer.ledger.target_of(request),
                method=request.method,
                parameters=request.parameters,
            )
        except RequestError as exc:
            to, reason = Status.FAILED, str(exc)
        try:
            writer.move(request.id, to, reason=reason)
        except IllegalMove as exc:  # it was cancelled, refused or held at this very moment
            _log.info("%s", exc)


def claim(
    writer: LedgerWriter, settings: RunSettings, online: set[str], notes: dict[str, str]
) -> list[DeletionRequest]:
    """Take the first request that can be served now, and those that the method can serve with it; none where none can.

    notes: what was noted last of requests that wait, by id; brought up to date.
    """
    ready: list[DeletionRequest] = []
    for request in writer.ledger.list_requests(statuses=(Status.SCHEDULED,)):
        if request.is_held:
            continue
        absent = waits_for(method_named(request.method), request.target, online)
        if absent:
            _note_once(writer, notes, request.id, f"waiting for {absent} to come online")
        else:
            ready.append(request)
    taken: list[DeletionRequest] = []
    for request in _served_together(writer.ledger, settings, ready) if ready else []:
        try:
            taken.append(writer.move(request.id, Status.UNLEARNING))
        except IllegalMove as exc:  # it was cancelled, refused or held at this very moment
            _log.info("%s", exc)
    return taken


def _served_together(
    ledger: Ledger, settings: RunSettings, ready: Sequence[DeletionRequest]
) -> list[DeletionRequest]:
    """Return the first of these requests, and those that are the same deletion where the method can do several."""
    first, method = ready[0], method_named(ready[0].method)
    if not method.info.several_at_once or not may_serve_together(settings, method):
        return [first]
    accepted = ledger.accepted_loss(first.id)
    others = (
        request
        for request in ready[1:]
        if request.method == first.method
        and dict(request.parameters) == dict(first.parameters)
        and ledger.accepted_loss(request.id) == accepted
    )
    return [first, *others]


def _note_once(writer: LedgerWriter, notes: dict[str, str], request_id: str, text: str) -> None:
    if notes.get(request_id) != text:
        notes[request_id] = text
        writer.note(request_id, "waiting", {"text": text})


def _follow(writer: LedgerWriter, request_id: str, phase: Phase) -> None:
    """Bring the ledger to where the checkpoint already is."""
    order = [Status.UNLEARNING, Status.RECOVERING, Status.VERIFYING]
    wanted = Status.RECOVERING if phase is Phase.RECOVERING else Status.VERIFYING
    status = writer.ledger.get(request_id).status
    while status in order and order.index(status) < order.index(wanted):
        status = writer.move(request_id, order[order.index(status) + 1]).status
