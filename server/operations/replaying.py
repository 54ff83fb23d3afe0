"""What a restore undoes is asked for again by the restore itself; no person has to notice and file it.

The ledger that is replaced says what was filed and carried out since the backup. Requests that have led to a deletion,
or were answered by one, come in the order in which that was so, then those that were open. Each is filed by its filer,
under the same key, with the same day of receipt, so doing it twice changes nothing. What ended without a deletion is
listed and not filed again. Approvals are carried over and say so; where too few are known, the request waits for a
decision. Where that ledger is lost, certificates say what it knew (`server.operations.certified_deletions`).

Sites no longer use data whose deletion was carried out, not even to forget it again. Where the method of a request
works with it, a request for the recommended one of the others takes its place.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module

from server.ledger import Ledger, NewRequest
from server.ledger.decisions import Instead
from server.ledger.records import APPROVED
from unlearning.errors import RequestError, RequestNotFound
from unlearning.gdpr import Particulars
from unlearning.requests import OPEN_STATUSES, UNBEGUN_STATUSES, DeletionRequest, Status, Target

BY = "restore"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A request that a restored ledger no longer knows as it was. request_id: its number in the other ledger.

    filed_at: when it was filed first. is_done: whether it had led to its end. approved_by: who has accepted it since.
    hold_reason, extended_days, extension_reason: as they were.
    """

    request_id: str
    new: NewRequest
    filed_at: datetime
    is_done: bool
    approved_by: tuple[str, ...] = ()
    hold_reason: str = ""
    extended_days: int = 0
    extension_reason: str = ""


def lost_since(ledger: Ledger, sequence: int) -> Iterator[Lost]:
    """Yield what was filed or carried out after the event `sequence`, in the order in which it is to be done again."""
    done: dict[str, None] = {}
    filed: dict[str, None] = {}
    approved: dict[str, tuple[str, ...]] = {}
    for event in ledger.events.all(after=sequence):
        if event.kind == APPROVED:
            approved[event.request_id] = (*approved.get(event.request_id, ()), event.actor)
        if event.to_status in (Status.VERIFYING, Status.COMPLETED):
            done.setdefault(event.request_id)
        elif event.request_id:
            filed.setdefault(event.request_id)
    known = (ledger.requests.get(request_id) for request_id in {**done, **filed})
    asked = [request for request in known if request.id in done or request.status in OPEN_STATUSES]
    for request, target in ledger.requests.with_targets(asked):
        yield _lost(request, target, request.id in done, approved.get(request.id, ()))


def _lost(request: DeletionRequest, target: Target, is_done: bool, approved_by: tuple[str, ...]) -> Lost:
    return Lost(
        request_id=request.id,
        new=NewRequest(
            target=target,
            method=request.method,
            parameters=dict(request.parameters),
            submitted_by=request.submitted_by,
            submitted_role=request.submitted_role,
            idempotency_key=request.idempotency_key,
            particulars=Particulars(
                received_on=request.received_on,
                due_on=request.first_due_on,
                ground=request.ground,
                reference=request.reference,
                note=request.note,
            ),
            approvals_needed=request.approvals_needed,
            replays=request.id,
        ),
        approved_by=approved_by,
        filed_at=request.created_at,
        is_done=is_done,
        hold_reason=request.hold_reason if request.is_held else "",
        extended_days=request.extended_days,
        extension_reason=request.extension_reason,
    )


def file_again(ledger: Ledger, lost: Iterable[Lost], *, now: datetime) -> dict[str, str]:
    """File what was lost in the restored ledger, or let it go on there; return the numbers, by those of before.

    Samples whose ids are not known here are left out: a person has to file these.
    """
    numbers = {}
    for one in lost:
        new, decisions = one.new, ledger.decisions
        known = _known(ledger, one)
        if known is None and new.target.num_samples and not new.target.sample_ids:
            continue
        request = known or ledger.requests.submit(new, now=max(now, one.filed_at))
        if one.is_done:
            with suppress(RequestError):  # its method is gone: it fails when it begins, and says what to do
                request = _without_the_data(ledger, request, now=now)
        numbers[one.request_id] = request.id
        for name in one.approved_by:
            with suppress(RequestError):  # it is decided
                decisions.accept(request.id, by=name, now=now, earlier=one.request_id)
        with suppress(RequestError):  # it is done already, or cannot be done again; the list has it
            if known is not None and request.status is Status.FAILED:
                decisions.retry(request.id, by=BY, now=now)
            if one.hold_reason and not request.is_held:
                decisions.hold(request.id, reason=one.hold_reason, by=BY, now=now)
            elif one.is_done and request.is_held:
                decisions.release(request.id, by=BY, now=now)
        if one.extended_days and not request.extended_days:
            reason = one.extension_reason or "extended before the restore"
            with suppress(RequestError):  # the deadline has passed
                decisions.extend(request.id, days=one.extended_days, reason=reason, by=BY, now=now)
    return numbers


def _without_the_data(ledger: Ledger, request: DeletionRequest, *, now: datetime) -> DeletionRequest:
    """Return what can be carried out though sites no longer use the data: the request, or one in its place."""
    request = ledger.requests.replacement_of(request)
    if request.status not in UNBEGUN_STATUSES | {Status.FAILED}:
        return request
    # The methods, and with them PyTorch.
    found = import_module("server.requests.admission").method_without_the_data(ledger, request)
    if found is None:
        return request
    method, parameters = found
    needed = request.approvals_needed if request.status is Status.AWAITING else 0
    return ledger.decisions.replace(
        request.id,
        Instead(method=method, parameters=parameters, approvals_needed=needed),
        by=BY,
        now=now,
        reason=f"{request.method} works with the data, which sites no longer use since the deletion that the restore "
        "has undone.",
    )


def _known(ledger: Ledger, one: Lost) -> DeletionRequest | None:
    """Return the request in the restored ledger: by its filer's key, or by its number where it is the same one."""
    new = one.new
    if found := ledger.requests.find(new.idempotency_key, new.submitted_by, new.submitted_role):
        return found
    with suppress(RequestNotFound):
        request = ledger.requests.get(one.request_id)
        is_same = request.target.without_ids() == new.target.without_ids()
        if is_same and request.created_at.replace(microsecond=0) == one.filed_at.replace(microsecond=0):
            return request
    return None
