"""Tells what becomes of a deletion request and of the rounds meanwhile: for `flower-unlearn watch` and the demo."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from textwrap import wrap

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from server.ledger import Event, RoundRecord
from server.ledger.records import EXTENDED, SUBMITTED
from unlearning.requests import Status

MEANINGS: Mapping[Status, str] = {
    Status.RECEIVED: "safely stored; from the next round on its data is not used",
    Status.AWAITING: "an officer decides whether it begins",
    Status.ACCEPTED: "it may begin",
    Status.SCHEDULED: "checked again with the live federation; it is next",
    Status.UNLEARNING: "the model is measured as it is, then the method runs",
    Status.RECOVERING: "the unlearned model recovers without the data; the one before can still come back",
    Status.VERIFYING: "the quality was checked, the data is permanently excluded, the report is written",
    Status.COMPLETED: "the report is ready",
    Status.FAILED: "it did not succeed; the model is as it was before",
    Status.CANCELLED: "withdrawn",
    Status.REFUSED: "answered without deletion",
    Status.REOPENED: "a recheck no longer finds its effect; its data stays excluded",
    Status.REPLACED: "another request asks for the same in its place",
}
GOING_ON: Mapping[Status, str] = {
    Status.UNLEARNING: "measuring the model, then unlearning",
    Status.RECOVERING: "measuring the model, and recovery rounds",
    Status.VERIFYING: "writing the report",
}

_MOST_NAMES = 6
_WIDE = 100
"""Columns from which on a round's losses find room."""


class Narrator:
    """Says what happens, a line each; a terminal also shows what is going on.

    since_start: lines begin with the time since the narrator was made, else with the time of day of what they tell.
    """

    def __init__(self, console: Console, *, since_start: bool = False) -> None:
        self._console = console
        self._started = time.monotonic() if since_start else None
        self._progress: Progress | None = None
        self._going_on = ""

    @contextmanager
    def show_progress(self) -> Iterator[None]:
        """Keep a moving line at the bottom of a terminal: what is going on, since when."""
        if not self._console.is_terminal:
            yield
            return
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
        with Progress(*columns, console=self._console, transient=True) as self._progress:
            self._progress.add_task("", total=None)
            yield

    def now(self, text: str) -> None:
        """Say what is going on; without a terminal once, when it begins."""
        if self._progress is not None:
            task = self._progress.task_ids[0]
            if text != self._going_on:
                self._progress.reset(task, description=f"{text} …")
        elif text != self._going_on:
            self.say(f"{text} …")
        self._going_on = text

    def say(self, text: str, style: str = "", *, at: datetime | None = None) -> None:
        """Say what has happened, now or at some time."""
        if self._started is None:
            head = f"{at or datetime.now().astimezone():%H:%M:%S}  "
        else:
            minutes, seconds = divmod(int(time.monotonic() - self._started), 60)
            head = f"{minutes:>2}:{seconds:02}  "
        lines = [text]
        if self._console.is_terminal:
            lines = wrap(text, max(20, self._console.width - len(head))) or [""]
        told = Text(head, style="dim")
        told.append(("\n" + " " * len(head)).join(lines), style=style)
        self._console.print(told, soft_wrap=True)

    def tell(self, item: Event | RoundRecord) -> None:
        """Say what has become of a request, or how a round ended."""
        if isinstance(item, RoundRecord):
            self.say(self._round(item), at=item.at)
            return
        status = Status.RECEIVED if item.kind == SUBMITTED else item.to_status
        said = item.text or item.detail.get("reason") or item.detail.get("text") or _deadline(item)
        if status is not None:
            said = f"{MEANINGS[status]} ({said})" if said else MEANINGS[status]
        self.say(f"request {item.request_id} {status or item.kind}: {said}", "bold cyan", at=item.at)

    def _round(self, record: RoundRecord) -> str:
        """Return a round as a line; a dash stands for what was not measured. The live loop names the metrics."""
        metrics = record.metrics
        kind = f"{record.kind}, not committed" if metrics.get("not_committed") else record.kind
        clients = _clients(metrics.get("participants") or [])
        score = _figure(metrics.get("test_score"), "{:.1%}").replace("%", "\u202f%")
        seconds = _figure(metrics.get("seconds"), "{:.1f}\u202fs")
        line = f"round {record.round}  {kind:<10}  {clients:<16}  test accuracy {score}  {seconds}"
        if self._console.is_terminal and self._console.width < _WIDE:
            return line
        loss, test_loss = (_figure(metrics.get(name), "{:.4f}") for name in ("loss", "test_loss"))
        named = metrics.get("test_metrics") or {}
        of_sets = "".join(f", {name} {_figure(value, '{:.4f}')}" for name, value in named.items())
        return f"{line}  loss {loss}, test loss {test_loss}{of_sets}"


def _deadline(event: Event) -> str:
    return f"due on {event.detail['due_on']}" if event.kind == EXTENDED else ""


def _figure(value: object, form: str) -> str:
    return form.format(value) if isinstance(value, int | float) else "–"


def _clients(names: Sequence[str]) -> str:
    if len(names) > _MOST_NAMES:
        return f"{len(names)} clients"
    return f"{'client' if len(names) == 1 else 'clients'} {', '.join(names) or '–'}"
