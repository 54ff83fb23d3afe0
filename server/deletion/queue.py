"""The queue of deletion requests: what was received is checked and scheduled, what can be served now is claimed."""

from collections.abc import Iterator, Sequence

from server.federation.state import Move, Note
from server.ledger import Ledger
from server.requests.admission import check_admissible
from server.requests.planning import waits_for
from server.requests.privacy_budget import may_serve_together
from strategies.settings.run_config import RunSettings
from unlearning.errors import RequestError
from unlearning.methods.method import Method
from unlearning.methods.registry import method_named
from unlearning.requests import DeletionRequest, Status


def to_schedule(ledger: Ledger) -> Iterator[Move]:
    """Check what was received once more, now with the live federation at hand; yield its way into the queue.

    Requests that are held stay where they are.
    """
    for request in ledger.requests.select(statuses=(Status.RECEIVED,)):
        if request.is_held:
            continue
        to, reason = Status.SCHEDULED, ""
        try:
            check_admissible(
                ledger,
                ledger.requests.target_of(request),
                method=request.method,
                parameters=request.parameters,
            )
        except RequestError as exc:
            to, reason = Status.FAILED, str(exc)
        yield Move(request_id=request.id, to=to, reason=reason)


def to_claim(
    ledger: Ledger, settings: RunSettings, online: set[str], noted: dict[str, str]
) -> tuple[list[Move], list[Note]]:
    """Return the claim of the first request that can be served now, and of those that the method can serve with it.

    Also notes of those that wait for a client. noted: what was noted last, by request; brought up to date.
    """
    ready: list[tuple[DeletionRequest, Method]] = []
    notes: list[Note] = []
    for request in ledger.requests.select(statuses=(Status.SCHEDULED,)):
        if request.is_held:
            continue
        method = method_named(request.method)
        absent = waits_for(method, request.target, online)
        if not absent:
            ready.append((request, method))
            continue
        text = f"waiting for {absent} to come online"
        if noted.get(request.id) != text:
            noted[request.id] = text
            notes.append(Note(request_id=request.id, kind="waiting", detail={"text": text}))
    together = _served_together(ledger, settings, ready) if ready else []
    return [Move(request_id=request.id, to=Status.UNLEARNING) for request in together], notes


def _served_together(
    ledger: Ledger, settings: RunSettings, ready: Sequence[tuple[DeletionRequest, Method]]
) -> list[DeletionRequest]:
    """Return the first of these requests, and those that are the same deletion where the method can do several."""
    first, method = ready[0]
    if not method.info.several_at_once or not may_serve_together(settings, method):
        return [first]
    accepted = ledger.requests.accepted_loss(first.id)
    others = (
        request
        for request, _ in ready[1:]
        if request.method == first.method
        and dict(request.parameters) == dict(first.parameters)
        and ledger.requests.accepted_loss(request.id) == accepted
    )
    return [first, *others]
