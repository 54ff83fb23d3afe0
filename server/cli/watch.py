"""`flower-unlearn watch`: a request's states, the rounds and what is being waited for, as they happen."""

import typer
from rich.console import Console

from server.api.client import DeletionClient
from server.api.narrator import GOING_ON, Narrator
from server.cli.connection import RequestId, connection_of
from server.ledger import Event
from unlearning.requests import DeletionRequest, Status
from unlearning.runtime.command_output import is_read


def watch(ctx: typer.Context, request_id: RequestId) -> None:
    """Follow a request until it is over; exit code 0 if it was completed."""
    with connection_of(ctx).client() as service:
        over = follow(service, request_id)
    if over.status is not Status.COMPLETED:
        raise typer.Exit(1)


def follow(service: DeletionClient, request_id: str, console: Console | None = None) -> DeletionRequest:
    """Tell what becomes of a request until it is over, and return it as it then stands; end where it has no reader."""
    console = console or Console(highlight=False)
    narrator = Narrator(console)
    request: DeletionRequest | None = None
    status = Status.RECEIVED
    if waiting := service.clients_and_waiting()[1]:
        narrator.say(waiting)
    with narrator.show_progress():
        for item in service.watch(request_id):
            if isinstance(item, DeletionRequest):
                request, status = item, item.status
            else:
                narrator.tell(item)
                status = (item.to_status if isinstance(item, Event) else None) or status
            if not is_read():
                raise typer.Exit(1)
            if console.is_terminal and request is not None:
                going_on = GOING_ON.get(status, "in the queue, while training goes on")
                narrator.now(
                    f"{request.id}, forget {request.target.describe()} with {request.method}: {going_on}"
                )
    assert request is not None, "the stream begins and ends with the request"
    console.print(_outcome(request), markup=False, soft_wrap=True)
    return request


def _outcome(request: DeletionRequest) -> str:
    head = f"{request.id} is {request.status}"
    if request.status is Status.COMPLETED:
        return f"{head}. Its report: flower-unlearn report {request.id}"
    again = f" Try again: flower-unlearn retry {request.id}" if request.retryable else ""
    reason = request.reason or request.refusal_reason
    return f"{head}{f': {reason}' if reason else ''}.{again}"
