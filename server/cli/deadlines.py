"""The commands about a request's deadline, its hold and its texts; and what `status` and `list` say of them."""

from collections.abc import Iterator
from typing import Annotated

import typer

from server.cli.connection import RequestId, connection_of, user_name
from unlearning.gdpr import MAX_EXTENSION_DAYS, MAX_REASON_LENGTH, Amendment, today
from unlearning.requests import DeletionRequest

Reason = Annotated[
    str,
    typer.Option(help=f"Why, in at most {MAX_REASON_LENGTH:,} characters; `redact` can erase it."),
]


def extend(
    ctx: typer.Context,
    request_id: RequestId,
    days: Annotated[int, typer.Option(help=f"By how many days: 1 to {MAX_EXTENSION_DAYS}.")],
    reason: Reason,
) -> None:
    """Put a request's deadline off, once and before it has passed."""
    with connection_of(ctx).client() as service:
        done = service.extend(request_id, days=days, reason=reason, by=user_name())
    typer.echo(f"{done.id}  {due_text(done)}")


def hold(ctx: typer.Context, request_id: RequestId, reason: Reason) -> None:
    """Keep a request from beginning, because the data has to be kept; its deadline runs on."""
    with connection_of(ctx).client() as service:
        done = service.hold(request_id, reason=reason, by=user_name())
    typer.echo(f"{done.id}  {done.status}, held")


def release(ctx: typer.Context, request_id: RequestId, reason: Reason = "") -> None:
    """Lift a request's hold, so that it goes on."""
    with connection_of(ctx).client() as service:
        done = service.release(request_id, reason=reason, by=user_name())
    typer.echo(f"{done.id}  {done.status}")


def refuse(ctx: typer.Context, request_id: RequestId, reason: Reason) -> None:
    """Answer a request without deletion, for example because Art. 17(3) GDPR exempts it."""
    with connection_of(ctx).client() as service:
        done = service.refuse(request_id, reason=reason, by=user_name())
    typer.echo(f"{done.id}  {done.status}")


def amend(
    ctx: typer.Context,
    request_id: RequestId,
    ground: Annotated[
        str | None, typer.Option(metavar="a-f", help="The ground: a letter of Art. 17(1) GDPR; empty: none.")
    ] = None,
    reference: Annotated[str | None, typer.Option(help="The number in your own system.")] = None,
    note: Annotated[str | None, typer.Option(help="The note for your colleagues.")] = None,
) -> None:
    """Change a request's ground, reference or note; what stood there stays in the ledger until `redact`."""
    what = Amendment(ground=ground, reference=reference, note=note)
    with connection_of(ctx).client() as service:
        done = service.amend(request_id, what, by=user_name())
    typer.echo(f"{done.id}  {done.status}")
    for name, value in deadline_lines(done):
        if name in ("ground", "reference", "note"):
            typer.echo(f"{name + ':':<13}{value}")


def redact(
    ctx: typer.Context,
    request_id: RequestId,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Erase a request's reference, note and reasons for good; all else of the ledger stays and still verifies."""
    if not yes:
        typer.confirm(f"Erase reference, note and reasons of {request_id} for good?", abort=True)
    with connection_of(ctx).client() as service:
        done = service.redact(request_id, by=user_name())
    typer.echo(f"{done.id}  {'redacted' if done.is_redacted else 'has no texts'}")


def due_text(request: DeletionRequest) -> str:
    """Say by when a request must be answered, and how far off that is."""
    left = request.days_left(today())
    if left is None:
        return f"due on {request.due_on}"
    if left < 0:
        return f"due on {request.due_on}, OVERDUE by {_days(-left)}"
    return f"due on {request.due_on}, {'today' if left == 0 else f'{_days(left)} left'}"


def due_cell(request: DeletionRequest) -> str:
    """Return the deadline as a row of `list` has it."""
    left = request.days_left(today())
    if left is None:
        return str(request.due_on)
    held = ", held" if request.is_held else ""
    return f"{request.due_on} ({'OVERDUE' if left < 0 else f'{left} d'}{held})"


def deadline_lines(request: DeletionRequest) -> Iterator[tuple[str, str]]:
    """Yield what `status` says of a request's deadline and texts; nothing of what there is not."""
    yield "received on", str(request.received_on)
    yield "deadline", due_text(request)
    if request.extended_days:
        yield "extended by", _with_reason(_days(request.extended_days), request.extension_reason)
    if request.is_held:
        yield "held", request.hold_reason or "yes"
    if request.refusal_reason:
        yield "refused for", request.refusal_reason
    if request.ground:
        yield "ground", request.ground.describe()
    if request.reference:
        yield "reference", request.reference
    if request.note:
        yield "note", request.note
    if request.is_redacted:
        yield "redacted", "texts were erased"


def _with_reason(what: str, reason: str) -> str:
    return f"{what}: {reason}" if reason else what


def _days(count: int) -> str:
    return f"{count} day{'' if count == 1 else 's'}"
