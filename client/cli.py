"""`flower-unlearn-site`: what a data owner does on the client's own machine."""

import json
from pathlib import Path
from typing import Annotated

import typer

from client.commands import run_command
from client.memory import DirectoryMemory
from unlearning.requests import Granularity, Target, parse_sample_ids

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="File a deletion request at the client's own site."
)

StateDir = Annotated[
    Path, typer.Option(help="The client's state directory, as in the SuperNode's --node-config.")
]


@app.command()
def request(
    state_dir: StateDir,
    method: Annotated[str, typer.Option(help="The unlearning method.")] = "puf-special",
    samples: Annotated[
        Path | None, typer.Option(help="Only these samples: a file with one example id a line.")
    ] = None,
    client: Annotated[str, typer.Option(help="The client's id, for the record.")] = "self",
) -> None:
    """Ask the federation to forget this client, or some of its samples.

    The request is durable when this returns and travels to the server with the client's next answer.
    """
    if samples is None:
        target = Target(Granularity.CLIENT, client)
    else:
        ids = parse_sample_ids(samples.read_text(encoding="utf-8"))
        target = Target(Granularity.SAMPLE, client, ids)
    key = DirectoryMemory(state_dir).file_request(target, method, {})
    typer.echo(f"Filed {key}: forget {target.describe()} by {method}. It travels with the next answer.")


@app.command()
def status(state_dir: StateDir) -> None:
    """Show what was filed here, the server's answers, and what this client may not train on."""
    memory = DirectoryMemory(state_dir)
    for filed in memory.outbox():
        typer.echo(f"{filed['key']}  waiting to travel")
    for filed in memory.sent():
        typer.echo(f"{filed['key']}  {filed['answer']}")
    typer.echo(f"tombstones: {json.dumps(memory.tombstones().to_json())[:200]}")


def main() -> None:
    """Run the command, as `run_command` does."""
    run_command(app)
