"""What people decide about a request: to accept, withdraw, retry, extend, hold, refuse, amend or redact it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from logging import getLogger
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from server.ledger import statements, texts
from server.ledger.database import Database
from server.ledger.event_store import Events
from server.ledger.records import (
    ACCEPTED_LOSS,
    AMENDED,
    APPROVED,
    ATTEMPTS_BEFORE,
    EXTENDED,
    GROUND_BEFORE,
    HELD,
    HOLD_LIFTED,
    PRUNED,
    RECHECK_REQUESTED,
    REDACTED,
    LedgerUnavailable,
    NewRequest,
    as_json,
    request_number,
)
from server.ledger.request_store import file_request
from server.ledger.texts import Kind
from unlearning.advice import advice_for
from unlearning.errors import IllegalMove, InvalidRequest
from unlearning.gdpr import Amendment, Particulars, check_extension, check_reason, parse_ground
from unlearning.requests import (
    HOLDABLE_STATUSES,
    LEGAL_MOVES,
    UNBEGUN_STATUSES,
    DeletionRequest,
    Status,
    list_ids,
)

_log = getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instead:
    """How a failed request is tried in another way, as admission has checked it; fields as in `NewRequest`."""

    method: str
    parameters: Mapping[str, Any]
    approvals_needed: int


@dataclass(frozen=True, slots=True)
class Decisions:
    """What people decide about a request that was filed.

    Every method raises RequestNotFound where there is no request with this id.
    """

    database: Database

    def accept(self, request_id: str, *, by: str, now: datetime, earlier: str = "") -> DeletionRequest:
        """Approve a request that waits for a decision; with the last approval that it needs it is accepted.

        earlier: its number in the ledger that a restore has replaced, in which `by` had approved it.

        Raises:
            IllegalMove: it waits for no decision, or `by` has approved it and another person must.
        """
        with self._deciding(request_id) as (connection, request):
            names = statements.approvers(connection, request)
            if request.status is not Status.AWAITING:
                if by in names:
                    return request
                raise IllegalMove(
                    f"Request {request.id} is {request.status}; only one that waits for a decision can be accepted.",
                    code="not-awaiting",
                )
            if by in names:
                raise IllegalMove(
                    f"{by!r} has accepted request {request.id} already; it needs {request.approvals_needed} different "
                    "people.",
                    code="accepted-before",
                )
            text = f"{len(names) + 1} of {request.approvals_needed} approvals"
            text += f"; given to {earlier} in the ledger before a restore" if earlier else ""
            request = statements.write_change(
                connection, request, APPROVED, actor=by, now=now, detail={"text": text}
            )
            if len(names) + 1 < request.approvals_needed:
                return request
            return statements.write_move(connection, request, Status.ACCEPTED, actor=by, now=now)

    def cancel(self, request_id: str, *, by: str, now: datetime) -> DeletionRequest:
        """Withdraw a request that has not begun; cancelling it again changes nothing.

        Raises:
            IllegalMove: it has begun or has ended.
        """
        with self._deciding(request_id) as (connection, request):
            if request.status is Status.CANCELLED:
                return request
            if Status.CANCELLED not in LEGAL_MOVES[request.status]:
                raise IllegalMove(
                    f"Request {request.id} is {request.status}; "
                    "only a request that has not begun can be cancelled.",
                    code="begun",
                )
            return statements.write_move(
                connection, request, Status.CANCELLED, actor=by, now=now, is_held=False
            )

    def retry(
        self,
        request_id: str,
        *,
        by: str,
        now: datetime,
        accept_score_loss: float = 0.0,
        instead: Instead | None = None,
    ) -> DeletionRequest:
        """Schedule a failed or reopened request again, or file a new one for the same `instead` and return that.

        accept_score_loss: how many points of score the model may lose this time, whatever the settings allow; 0: no
        more than they do. The event says who accepted it.

        Raises:
            IllegalMove: it has neither failed nor been reopened, is held, or trying the same again cannot help.
        """
        with self._deciding(request_id) as (connection, request):
            if request.status not in (Status.FAILED, Status.REOPENED):
                raise IllegalMove(
                    f"Request {request.id} is {request.status}; only a failed or reopened request can be retried.",
                    code="not-failed",
                )
            statements.refuse_if_held(request)
            detail: dict[str, Any] = {}
            if accept_score_loss:
                text = f"{by} accepts that the model loses up to {accept_score_loss:g} points of score"
                detail = {ACCEPTED_LOSS: accept_score_loss, "text": text}
            if instead is not None:
                return _replace(connection, request, instead, by=by, now=now, detail=detail)
            if request.status is Status.FAILED and not request.retryable:
                raise IllegalMove(
                    f"Request {request.id} failed permanently: {request.reason or 'no reason given'} "
                    f"{advice_for(request)}",
                    code="not-retryable",
                )
            statements.refuse_if_undecided(connection, request)
            detail[ATTEMPTS_BEFORE] = request.attempts
            return statements.write_move(
                connection, request, Status.SCHEDULED, actor=by, now=now, detail=detail
            )

    def replace(
        self, request_id: str, instead: Instead, *, by: str, now: datetime, reason: str
    ) -> DeletionRequest:
        """File a request for the same `instead` of one that has not begun or has failed, and return that; `reason` why.

        Raises:
            IllegalMove: it has begun or has ended.
        """
        with self._deciding(request_id) as (connection, request):
            if request.status in UNBEGUN_STATUSES:
                request = statements.write_move(
                    connection, request, Status.FAILED, actor=by, now=now, reason=reason, is_held=False
                )
            if request.status is not Status.FAILED:
                raise IllegalMove(
                    f"Request {request.id} is {request.status}; another cannot take its place.", code="begun"
                )
            return _replace(connection, request, instead, by=by, now=now, detail={})

    def extend(self, request_id: str, *, days: int, reason: str, by: str, now: datetime) -> DeletionRequest:
        """Put a request's deadline off, once and before it has passed.

        Raises:
            InvalidRequest: the days or the reason cannot be.
            IllegalMove: it was extended before, its deadline has passed, or it is answered.
        """
        days, reason = check_extension(days), check_reason("an extension", reason)
        with self._deciding(request_id) as (connection, request):
            _refuse_extension(request, now.astimezone(UTC).date())
            due_on = request.due_on + timedelta(days=days)
            return statements.write_change(
                connection,
                request,
                EXTENDED,
                actor=by,
                now=now,
                detail={"days": days, "due_on": due_on.isoformat()},
                written={Kind.EXTENSION: reason},
                due_on=due_on,
                extended_days=days,
            )

    def hold(self, request_id: str, *, reason: str, by: str, now: datetime) -> DeletionRequest:
        """Keep a request from beginning, because the data has to be kept; its deadline runs on.

        Raises:
            InvalidRequest: the reason cannot be.
            IllegalMove: it is held, has begun or has ended.
        """
        reason = check_reason("a hold", reason)
        with self._deciding(request_id) as (connection, request):
            if request.is_held:
                raise IllegalMove(
                    f"Request {request.id} is held already; release it to hold it again.", code="held"
                )
            if request.status not in HOLDABLE_STATUSES:
                raise IllegalMove(
                    f"Request {request.id} is {request.status}; only one that has not begun can be held.",
                    code="begun",
                )
            written = {Kind.HOLD: reason}
            return statements.write_change(
                connection, request, HELD, actor=by, now=now, written=written, is_held=True
            )

    def release(self, request_id: str, *, by: str, now: datetime, reason: str = "") -> DeletionRequest:
        """Lift a request's hold; where there is none, nothing changes.

        Raises:
            InvalidRequest: the reason, where one is given, cannot be.
        """
        reason = check_reason("lifting a hold", reason) if reason else ""
        with self._deciding(request_id) as (connection, request):
            if not request.is_held:
                return request
            written = {Kind.LIFTING: reason}
            return statements.write_change(
                connection, request, HOLD_LIFTED, actor=by, now=now, written=written, is_held=False
            )

    def refuse(self, request_id: str, *, reason: str, by: str, now: datetime) -> DeletionRequest:
        """Answer a request without deletion; refusing it again changes nothing.

        Raises:
            InvalidRequest: the reason cannot be.
            IllegalMove: it has begun or has ended.
        """
        reason = check_reason("a refusal", reason)
        with self._deciding(request_id) as (connection, request):
            if request.status is Status.REFUSED:
                return request
            if Status.REFUSED not in LEGAL_MOVES[request.status]:
                raise IllegalMove(
                    f"Request {request.id} is {request.status}; only one that has not begun, or has failed, can be "
                    "refused.",
                    code="begun",
                )
            return statements.write_move(
                connection,
                request,
                Status.REFUSED,
                actor=by,
                now=now,
                written={Kind.REFUSAL: reason},
                is_held=False,
            )

    def amend(self, request_id: str, *, what: Amendment, by: str, now: datetime) -> DeletionRequest:
        """Change a request's ground, reference or note, whatever its state; where nothing differs, nothing changes.

        What was there before stays in the ledger until `redact` erases it with all other texts.

        Raises:
            InvalidRequest: a text would be emptied.
            IllegalMove: its certificate, which names ground and reference, is being written.
        """
        with self._deciding(request_id) as (connection, request):
            if request.status is Status.VERIFYING:
                raise IllegalMove(
                    f"The certificate of request {request.id} is being written, which names its ground and its "
                    "reference. Change them when it is completed.",
                    code="being-certified",
                )
            changed = _changed_texts(request, what)
            ground = request.ground if what.ground is None else parse_ground(what.ground)
            detail: dict[str, Any] = {}
            said = [str(kind) for kind in changed]
            if ground is not request.ground:
                detail[GROUND_BEFORE] = request.ground and str(request.ground)
                said.append(f"ground from {request.ground or 'none'} to {ground or 'none'}")
            if not said:
                return request
            detail["text"] = ", ".join(said)
            return statements.write_change(
                connection,
                request,
                AMENDED,
                actor=by,
                now=now,
                detail=detail,
                written=changed,
                ground=ground and str(ground),
            )

    def redact(
        self, request_id: str, *, by: str, now: datetime, include_refusal: bool = False
    ) -> DeletionRequest:
        """Erase the texts of people about a request: reference, note, reasons. Where none is left, nothing changes.

        include_refusal: also why it was refused, which proves that the person was answered (Art. 12(4) GDPR).
        """
        keep = () if include_refusal else (Kind.REFUSAL,)
        with self._deciding(request_id) as (connection, request):
            erased = texts.erase(connection, request_number(request.id), keep=keep)
            if erased:
                request = statements.write_change(
                    connection, request, REDACTED, actor=by, now=now, detail={texts.ERASED: erased}
                )
        self._clear_files()
        return request

    def recheck(self, request_id: str, *, by: str, now: datetime) -> DeletionRequest:
        """Have the model attacked again for a completed request, between two rounds; while one waits, nothing changes.

        Raises:
            IllegalMove: it is not completed, or earlier deletions answer it.
        """
        with self._deciding(request_id) as (connection, request):
            if request.status is not Status.COMPLETED or request.answered_by:
                why = (
                    f"answered by {' and '.join(request.answered_by)}"
                    if request.answered_by
                    else request.status
                )
                raise IllegalMove(
                    f"Request {request.id} is {why}; only a completed deletion of its own can be rechecked.",
                    code="not-completed",
                )
            if statements.has_open_recheck(connection, request):
                return request
            ended = request.updated_at
            return statements.write_change(
                connection, request, RECHECK_REQUESTED, actor=by, now=now, updated_at=ended
            )

    def note_pruned(self, request_id: str, hashes: Mapping[str, str], *, by: str, now: datetime) -> None:
        """Note, once, that these files of a request are erased, by name and SHA-256; it ended when it did."""
        if any(event.kind == PRUNED for event in Events(self.database).all(request_id)):
            return
        with self._deciding(request_id) as (connection, request):
            detail, ended = {"erased_files": dict(hashes)}, request.updated_at
            statements.write_change(
                connection, request, PRUNED, actor=by, now=now, detail=detail, updated_at=ended
            )

    @contextmanager
    def _deciding(self, request_id: str) -> Iterator[tuple[sa.Connection, DeletionRequest]]:
        with self.database.writing() as connection:
            yield connection, statements.get(connection, request_id)

    def _clear_files(self) -> None:
        """Clear what was erased; also after a call that found nothing left, in case one before was interrupted."""
        try:
            done = self.database.clear(texts.TEXT)
        except LedgerUnavailable:
            done = False
        if not done:
            _log.warning(
                "What was erased may still be in the database's files, because another process is reading the ledger. "
                "Run the command again to clear it."
            )


def _replace(
    connection: sa.Connection,
    request: DeletionRequest,
    instead: Instead,
    *,
    by: str,
    now: datetime,
    detail: Mapping[str, Any],
) -> DeletionRequest:
    """File a request that asks for the same in another way, with the same deadline; `request` ends by it."""
    target = statements.load_target(connection, request_number(request.id), request.target, None)
    new = NewRequest(
        target=target,
        method=instead.method,
        parameters=as_json(instead.parameters),
        submitted_by=request.submitted_by,
        submitted_role=request.submitted_role,
        idempotency_key=str(uuid4()),
        particulars=Particulars(ground=request.ground, reference=request.reference, note=request.note),
        approvals_needed=instead.approvals_needed,
    )
    filed = file_request(
        connection,
        new,
        (request.received_on, request.due_on),
        now,
        list_ids(target.sample_ids),
        by=by,
        detail={**detail, "replaces": request.id},
        extension=(request.extended_days, request.extension_reason),
    )
    statements.write_move(
        connection,
        request,
        Status.REPLACED,
        actor=by,
        now=now,
        reason=f"Request {filed.id} asks for the same with {filed.method}.",
        result={"replaced_by": filed.id},
    )
    return filed


def _changed_texts(request: DeletionRequest, what: Amendment) -> dict[Kind, str]:
    found: dict[Kind, str] = {}
    for kind in texts.OF_FILERS:
        text: str | None = getattr(what, kind)
        if text is None or text == getattr(request, kind):
            continue
        if not text:
            raise InvalidRequest(
                f"A {kind} is changed, not emptied; `redact` erases what was written.", code="text-emptied"
            )
        found[kind] = text
    return found


def _refuse_extension(request: DeletionRequest, today: date) -> None:
    if request.is_answered:
        raise IllegalMove(
            f"Request {request.id} is {request.status}; there is nothing to extend.", code="answered"
        )
    if request.extended_days:
        raise IllegalMove(
            f"Request {request.id} was extended by {request.extended_days} days, to {request.due_on}; a deadline is "
            "extended once.",
            code="extended",
        )
    if request.is_overdue(today):
        raise IllegalMove(
            f"Request {request.id} was due on {request.due_on}; a deadline is extended before it has passed.",
            code="deadline-passed",
        )
