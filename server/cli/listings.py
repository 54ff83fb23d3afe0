"""`flower-unlearn clients` and `methods`: who is in the federation, and by what it can forget."""

import json
from datetime import UTC, datetime
from typing import Any

import typer

from server.api.convert import ClientStatus
from server.api.errors import ServiceUnavailable
from server.cli.connection import AsJson, connection_of
from server.cli.tables import measured_text, show_table
from server.federation.presence import presence


def clients(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the clients of the federation."""
    with connection_of(ctx).client() as service:
        found, waiting = service.clients_and_waiting()
    if as_json:
        typer.echo(json.dumps([_client_json(item) for item in found], indent=2))
        return
    show_table(
        ("client", "node", "online", "last seen (UTC)", "forgotten"),
        [_client_row(item, datetime.now(UTC)) for item in found],
        "No run has seen a client online yet. Those that are registered are listed from then on.",
    )
    if waiting:
        typer.echo(waiting)


def methods(ctx: typer.Context) -> None:
    """List the unlearning methods of the service, their parameters and what they took here.

    Where no service answers: those that are installed on this machine.
    """
    try:
        with connection_of(ctx).client() as service:
            found = service.methods()
    except ServiceUnavailable as exc:
        # Imported here because methods need PyTorch, which takes seconds.
        from server.api.method_descriptions import installed

        found = installed()
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
    show_table(("method", "what it is, needs and takes"), rows, has_long_cells=True)


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
