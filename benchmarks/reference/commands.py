"""The commands of the three programs, from Typer's own description of them."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from inspect import cleandoc

import click
import typer

from benchmarks.tables import table

PROGRAMS: Mapping[str, str] = {
    "flower-unlearn": "server.cli",
    "flower-unlearn-site": "client.cli",
    "flower-unlearn-peer": "client.peer.peer_cli",
}
"""Each program with the module whose `app` it is."""

_EVERYWHERE = {"--help", "--install-completion", "--show-completion"}


def lines(program: str) -> Iterator[str]:
    """Yield a section per command of a program: what it does, how it is called, its options."""
    group = typer.main.get_command(import_module(PROGRAMS[program]).app)
    yield from _described(group, click.Context(group, info_name=program), is_whole=True)
    yield from _below(group, click.Context(group, info_name=program))


def _below(group: click.Command, ctx: click.Context) -> Iterator[str]:
    assert isinstance(group, click.Group)
    for name in sorted(group.list_commands(ctx)):
        command = group.get_command(ctx, name)
        assert command is not None
        if command.hidden:
            continue
        inner = click.Context(command, info_name=name, parent=ctx)
        if isinstance(command, click.Group):
            yield from _below(command, inner)
        else:
            yield from _described(command, inner)


def _described(command: click.Command, ctx: click.Context, *, is_whole: bool = False) -> Iterator[str]:
    if not is_whole:
        yield from ("", f"## {ctx.command_path}", "")
        yield from cleandoc(command.help or "").replace("\b\n", "").splitlines()
        yield ""
    usage = " ".join(command.collect_usage_pieces(ctx))
    yield from ("```", f"{ctx.command_path} {usage}", "```")
    rows = [row for parameter in command.get_params(ctx) if (row := _row(parameter, ctx)) is not None]
    if rows:
        yield from ("", *table(["option", "meaning"], rows))


def _row(parameter: click.Parameter, ctx: click.Context) -> tuple[str, str] | None:
    """Return how an option or argument is written and what it means; None of those that every program has."""
    if getattr(parameter, "hidden", False) or _EVERYWHERE & {*parameter.opts}:
        return None
    if isinstance(parameter, click.Argument):
        text = getattr(parameter, "help", None) or ("" if parameter.required else "may be left out")
        return f"`{parameter.make_metavar(ctx)}`", _cell(text)
    record = parameter.get_help_record(ctx)
    if record is None:
        return None
    said = " ".join(record[1].split())
    return f"`{record[0]}`", _cell(said)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
