"""The plain commands, one for each verb of the service's table of calls; and how a request's deadline is printed."""

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

import typer

from server.cli.connection import RequestId, connection_of, take_options, user_name
from server.service.calls import Value, Verb
from strategies.command_line import show_fields, show_lines, wants_json
from unlearning.errors import InvalidRequest
from unlearning.gdpr import today
from unlearning.requests import DeletionRequest, Status
from unlearning.runtime.json_codec import json_or_word, to_plain


def plain_command(name: str, verb: Verb) -> Callable[..., None]:
    """Return the command of a verb: it sends the verb's values and prints the request's new state."""

    def run(ctx: typer.Context, request_id: str, **given: Any) -> None:
        if verb.confirm and not given.pop("yes"):
            typer.confirm(verb.confirm.format(request_id), abort=True)
        values = {
            key: dict(map(parse_parameter, value)) if verb.values[key].kind is dict else value
            for key, value in given.items()
            if value not in (verb.values[key].default, [])
        }
        with connection_of(ctx).client() as service:
            done = service.change(name, request_id, by=user_name(), **values)
        said = _SAID.get(name)
        show_lines((done.id, said(done) if said else done.status), data=request_json(done))
        if name == "amend" and not wants_json():
            show_fields(item for item in deadline_lines(done) if item[0] in verb.values)

    parameters = {"request_id": (RequestId, ...), **{key: _option(one) for key, one in verb.values.items()}}
    if verb.confirm:
        parameters["yes"] = (Annotated[bool, typer.Option("--yes", help="Do not ask.")], False)
    take_options(run, {"ctx": (typer.Context, ...), **parameters})
    run.__doc__ = verb.help
    return run


def request_json(request: DeletionRequest) -> dict[str, Any]:
    """Return a request as `--json` prints it."""
    plain = {**to_plain(request), "days_left": request.days_left(today())}
    plain |= {name: getattr(request, name).isoformat() for name in ("created_at", "updated_at")}
    del plain["submitted_role"]  # which this form has never had
    return plain


def parse_parameter(text: str) -> tuple[str, Any]:
    """Return the name and the value of a method's parameter as it is typed.

    Raises:
        InvalidRequest: it is not NAME=VALUE.
    """
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise InvalidRequest(f"--parameter takes NAME=VALUE, got {text!r}.")
    return name, json_or_word(value)


def _option(value: Value) -> tuple[Any, Any]:
    if value.kind is dict:
        several: Any = typer.Option("--parameter", help=value.help, metavar=value.metavar)
        return Annotated[list[str] | None, several], value.default
    bounds: dict[str, Any] = {} if value.at_most is None else {"min": 0, "max": value.at_most}
    option: Any = typer.Option(help=value.help, metavar=value.metavar, **bounds)
    kind: Any = value.kind if value.default is not None else value.kind | None
    return Annotated[kind, option], value.default


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


_SAID: Mapping[str, Callable[[DeletionRequest], str]] = {
    "accept": lambda done: (
        f"{done.status}: another person must accept it too"
        if done.status is Status.AWAITING
        else str(done.status)
    ),
    "extend": due_text,
    "hold": lambda done: f"{done.status}, held",
    "redact": lambda done: (
        ("redacted" if done.is_redacted else "no text was erased")
        + ("; why it was refused is kept" if done.refusal_reason else "")
    ),
}
"""What a command prints beside the id, where that is not the request's status."""
