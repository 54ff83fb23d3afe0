"""What operators do about a request beside the deletion: its deadline, hold, refusal, ground and texts."""

from datetime import UTC, date, datetime, timedelta
from logging import getLogger
from typing import Any

import sqlalchemy as sa

from server.ledger import schema, statements, texts
from server.ledger.database import LedgerUnavailable
from server.ledger.part import Part
from server.ledger.records import (
    AMENDED,
    EXTENDED,
    GROUND_BEFORE,
    HELD,
    HOLD_LIFTED,
    REDACTED,
    request_number,
)
from server.ledger.texts import Kind
from unlearning.errors import IllegalMove, InvalidRequest
from unlearning.gdpr import SOON, Amendment, check_extension, check_reason, parse_ground
from unlearning.requests import ANSWERED_STATUSES, HOLDABLE_STATUSES, LEGAL_MOVES, DeletionRequest, Status

_log = getLogger(__name__)
_requests = schema.requests


class DeadlinesPart(Part):
    """Deadlines, holds, refusals, and the texts of people."""

    def extend(self, request_id: str, *, days: int, reason: str, by: str, now: datetime) -> DeletionRequest:
        """Put a request's deadline off, once and before it has passed.

        Raises:
            RequestNotFound: there is none with this id.
            InvalidRequest: the days or the reason cannot be.
            IllegalMove: it was extended before, its deadline has passed, or it is answered.
        """
        days, reason = check_extension(days), check_reason("an extension", reason)
        with self._database.writing() as connection:
            request = statements.get(connection, request_id)
            _refuse_extension(request, now.astimezone(UTC).date())
            due_on = request.due_on + timedelta(days=days)
            named = texts.write(connection, request_number(request.id), {Kind.EXTENSION: reason})
            return statements.write_change(
                connection,
                request,
                EXTENDED,
                actor=by,
                now=now,
                detail={"days": days, "due_on": due_on.isoformat(), **named},
                due_on=due_on,
                extended_days=days,
            )

    def hold(self, request_id: str, *, reason: str, by: str, now: datetime) -> DeletionRequest:
        """Keep a request from beginning, because the data has to be kept; its deadline runs on.

        Raises:
            RequestNotFound: there is none with this id.
            InvalidRequest: the reason cannot be.
            IllegalMove: it is held, has begun or is over.
        """
        reason = check_reason("a hold", reason)
        with self._database.writing() as connection:
            request = statements.get(connection, request_id)
            if request.is_held:
                raise IllegalMove(f"Request {request.id} is held already; release it to hold it anew.")
            if request.status not in HOLDABLE_STATUSES:
                raise IllegalMove(
                    f"Request {request.id} is {request.status}; only one that has not begun can be held."
                )
            detail = texts.write(connection, request_number(request.id), {Kind.HOLD: reason})
            return statements.write_change(
                connection, request, HELD, actor=by, now=now, detail=detail, is_held=True
            )

    def release(self, request_id: str, *, by: str, now: datetime, reason: str = "") -> DeletionRequest:
        """Lift a request's hold; where there is none, nothing changes.

        Raises:
            RequestNotFound: there is none with this id.
            InvalidRequest: the reason, where one is given, cannot be.
        """
        reason = check_reason("lifting a hold", reason) if reason else ""
        with self._database.writing() as connection:
            request = statements.get(connection, request_id)
            if not request.is_held:
                return request
            detail = texts.write(connection, request_number(request.id), {Kind.LIFTING: reason})
            return statements.write_change(
                connection, request, HOLD_LIFTED, actor=by, now=now, detail=detail, is_held=False
            )

    def refuse(self, request_id: str, *, reason: str, by: str, now: datetime) -> DeletionRequest:
        """Answer a request without deletion; refusing it again changes nothing.

        Raises:
            RequestNotFound: there is none with this id.
            InvalidRequest: the reason cannot be.
            IllegalMove: it has begun or is over.
        """
        reason = check_reason("a refusal", reason)
        with self._database.writing() as connection:
            request = statements.get(connection, request_id)
            if request.status is Status.REFUSED:
                return request
            if Status.REFUSED not in LEGAL_MOVES[request.status]:
                raise IllegalMove(
                    f"Request {request.id} is {request.status}; only one that has not begun, or has failed, can be "
                    "refused."
                )
            detail = texts.write(connection, request_number(request.id), {Kind.REFUSAL: reason})
            return statements.write_move(
                connection, request, Status.REFUSED, actor=by, now=now, detail=detail, is_held=False
            )

    def amend(self, request_id: str, *, what: Amendment, by: str, now: datetime) -> DeletionRequest:
        """Change a request's ground, reference or note, whatever its state; where nothing differs, nothing changes.

        What stood there before stays in the ledger until `redact` erases it with all other texts.

        Raises:
            RequestNotFound: there is none with this id.
            InvalidRequest: a text would be emptied.
            IllegalMove: its certificate, which names ground and reference, is being written.
        """
        with self._database.writing() as connection:
            request = statements.get(connection, request_id)
            if request.status is Status.VERIFYING:
                raise IllegalMove(
                    f"The certificate of request {request.id} is being written, which names its ground and its "
                    "reference. Change them when it is completed."
                )
            changed = _changed_texts(request, what)
            ground = request.ground if what.ground is None else parse_ground(what.ground)
            detail: dict[str, Any] = texts.write(connection, request_number(request.id), changed)
            said = [str(kind) for kind in changed]
            if ground is not request.ground:
                detail[GROUND_BEFORE] = request.ground and str(request.ground)
                said.append(f"ground from {request.ground or 'none'} to {ground or 'none'}")
            if not said:
                return request
            detail["text"] = ", ".join(said)
            return statements.write_change(
                connection, request, AMENDED, actor=by, now=now, detail=detail, ground=ground and str(ground)
            )

    def redact(self, request_id: str, *, by: str, now: datetime) -> DeletionRequest:
        """Erase what people wrote about a request: reference, note and reasons. Where nothing is left, nothing changes.

        Raises:
            RequestNotFound: there is none with this id.
        """
        with self._database.writing() as connection:
            request = statements.get(connection, request_id)
            erased = texts.erase(connection, request_number(request.id))
            if erased:
                request = statements.write_change(
                    connection, request, REDACTED, actor=by, now=now, detail={texts.ERASED: erased}
                )
        self._clear_files()
        return request

    def deadlines(self, today: date) -> tuple[int, int]:
        """Return how many requests wait for an answer past their deadline, and how many are due within seven days."""
        answered = [str(status) for status in ANSWERED_STATUSES]
        query = sa.select(
            sa.func.coalesce(sa.func.sum(sa.case((_requests.c.due_on < today, 1), else_=0)), 0),
            sa.func.coalesce(sa.func.sum(sa.case((_requests.c.due_on >= today, 1), else_=0)), 0),
        ).where(_requests.c.due_on <= today + SOON, _requests.c.status.not_in(answered))
        with self._database.reading() as connection:
            overdue, soon = connection.execute(query).one()
        return int(overdue), int(soon)

    def text_commitment(self, request_id: str, kind: Kind) -> str | None:
        """Return the salted hash of a request's newest text of this kind; None where there never was one."""
        with self._database.reading() as connection:
            return texts.digest_of(connection, request_id, kind)

    def _clear_files(self) -> None:
        """Clear what was erased; also after a call that found nothing left, in case one before was interrupted."""
        try:
            done = self._database.clear(texts.TEXT)
        except LedgerUnavailable:
            done = False
        if not done:
            _log.warning(
                "What was erased may still stand in the database's files, because somebody reads the ledger just now. "
                "Run the command again to clear it."
            )


def _changed_texts(request: DeletionRequest, what: Amendment) -> dict[Kind, str]:
    found: dict[Kind, str] = {}
    for kind, text in ((Kind.REFERENCE, what.reference), (Kind.NOTE, what.note)):
        if text is None or text == getattr(request, kind):
            continue
        if not text:
            raise InvalidRequest(f"A {kind} is changed, not emptied; `redact` erases what was written.")
        found[kind] = text
    return found


def _refuse_extension(request: DeletionRequest, today: date) -> None:
    if request.is_answered:
        raise IllegalMove(f"Request {request.id} is {request.status}; there is nothing to extend.")
    if request.extended_days:
        raise IllegalMove(
            f"Request {request.id} was extended by {request.extended_days} days, to {request.due_on}; a deadline is "
            "extended once."
        )
    if request.is_overdue(today):
        raise IllegalMove(
            f"Request {request.id} was due on {request.due_on}; a deadline is extended before it has passed."
        )
