"""The commands about deletion requests: file, follow and list them, fetch reports. The verbs are in verbs.py."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated
from uuid import uuid4

import typer
from rich.console import Console

from server.cli.connection import RequestId, connection_of, options_of, user_name
from server.cli.verbs import deadline_lines, due_cell, parse_parameter, request_json
from server.ledger import Event
from server.service.calls import REPORT_PRUNED
from server.service.client import DeletionClient
from server.service.narrator import GOING_ON, Narrator
from server.service.statuses import AccessDenied, ServiceUnavailable
from strategies.command_line import say, show_fields, show_json, show_lines, show_table, wants_json
from unlearning.advice import advice_for
from unlearning.errors import InvalidRequest, RequestError
from unlearning.gdpr import Particulars
from unlearning.outcomes import describe_request
from unlearning.requests import DeletionRequest, Granularity, Outcome, Status, Target, read_sample_ids
from unlearning.runtime.command_output import is_read
from unlearning.runtime.durable_files import write_atomically
from unlearning.runtime.json_codec import to_plain


@options_of("particulars", Particulars, Particulars.from_texts)
def request(
    ctx: typer.Context,
    client: Annotated[
        list[str] | None, typer.Option(help="A client to forget; repeat it for one request each.")
    ] = None,
    samples: Annotated[
        Path | None, typer.Option(help="Forget only these samples of the client: a file, one id a line.")
    ] = None,
    class_label: Annotated[
        int | None, typer.Option("--class", help="Forget this class on every client.")
    ] = None,
    method: Annotated[
        str, typer.Option(help="The unlearning method; left out, the one that `plan` recommends.")
    ] = "",
    parameter: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A parameter of the method.")
    ] = None,
    key: Annotated[
        str, typer.Option(help="Idempotency key: the same request with the same key is filed once.")
    ] = "",
    *,
    particulars: Particulars,
    hold: Annotated[
        str,
        typer.Option(metavar="REASON", help="Hold it from the start, for this reason: it does not begin."),
    ] = "",
    wait: Annotated[bool, typer.Option("--wait", help="Show progress until the request has ended.")] = False,
) -> None:
    """File a deletion request; it is durable when this command returns."""
    targets = targets_of(client or [], samples, class_label)
    parameters = dict(map(parse_parameter, parameter or []))
    key = key or str(uuid4())
    filed: list[DeletionRequest] = []
    refusal: RequestError | None = None
    with connection_of(ctx).client() as service:
        for target in targets:
            try:
                done = service.submit(
                    target,
                    method=method,
                    parameters=parameters,
                    submitted_by=user_name(),
                    # one key for the command, so that running it again files nothing twice
                    idempotency_key=key if len(targets) == 1 else f"{key}/{target.client_id}",
                    particulars=particulars,
                    hold_reason=hold,
                )
            except RequestError as exc:
                refusal = exc
                typer.echo(f"Refused: {exc}", err=True)
            except ServiceUnavailable as exc:
                raise ServiceUnavailable(
                    f"{exc} With --key {key} the command can be run again without filing anything twice."
                ) from exc
            else:
                filed.append(done)
                what = f"forget {target.describe()} with {done.method}"
                show_lines((done.id, done.status, what), data=request_json(done))
        over = [follow(service, done.id) for done in filed] if wait else []
    if refusal is not None:
        raise typer.Exit(refusal.exit_code)
    if any(done.status is not Status.COMPLETED for done in over):
        raise typer.Exit(1)


def status(ctx: typer.Context, request_id: RequestId) -> None:
    """Show the state of a request."""
    with connection_of(ctx).client() as service:
        found = service.get(request_id)
        waiting = _waiting(service) if found.is_open else ""
    show_fields(_request_lines(found), request_json(found))
    if waiting:
        say(waiting)


def list_requests(
    ctx: typer.Context,
    only: Annotated[
        list[Status] | None, typer.Option("--status", help="Only requests of this status.")
    ] = None,
    outcome: Annotated[list[Outcome] | None, typer.Option(help="Only requests of this outcome.")] = None,
    client: Annotated[str, typer.Option(help="Only requests about this client.")] = "",
) -> None:
    """List the requests in order of arrival."""
    with connection_of(ctx).client() as service:
        found = service.list_requests(
            statuses=tuple(only or ()), outcomes=tuple(outcome or ()), client_id=client
        )
    rows = [
        (
            item.id,
            item.target.describe(),
            item.method,
            f"{item.status}, {item.outcome}" if item.outcome else item.status,
            f"{item.created_at:%Y-%m-%d %H:%M}",
            due_cell(item),
            item.reason or item.refusal_reason,
        )
        for item in found
    ]
    columns = ("id", "forget", "method", "status", "filed (UTC)", "due", "reason")
    show_table(columns, rows, "No requests.", data=[request_json(item) for item in found])


def report(
    ctx: typer.Context,
    request_id: RequestId,
    output: Annotated[Path, typer.Option(help="Directory to write the report to.")] = Path(),
) -> None:
    """Fetch the report and the certificate of a completed request, and its timestamp where it has one."""
    with connection_of(ctx).client() as service:
        found = service.report(request_id)
    files = {
        "report.json": found.json,
        "report.html": found.html,
        "certificate.json": found.certificate,
        "certificate.tsr": found.timestamp,
    }
    written = {}
    for name, content in files.items():
        if content:
            stem, suffix = name.split(".")
            path = output / f"{stem}-{request_id}.{suffix}"
            write_atomically(path, content)
            written[name] = str(path)
    show_lines(*([path] for path in written.values()), data=written)
    if not found.json:
        say(REPORT_PRUNED)


def targets_of(clients: Sequence[str], samples: Path | None, class_label: int | None) -> list[Target]:
    """Return what the options name: clients, samples of one client, or a class.

    Raises:
        InvalidRequest: they name nothing, or do not go together.
    """
    if class_label is not None:
        if clients or samples is not None:
            raise InvalidRequest("--class concerns every client; leave --client and --samples out.")
        return [Target(Granularity.CLASS, class_label=class_label)]
    if not clients:
        raise InvalidRequest("Say what to forget: --client ID, --client ID --samples FILE, or --class LABEL.")
    if samples is None:
        return [Target(Granularity.CLIENT, client_id) for client_id in dict.fromkeys(clients)]
    if len(clients) > 1:
        raise InvalidRequest("--samples names the samples of one client; give one --client.")
    return [Target(Granularity.SAMPLE, clients[0], read_sample_ids(samples))]


def _waiting(service: DeletionClient) -> str:
    """Say whom the run waits for; a client that asks about its own request is not told of others."""
    with suppress(AccessDenied):
        return service.clients().waiting
    return ""


def _request_lines(request: DeletionRequest) -> Iterator[tuple[str, str]]:
    yield "request", request.id
    yield "forget", request.target.describe()
    yield "status", str(request.status)
    if request.reason:
        yield "reason", request.reason
    if request.outcome is not None:
        yield "outcome", f"{request.outcome}: {describe_request(request)}"
    if advice := advice_for(request):
        yield "advice", advice
    yield from deadline_lines(request)
    yield "method", request.method
    yield "parameters", ", ".join(f"{name}={value}" for name, value in request.parameters.items()) or "–"
    if request.attempts:
        yield "attempts", str(request.attempts)
    yield "filed by", request.submitted_by
    yield "filed at", f"{request.created_at:%Y-%m-%d %H:%M:%S} UTC"
    yield "changed at", f"{request.updated_at:%Y-%m-%d %H:%M:%S} UTC"
    yield "key", request.idempotency_key


def watch(ctx: typer.Context, request_id: RequestId) -> None:
    """Follow a request until it has ended; exit code 0 if it was completed."""
    with connection_of(ctx).client() as service:
        over = follow(service, request_id)
    if over.status is not Status.COMPLETED:
        raise typer.Exit(1)


def follow(service: DeletionClient, request_id: str, console: Console | None = None) -> DeletionRequest:
    """Print the states of a request until it has ended, and return it then; end where the output has no reader.

    With `--json` each state, event and round is an object on its line.
    """
    console = console or Console(highlight=False, markup=False, emoji=False, quiet=wants_json())
    narrator = Narrator(console)
    request: DeletionRequest | None = None
    status = Status.RECEIVED
    if waiting := _waiting(service):
        narrator.say(waiting)
    with narrator.show_progress():
        for item in service.watch(request_id):
            if wants_json():
                show_json({"type": type(item).__name__, **to_plain(item)}, indent=None)
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
    console.print(_outcome(request), soft_wrap=True)
    return request


def _outcome(request: DeletionRequest) -> str:
    head = f"{request.id} is {request.status}"
    if request.status is Status.COMPLETED:
        said = (
            f"{head}.",
            request.reason,
            describe_request(request),
            f"Its report: flower-unlearn report {request.id}",
        )
        return " ".join(filter(None, said))
    reason = (request.reason or request.refusal_reason).removesuffix(".")
    return f"{head}{f': {reason}' if reason else ''}. {advice_for(request)}".rstrip()
