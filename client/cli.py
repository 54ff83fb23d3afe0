"""`flower-unlearn-site`: what a data owner does on the client's own machine."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from client.commands import StateDir, noise_app
from client.memory import DirectoryMemory, newest_values
from strategies.command_line import Command, Printing, Program, run_program, say, show_lines
from strategies.installation import CONFIG_DIR, STATE_ROOT, UNITS_DIR, Host
from unlearning.errors import InvalidRequest
from unlearning.gdpr import Particulars
from unlearning.requests import Granularity, Target, read_sample_ids
from unlearning.runtime.durable_files import durable_file
from unlearning.runtime.json_codec import to_plain

OWNER, HOST = "Requests and data (data owner)", "This site's host (operator)"

app = typer.Typer(
    cls=Program,
    no_args_is_help=True,
    add_completion=False,
    help="File a deletion request at the client's own site.",
)


@app.command(cls=Printing, rich_help_panel=OWNER)
def request(
    state_dir: StateDir,
    method: Annotated[
        str, typer.Option(help="The unlearning method; left out, the one that the server recommends.")
    ] = "",
    samples: Annotated[
        Path | None, typer.Option(help="Only these samples: a file with one example id a line.")
    ] = None,
    client: Annotated[str, typer.Option(help="The client's id, for the record.")] = "self",
    received_on: Annotated[
        str,
        typer.Option(
            metavar="YYYY-MM-DD", help="When the person's request came in; else, when the server receives it."
        ),
    ] = "",
    due_on: Annotated[
        str,
        typer.Option(metavar="YYYY-MM-DD", help="An earlier deadline than one month after it came in."),
    ] = "",
    ground: Annotated[str, typer.Option(metavar="a-f", help="The ground: a letter of Art. 17(1) GDPR.")] = "",
    reference: Annotated[str, typer.Option(help="The number in your own system; the operator sees it.")] = "",
    note: Annotated[str, typer.Option(help="A note, which the operator sees.")] = "",
) -> None:
    """Ask the federation to forget this client, or some of its samples.

    The request is durable when this returns and travels to the server with the client's next answer.
    """
    particulars = Particulars.from_texts(
        received_on=received_on, due_on=due_on, ground=ground, reference=reference, note=note
    )
    particulars.dates(datetime.now(UTC))  # what cannot be is said here, not by the server days later
    if samples is None:
        target = Target(Granularity.CLIENT, client)
    else:
        ids = read_sample_ids(samples)
        _check_own(state_dir, ids)
        target = Target(Granularity.SAMPLE, client, ids)
    key = DirectoryMemory(state_dir).file_request(target, method, {}, particulars)
    how = method or "the method that the server recommends"
    said = f"Filed {key}: forget {target.describe()} by {how}. It travels with the next answer."
    show_lines((said,), data={"key": key, "target": target, "method": method})


def _check_own(state_dir: Path, ids: Iterable[str]) -> None:
    """Refuse ids that are none of this site's samples; where it has loaded none yet, say that this is not known.

    Raises:
        InvalidRequest: names the first few.
    """
    memory = DirectoryMemory(state_dir)
    own = memory.sample_ids()
    if own is None:
        say("Not checked whether these samples are this site's: it has not been asked by a server yet.")
        return
    wrong = sorted(set(ids).difference(own, memory.removed_samples()))
    if wrong:
        raise InvalidRequest(
            f"{len(wrong):,} of the ids are not among this site's {len(own):,} samples: {', '.join(wrong[:5])}"
            f"{', …' if len(wrong) > 5 else ''}. `flower-unlearn-site ids` lists them."
        )


@app.command(cls=Printing, rich_help_panel=OWNER)
def ids(
    state_dir: StateDir,
    removed: Annotated[
        bool, typer.Option("--removed", help="Those that it no longer has, and the model may know.")
    ] = False,
) -> None:
    """List the ids of the samples that this site may use, one a line, as they were last loaded."""
    memory = DirectoryMemory(state_dir)
    own = memory.sample_ids()
    if own is None:
        typer.echo("No server has asked this site for anything yet, so its data was not loaded.", err=True)
        raise typer.Exit(1)
    if removed:
        own = memory.removed_samples()
    show_lines(*([one] for one in own), data=own)


@app.command(cls=Printing, rich_help_panel=OWNER)
def layers(state_dir: StateDir, output: Annotated[Path, typer.Option(help="For torch.load.")]) -> None:
    """Write the layers that this site trains for itself; load_state_dict(…, strict=False) puts them into a model."""
    import torch

    values = newest_values(DirectoryMemory(state_dir))
    if not values:
        raise InvalidRequest(f"{state_dir} has no values: no local_layers, or no training since a deletion.")
    with durable_file(output) as file:
        torch.save({name: torch.tensor(one) for name, one in values.items()}, file)
    show_lines((f"{output}: {', '.join(values)}",), data={"path": str(output), "layers": sorted(values)})


@app.command(cls=Printing, rich_help_panel=OWNER)
def status(state_dir: StateDir) -> None:
    """Show what was filed here, the server's answers, and what this client may not train on."""
    memory = DirectoryMemory(state_dir)
    problem, tombstones = memory.problem(), to_plain(memory.tombstones())
    filed = {one["key"]: "waiting to travel" for one in memory.outbox()}
    filed |= {one["key"]: one["answer"] for one in memory.answered_requests()}
    removed = len(memory.removed_samples())
    lines = [("problem:", problem)] if problem else []
    if removed:
        said = f"{removed:,} sample(s) that this site no longer has, and the model may know; `ids --removed` lists them"
        lines.append(("removed:", said))
    show_lines(
        *lines,
        *filed.items(),
        ("tombstones:", json.dumps(tombstones)[:200]),
        data={"problem": problem, "requests": filed, "removed": removed, "tombstones": tombstones},
    )


@app.command(cls=Command, rich_help_panel=HOST)
def setup(
    name: Annotated[str, typer.Argument(help="This client's id, as the server's operator will register it.")],
    server: Annotated[str, typer.Argument(help="The server's name, as in its certificate.")],
    data_dir: Annotated[
        Path | None, typer.Option(help="This site's own data (docs/how-to-use-your-own-data.md).")
    ] = None,
    part_id: Annotated[int, typer.Option(help="Its part of a data set that is dealt out, from 0 on.")] = 0,
    num_parts: Annotated[int, typer.Option(help="How many parts there are; the same at all sites.")] = 0,
    answer: Annotated[Path | None, typer.Option(help="The folder that came back from the server.")] = None,
    config_dir: Annotated[Path, typer.Option(help="Where keys, certificates and settings go.")] = CONFIG_DIR,
    state_root: Annotated[Path, typer.Option(help="Where the programs keep their state.")] = STATE_ROOT,
    units_dir: Annotated[
        Path, typer.Option(help="Where systemd's units go; none are written if it is not there.")
    ] = UNITS_DIR,
    user: Annotated[str, typer.Option(help="Who owns the files; empty: the caller.")] = "flower",
) -> None:
    """Make keys, settings and unit of this site's host; doing it again changes nothing."""
    from client.site_setup import UNIT, Data, setup_site, take_answer

    host = Host(say=typer.echo, config_dir=config_dir, state_root=state_root, units_dir=units_dir, user=user)
    if answer is not None:
        take_answer(host, name, answer)
        typer.echo(
            f"Next: systemctl daemon-reload; systemctl enable --now {UNIT}\n"
            "`flower-unlearn check --client` says whether all is well."
        )
        return
    folder = setup_site(host, name, server, Data(directory=data_dir, part=part_id, parts=num_parts))
    typer.echo(
        f"Next: carry {folder} to the server, by a way that you trust, and there:\n"
        f"  flower-unlearn setup client {name} {folder.name}\n"
        f"A folder comes back: flower-unlearn-site setup {name} {server} --answer FOLDER"
    )


app.add_typer(noise_app, name="noise", rich_help_panel=OWNER)


@app.command(
    rich_help_panel=HOST, context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
)
def node(context: typer.Context) -> None:
    """Run `flower-supernode` with the arguments behind `--`, again until the server lets it in."""
    from client.supernode import run_node

    raise typer.Exit(run_node(context.args))


def main() -> None:
    """Run the command, as `run_program` does."""
    run_program(app)
