"""What is erased of requests that ended long ago: reports down to their certificate, and people's texts.

The ledger's event comes before the files go, so that a command that was broken off goes on when it is run again.
Requests that are open are left alone, those on hold among them, and so is a report that answers one that ended later.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated

from server.certificate.document import NAME
from server.ledger import Ledger
from server.ledger.texts import OF_REQUESTS, Kind
from server.state_directory.files import EARLIER, REPORTS
from unlearning.errors import ConfigurationError
from unlearning.requests import DeletionRequest, Status

_MOST_MONTHS = 12_000
"""A thousand years: what is longer ago than that has no date."""
_ENDED = (Status.COMPLETED, Status.CANCELLED, Status.REFUSED, Status.REPLACED)
_FILES = ("report.json", "report.html")  # in this order: where there is a report.json, there is a page


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Retention.

    Raises:
        ConfigurationError: a number is below 0 or above 12,000.
    """

    report_months: Annotated[
        int, "after this number of months (30 days each) a report becomes its certificate only; 0: it stays"
    ] = 24
    text_months: Annotated[
        int, "after this number a request's reference, note and reasons go, as by `redact`; 0: they stay"
    ] = 0

    def __post_init__(self) -> None:
        given = {"report-months": self.report_months, "text-months": self.text_months}
        if wrong := [
            f"{name}: give 0 to {_MOST_MONTHS:,}, got {months}."
            for name, months in given.items()
            if not 0 <= months <= _MOST_MONTHS
        ]:
            raise ConfigurationError(wrong)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What goes of one request: its `report`, or its `texts`."""

    request_id: str
    what: str
    num_bytes: int


def prune(
    ledger: Ledger, state_dir: Path, retention: Retention, *, now: datetime, is_dry: bool
) -> Iterator[Pruned]:
    """Erase what is older than it is kept, oldest request first, and yield each; is_dry: only say what would go."""
    ended = ledger.requests.select(statuses=_ENDED)
    if retention.report_months:
        aged = _aged(ended, now, retention.report_months)
        needed = {one.answered_by[-1] for one in ended if one.answered_by and one.id not in aged}
        for request_id in sorted(aged.keys() - needed):
            yield from _prune_report(ledger, state_dir / REPORTS / request_id, now, is_dry=is_dry)
    for request in _aged(ended, now, retention.text_months).values() if retention.text_months else ():
        if size := sum(len(getattr(request, kind).encode()) for kind in OF_REQUESTS - {Kind.REFUSAL}):
            if not is_dry:
                ledger.decisions.redact(request.id, by="retention", now=now)
            yield Pruned(request_id=request.id, what="texts", num_bytes=size)


def _aged(ended: Sequence[DeletionRequest], now: datetime, months: int) -> Mapping[str, DeletionRequest]:
    until = now - timedelta(days=30 * months)
    return {one.id: one for one in ended if one.updated_at < until}


def _prune_report(ledger: Ledger, folder: Path, now: datetime, *, is_dry: bool) -> Iterator[Pruned]:
    folders = (folder, *sorted(folder.glob(f"{EARLIER}*")))
    files = [one / name for one in folders for name in _FILES if (one / name).is_file()]
    if not files or not (folder / NAME).is_file():
        return
    size = sum(path.stat().st_size for path in files)
    if not is_dry:
        hashes = {
            str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
        }
        ledger.decisions.note_pruned(folder.name, hashes, by="retention", now=now)
        for path in files:
            path.unlink()
    yield Pruned(request_id=folder.name, what="report", num_bytes=size)
