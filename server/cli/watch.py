"""`flower-unlearn watch`: a request's states, the rounds and what is being waited for, as they happen."""

from datetime import datetime

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from server.api.client import DeletionClient
from server.cli.connection import RequestId, connection_of
from server.ledger import Event, RoundRecord
from unlearning.requests import DeletionRequest, Status

_WAY = (
    Status.RECEIVED,
    Status.SCHEDULED,
    Status.UNLEARNING,
    Status.RECOVERING,
    Status.VERIFYING,
    Status.COMPLETED,
)
_SHOWN_ROUNDS = 8


def watch(ctx: typer.Context, request_id: RequestId) -> None:
    """Follow a request until it is over; exit code 0 if it was completed."""
    with connection_of(ctx).client() as service:
        over = follow(service, request_id)
    if over.status is not Status.COMPLETED:
        raise typer.Exit(1)


def follow(service: DeletionClient, request_id: str) -> DeletionRequest:
    """Show a request's progress until it is over, and return it as it then stands.

    A terminal shows one picture that changes; a pipe or a file gets one line for each thing that happens.
    """
    console = Console(soft_wrap=True, highlight=False)
    over: DeletionRequest | None = None
    if not console.is_terminal:
        for item in service.watch(request_id):
            if isinstance(item, DeletionRequest):
                over = item
            else:
                console.print(Text(_line(item)))
    else:
        picture = Picture()
        with Live(picture, console=console, refresh_per_second=4):
            for item in service.watch(request_id):
                picture.take(item)
        over = picture.request
    assert over is not None, "the stream begins and ends with the request"
    console.print(Text(_outcome(over)))
    return over


class Picture:
    """What a terminal shows: the way of the request, the last rounds, and the last word."""

    def __init__(self) -> None:
        self.request: DeletionRequest | None = None
        self._status = Status.RECEIVED
        self._rounds: list[RoundRecord] = []
        self._word = ""

    def take(self, item: DeletionRequest | Event | RoundRecord) -> None:
        """Bring the picture up to date."""
        match item:
            case DeletionRequest():
                self.request, self._status = item, item.status
            case Event():
                self._status = item.to_status or self._status
                self._word = "" if item.to_status else _line(item)
            case RoundRecord():
                self._rounds = [*self._rounds, item][-_SHOWN_ROUNDS:]

    def __rich__(self) -> RenderableType:
        if self.request is None:
            return Text("Connecting …")
        head = Text(f"{self.request.id}  forget {self.request.target.describe()} with {self.request.method}")
        parts: list[RenderableType] = [head, self._way()]
        if self._rounds:
            table = Table("round", "kind", "clients", "loss", "test score", "test loss", "s", box=None)
            for record in self._rounds:
                table.add_row(*_cells(record), style="bold" if self.request.id in record.request_ids else "")
            parts.append(table)
        if self._word:
            parts.append(Text(self._word, style="yellow"))
        return Group(*parts)

    def _way(self) -> Text:
        text = Text()
        for status in _WAY:
            text.append(str(status), style="bold reverse" if status is self._status else "dim")
            text.append(" → " if status is not _WAY[-1] else "", style="dim")
        if self._status not in _WAY:
            text.append(f"   {self._status}", style="bold red")
        return text


def _line(item: Event | RoundRecord) -> str:
    if isinstance(item, RoundRecord):
        number, kind, clients, loss, score, test_loss, seconds = _cells(item)
        return (
            f"{_clock(item.at)}  round {number} ({kind}): {clients} client(s), loss {loss}, "
            f"test score {score}, test loss {test_loss}, {seconds} s"
        )
    said = item.detail.get("reason") or item.detail.get("text") or ""
    what = f"{item.from_status} → {item.to_status}" if item.to_status else item.kind
    return f"{_clock(item.at)}  {what}{f': {said}' if said else ''}"


def _cells(record: RoundRecord) -> tuple[str, ...]:
    """A round for people; a dash stands for what was not measured. The live loop names the metrics."""
    metrics = record.metrics
    participants = metrics.get("participants")
    return (
        str(record.round),
        f"{record.kind}, not committed" if metrics.get("not_committed") else record.kind,
        str(len(participants)) if isinstance(participants, list) else "–",
        *(_number(metrics.get(name)) for name in ("loss", "test_score", "test_loss")),
        _number(metrics.get("seconds"), digits=1),
    )


def _number(value: object, *, digits: int = 4) -> str:
    return f"{value:.{digits}f}" if isinstance(value, int | float) else "–"


def _clock(at: datetime) -> str:
    return f"{at:%H:%M:%S}"


def _outcome(request: DeletionRequest) -> str:
    head = f"{request.id} is {request.status}"
    if request.status is Status.COMPLETED:
        return f"{head}. Its report: flower-unlearn report {request.id}"
    again = f" Try again: flower-unlearn retry {request.id}" if request.retryable else ""
    return f"{head}{f': {request.reason}' if request.reason else ''}.{again}"
