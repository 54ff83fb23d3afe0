"""By when a deletion request must be answered, and what its filer may write beside it: day, ground, reference, note.

The rules are those of the General Data Protection Regulation (EU) 2016/679: a request is answered within one month of
its receipt, which may be extended once with a reason (Art. 12(3)); the grounds are those of Art. 17(1). A month ends on
the same day of the next one, or on that one's last day (Regulation (EEC, Euratom) 1182/71, Art. 3(2)(c)). Weekends
and holidays, on which a period may not end (Art. 3(4)), are not counted here: the deadline is then some days early.
"""

import re
from calendar import monthrange
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any

from unlearning.errors import InvalidRequest

EARLIEST_RECEIVED = date(2018, 5, 25)
"""The first day on which the Regulation applied."""
MAX_EXTENSION_DAYS = 60
MAX_REFERENCE_LENGTH = 200
MAX_NOTE_LENGTH = 2000
MAX_REASON_LENGTH = 1000
SOON = timedelta(days=7)

_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
_EASTMOST = timedelta(hours=14)  # of all time zones: there a day begins first
_JOINERS = "\u200c\u200d"  # not printable by themselves, and part of Persian, Hindi and other words


class Ground(StrEnum):
    """Why erasure is due: the letters of Art. 17(1)."""

    A = "a"
    B = "b"
    C = "c"
    D = "d"
    E = "e"
    F = "f"

    def describe(self) -> str:
        """Return the ground in a few words, with its article."""
        return f"Art. 17(1)({self}): {_GROUNDS[self]}"


_GROUNDS = {
    Ground.A: "the data is no longer needed for its purpose",
    Ground.B: "consent was withdrawn and there is no other legal ground",
    Ground.C: "the person objects to the processing",
    Ground.D: "the data was processed unlawfully",
    Ground.E: "a law demands the erasure",
    Ground.F: "the data was collected from a child for an online service",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Particulars:
    """What a filer may write down with a request, with sentences for forms; None or empty where nothing was given.

    received_on: the day on which the person's request came in, which may lie before it was filed here.
    due_on: an earlier deadline than the law's.
    reference: the number of the filer's own system. note: free text. Both can be erased later.

    Raises:
        InvalidRequest: a text is too long, or holds what is no plain text.
    """

    received_on: Annotated[date | None, "When the person's request came in; today if left out."] = None
    due_on: Annotated[date | None, "An earlier deadline than one month after it came in."] = None
    ground: Annotated[Ground | None, "The ground: a letter of Art. 17(1) GDPR."] = None
    reference: Annotated[str, "The number in your own system; `redact` can erase it."] = ""
    note: Annotated[str, "A note for your colleagues; `redact` can erase it."] = ""

    def __post_init__(self) -> None:
        if self.reference:
            _check_text("reference", self.reference, MAX_REFERENCE_LENGTH, one_line=True)
        if self.note:
            _check_text("note", self.note, MAX_NOTE_LENGTH)

    @classmethod
    def from_texts(cls, **texts: str) -> "Particulars":
        """Return what was typed, by the names of the fields; each may be empty.

        Raises:
            InvalidRequest: a day, the ground or a text is malformed.
        """
        read: dict[str, Any] = dict(texts)
        for name in ("received_on", "due_on"):
            read[name] = parse_day(name.replace("_", "-"), texts.get(name, ""))
        return cls(**{**read, "ground": parse_ground(texts.get("ground", ""))})

    def dates(self, now: datetime) -> tuple[date, date]:
        """Return the days of receipt and of the deadline for a request that is filed at `now`.

        Raises:
            InvalidRequest: it was received before the Regulation or after today, or is due before that or later than
                the Regulation says.
        """
        received_on = self.received_on or now.astimezone(UTC).date()
        latest = (now.astimezone(UTC) + _EASTMOST).date()
        if not EARLIEST_RECEIVED <= received_on <= latest:
            raise InvalidRequest(
                f"received-on: from {EARLIEST_RECEIVED} (the Regulation's first day) to today, got {received_on}.",
                code="bad-day",
                field="received_on",
            )
        by_law = one_month_after(received_on)
        due_on = self.due_on or by_law
        if not received_on <= due_on <= by_law:
            raise InvalidRequest(
                f"due-on: from the day it was received, {received_on}, to one month after it, {by_law}, got {due_on}. "
                "`extend` gives more time, with a reason.",
                code="bad-day",
                field="due_on",
            )
        return received_on, due_on


NOTHING_GIVEN = Particulars()


@dataclass(frozen=True, slots=True, kw_only=True)
class Amendment:
    """What a request has from now on; None: as it was. ground: a letter, empty to take it away.

    Raises:
        InvalidRequest: nothing is given, or something that cannot be.
    """

    ground: str | None = None
    reference: str | None = None
    note: str | None = None

    def __post_init__(self) -> None:
        if self.ground is None and self.reference is None and self.note is None:
            raise InvalidRequest(
                "Say what to change: the ground, the reference or the note.", code="empty-amendment"
            )
        parse_ground(self.ground or "")
        Particulars(reference=self.reference or "", note=self.note or "")


def today() -> date:
    """Return the day that it is in UTC, by which deadlines are counted."""
    return datetime.now(UTC).date()


def one_month_after(day: date) -> date:
    """Return the day of the same number in the next month, or that month's last day."""
    year, month = (day.year + 1, 1) if day.month == 12 else (day.year, day.month + 1)
    return date(year, month, min(day.day, monthrange(year, month)[1]))


def parse_day(name: str, text: str) -> date | None:
    """Return the day that a text of the form YYYY-MM-DD names; None where it is empty.

    Raises:
        InvalidRequest: it names none; `name` is the field.
    """
    if not text:
        return None
    try:
        if not _DAY.fullmatch(text):
            raise ValueError
        return date.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(
            f"{name}: a day is written YYYY-MM-DD, got {text[:40]!r}.", code="not-a-day", field=name
        ) from None


def parse_ground(text: str) -> Ground | None:
    """Return the ground of a letter; None where the text is empty.

    Raises:
        InvalidRequest: it is no letter of Art. 17(1).
    """
    if not text:
        return None
    try:
        return Ground(text)
    except ValueError:
        known = "; ".join(f"{ground} ({words})" for ground, words in _GROUNDS.items())
        raise InvalidRequest(
            f"ground: a letter of Art. 17(1), got {text[:40]!r}. They are: {known}.",
            code="unknown-ground",
            field="ground",
        ) from None


def check_reason(what: str, text: str) -> str:
    """Return a reason that is given for something, without blanks around it.

    Raises:
        InvalidRequest: there is none, it is too long, or holds what is no plain text.
    """
    reason = text.strip() if len(text) <= MAX_REASON_LENGTH else text
    if not reason:
        raise InvalidRequest(f"{what} needs a reason: say why in a sentence.", code="no-reason")
    _check_text(f"reason of {what}", reason, MAX_REASON_LENGTH)
    return reason


def check_extension(days: int) -> int:
    """Return by how many days a deadline is extended.

    Raises:
        InvalidRequest: it is not from 1 to `MAX_EXTENSION_DAYS`.
    """
    if not 1 <= days <= MAX_EXTENSION_DAYS:
        raise InvalidRequest(
            f"days: a deadline is extended by 1 to {MAX_EXTENSION_DAYS} days, got {days}.",
            code="bad-extension",
        )
    return days


def _check_text(what: str, text: str, longest: int, *, one_line: bool = False) -> None:
    if len(text) > longest:
        raise InvalidRequest(
            f"The {what} may have {longest:,} characters, got {len(text):,}.", code="bad-text"
        )
    allowed = _JOINERS if one_line else f"{_JOINERS}\n"
    if any(not (letter.isprintable() or letter in allowed) or letter in "<>" for letter in text):
        form = "one line of plain text" if one_line else "plain text"
        raise InvalidRequest(
            f"The {what} must be {form}, without control characters, < and >.", code="bad-text"
        )
