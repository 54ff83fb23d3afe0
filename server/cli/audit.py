"""`flower-unlearn refusals` and `verify-ledger`: what an officer checks of the service itself."""

import json
import re
from pathlib import Path
from typing import Annotated

import typer

from server.cli.connection import AsJson, connection_of
from server.cli.tables import show_table
from unlearning.errors import InvalidRequest
from unlearning.runtime.json_codec import to_plain


def refusals(
    ctx: typer.Context,
    caller: Annotated[str, typer.Option(help="Only those of this caller, by its certificate.")] = "",
    last: Annotated[int, typer.Option(help="At most so many, the newest.", min=1, max=1000)] = 50,
    as_json: AsJson = False,
) -> None:
    """List the calls that the deletion service refused (for operators and officers)."""
    with connection_of(ctx).client() as service:
        found = service.refusals(limit=last, caller=caller)
    if as_json:
        plain = [{**to_plain(item), "at": item.at.isoformat()} for item in found]
        typer.echo(json.dumps(plain, indent=2))
        return
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
    show_table(("at (UTC)", "caller", "role", "call", "times", "reason"), rows, "No refusals.")


def verify_ledger(
    ctx: typer.Context,
    kept: Annotated[
        str, typer.Option(metavar="NUMBER:HASH", help="What this command printed earlier, to compare with.")
    ] = "",
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", help="Compare with the last line of this file, on another machine; then add today's."
        ),
    ] = None,
) -> None:
    """Check that nothing in the ledger was changed, removed or put in (for operators and officers)."""
    sequence, digest = _parse_kept(kept or _newest(file))
    with connection_of(ctx).client() as service:
        check = service.verify_ledger(sequence)
    if check.problem:
        typer.echo(
            f"BROKEN: {check.problem} Somebody changed the database past this program. Compare with a backup."
        )
        raise typer.Exit(1)
    if check.hash != digest:
        typer.echo(
            f"BROKEN: event {sequence} is {'another one than' if check.hash else 'gone, unlike'} when its hash "
            "was kept; somebody rewrote the database, or restored an older one. Compare with a backup."
        )
        raise typer.Exit(1)
    if not check.head_sequence:
        typer.echo("There are no events yet.")
        return
    typer.echo(f"All events hold, up to number {check.head_sequence}, and all rows that they commit to.")
    line = f"{check.head_sequence}:{check.head_hash}"
    if file is None:
        typer.echo("To notice later that events were cut off, keep this line outside the server:")
        typer.echo(f"--kept {line}")
    else:
        with file.open("a", encoding="ascii") as kept_heads:
            kept_heads.write(f"{line}\n")
        typer.echo(f"Added to {file}, for the next check: {line}")


def _newest(file: Path | None) -> str:
    if file is None or not file.exists():
        return ""
    try:
        lines = file.read_text(encoding="ascii").split()
    except (OSError, UnicodeError) as exc:
        raise InvalidRequest(f"--file {str(file)!r} cannot be read: {exc}") from exc
    return lines[-1] if lines else ""


def _parse_kept(text: str) -> tuple[int, str]:
    if not text:
        return 0, ""
    sequence, _, digest = text.partition(":")
    if not re.fullmatch("[0-9]{1,18}", sequence) or not re.fullmatch("[0-9a-f]{64}", digest):
        raise InvalidRequest(f"--kept takes NUMBER:HASH as this command prints it, got {text[:80]!r}.")
    return int(sequence), digest
