"""`flower-unlearn-peer`: run one peer of a federation without a server, and ask it to forget."""

import logging
import signal
import threading
from pathlib import Path
from typing import Annotated, Any

import typer

from client.memory import DirectoryMemory
from client.peer.config import PeerConfig, read_config
from client.peer.gossip import RELEASE, Kind
from client.peer.journal import Journal, read_refusals
from client.peer.record import PeerRules, Record
from strategies.command_line import Printing, Program, run_program, show_json, show_lines
from unlearning.errors import InvalidRequest
from unlearning.requests import Granularity, Target, read_sample_ids

app = typer.Typer(cls=Program, add_completion=False, help="One peer of a federation without a server.")

ConfigFile = Annotated[Path, typer.Option("--config", help="The peer's configuration, YAML or TOML.")]


@app.callback(invoke_without_command=True)
def run(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option(help="The peer's configuration, YAML or TOML: runs the peer.")
    ] = None,
) -> None:
    """Run the peer until it is stopped (Ctrl-C, SIGTERM), or has left the federation."""
    if context.invoked_subcommand is not None:
        return
    if config is None:
        raise typer.BadParameter("name the peer's configuration file", param_hint="--config")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    settings = read_config(config)
    from client.peer.process import run_peer  # torch takes seconds to import

    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    run_peer(settings, ended)


@app.command(cls=Printing)
def request(
    config: ConfigFile,
    samples: Annotated[
        Path | None, typer.Option(help="These samples of the peer: a file with one example id a line.")
    ] = None,
    class_label: Annotated[int | None, typer.Option("--class", help="This class, at every peer.")] = None,
    client: Annotated[bool, typer.Option("--client", help="The whole peer, which then leaves.")] = False,
) -> None:
    """Ask the federation to forget, at this peer. Durable when it returns, also while the peer is down."""
    settings = read_config(config)
    if (samples is not None) + (class_label is not None) + client != 1:
        raise InvalidRequest("Name exactly one of --samples FILE, --class LABEL and --client.")
    if samples is not None:
        ids = read_sample_ids(samples)
        target = Target(Granularity.SAMPLE, settings.peer, ids)
    elif class_label is not None:
        target = Target(Granularity.CLASS, class_label=class_label)
    else:
        target = Target(Granularity.CLIENT, settings.peer)
    memory = DirectoryMemory(settings.state_dir)
    memory.claim(settings.peer)
    key = memory.file_request(target, "decentralised-newton", {})
    name = f"{settings.peer}-{key}"
    show_lines((f"Filed {name}: forget {target.describe()}.",), data={"key": name, "target": target})


@app.command(cls=Printing)
def status(config: ConfigFile) -> None:
    """Show what this peer knows, as JSON: rounds, members, requests and their corrections."""
    show_json(read_status(read_config(config)))


def read_status(config: PeerConfig) -> dict[str, Any]:
    """Return what the state directory says, as plain values.

    Raises:
        CheckpointError: a file is damaged.
    """
    journal, memory = Journal(config.state_dir), DirectoryMemory(config.state_dir)
    items = {item.id: item for item in journal.items()}
    record = Record(config.make_graph(), items, PeerRules(count_factor=config.limits.count_factor))
    model = journal.model
    requests = [
        {
            "id": item.subject,
            "issued_at": item.origin,
            "granularity": item.values["granularity"],
            "class": item.values["class_label"],
            "corrections": {
                correction.origin: {
                    "deleted": correction.values["deleted"],
                    "in_model": model is not None and correction.id in model.applied,
                    "moves_model_by": correction.norm,
                    "reason": correction.values.get("reason"),
                    **{
                        name: value
                        for name, value in correction.values.get("account", {}).items()
                        if name != RELEASE
                    },
                }
                for correction in record.of(Kind.CORRECTION, item.subject)
            },
        }
        for item in record.of(Kind.REQUEST)
    ]
    return {
        "peer": config.peer,
        "round": 0 if model is None else model.round,
        "members": list(record.graph().nodes),
        "examples": record.counts(),
        "requests": requests,
        "privacy": record.spent_budget(delta=config.deletion.delta, epsilon=config.deletion.epsilon),
        "answers": {filed["key"]: filed["answer"] for filed in memory.answered_requests()},
        "refused": read_refusals(config.state_dir),
        "waiting": [filed["key"] for filed in memory.outbox()],
    }


def main() -> None:
    """Run the command, as `run_program` does."""
    run_program(app)
