"""Tables as the command line prints them: `flower-unlearn clients`, `methods` and `refusals`."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from server.cli.connection import connection_of
from server.federation.presence import presence
from server.service.calls import ClientStatus
from server.service.statuses import ServiceUnavailable
from strategies.command_line import say, show_table
from unlearning.runtime.json_codec import to_plain


def clients(ctx: typer.Context) -> None:
    """List the clients of the federation."""
    with connection_of(ctx).client() as service:
        answer = service.clients()
    show_table(
        ("client", "node", "online", "last seen (UTC)", "forgotten"),
        [_client_row(item, datetime.now(UTC)) for item in answer.clients],
        "No run has seen a client online yet. Those that are registered are listed from then on.",
        data=[_client_json(item) for item in answer.clients],
    )
    if answer.waiting:
        say(answer.waiting)


def methods(ctx: typer.Context) -> None:
    """List the unlearning methods of the service, their parameters and what they took here.

    Where no service answers: those that are installed on this machine.
    """
    try:
        with connection_of(ctx).client() as service:
            found = service.methods()
    except ServiceUnavailable as exc:
        # Imported here because methods need PyTorch, which takes seconds.
        from server.service.method_descriptions import describe_methods

        found = describe_methods(None)
        typer.echo(f"{exc} These are installed on this machine:", err=True)
    rows = []
    for item in found:
        levels = ", ".join(item.granularities) + ("" if item.several_at_once else " (one)")
        lines = [f"{item.title}: {item.source}"]
        if item.remark:
            lines.append(f"note: {item.remark}")
        lines.append(f"needs: {'; '.join(item.needs) or 'nothing'}")
        if item.keeps:
            lines.append(f'prepare: prepare = "{item.name}", which keeps {item.keeps}')
        lines += [
            f"  {name}={json.dumps(schema['default']) if 'default' in schema else '(required)'}"
            + (f"  {schema['description']}" if schema.get("description") else "")
            + (f"  (who is no operator: {schema['safe']})" if "safe" in schema else "")
            for name, schema in item.parameters.items()
        ]
        if item.measured:
            lines.append(f"here: {measured_text(item.measured)}")
        rows.append((f"{item.name}\n{levels}", "\n".join(lines)))
    show_table(("method", "what it is, needs and takes"), rows, data=found, has_long_cells=True)


def _client_json(status: ClientStatus) -> dict[str, Any]:
    client = status.client
    return {
        "client_id": client.client_id,
        "node_name": client.node_name,
        "public_key": client.public_key_hex,
        "online": client.online,
        "last_seen": client.last_seen.isoformat() if client.last_seen else None,
        "forgotten": status.forgotten,
        "num_forgotten_samples": status.num_forgotten_samples,
    }


def _client_row(status: ClientStatus, now: datetime) -> tuple[str, ...]:
    client, count = status.client, status.num_forgotten_samples
    return (
        client.client_id,
        client.node_name or "–",
        presence(client, now),
        f"{client.last_seen:%Y-%m-%d %H:%M:%S}" if client.last_seen else "–",
        "all" if status.forgotten else f"{count:,} sample(s)" if count else "–",
    )


def refusals(
    ctx: typer.Context,
    caller: Annotated[str, typer.Option(help="Only those of this caller, by its certificate.")] = "",
    last: Annotated[int, typer.Option(help="At most this many, the newest.", min=1, max=1000)] = 50,
) -> None:
    """List the calls that the deletion service refused (for operators and officers)."""
    with connection_of(ctx).client() as service:
        found = service.refusals(limit=last, caller=caller)
    plain = [{**to_plain(item), "at": item.at.isoformat()} for item in found]
    rows = [
        (
            f"{item.at:%Y-%m-%d %H:%M:%S}",
            item.caller or "–",
            item.role or "–",
            item.call,
            str(item.detail.get("times", 1)),
            item.reason,
        )
        for item in found
    ]
    show_table(("at (UTC)", "caller", "role", "call", "times", "reason"), rows, "No refusals.", data=plain)


def measured_text(measured: Mapping[str, Any]) -> str:
    """Return what past deletions by a method took; a dash before the first."""
    if not measured:
        return "–"
    return (
        f"{measured['seconds']:.3g} s, {size_text(measured['bytes'])} "
        f"({measured['deletions']} deletion(s), median; {measured['recovery_rounds']:g} recovery round(s))"
    )


def size_text(count: float) -> str:
    """Return a number of bytes with a unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
