"""The three programs and what they share."""

from collections.abc import Iterator

import click
import pytest
import typer
from typer.testing import CliRunner

from client.cli import app as site
from client.peer.peer_cli import app as peer
from server.cli import app as server
from server.ledger import LedgerUnavailable, LimitExceeded
from server.service.statuses import NotAuthenticated, ServiceUnavailable
from strategies.command_line import Command, Printing, Program, show_table
from unlearning.errors import (
    ConfigurationError,
    DataError,
    InvalidRequest,
    RequestNotFound,
    VersionMismatch,
)


@pytest.mark.parametrize("program", [server, site, peer])
def test_every_program_says_its_version(program: typer.Typer) -> None:
    """With the protocol that it speaks."""
    said = CliRunner().invoke(program, ["--version"])
    assert said.exit_code == 0
    assert said.stdout.startswith("flower-unlearning ")
    assert ", protocol 1, Flower " in said.stdout


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DataError("x"), 1),
        (OSError("x"), 1),
        (ConfigurationError(["x"]), 2),
        (InvalidRequest("x"), 2),
        (RequestNotFound("x"), 3),
        (NotAuthenticated("x"), 3),
        (LimitExceeded("x"), 3),
        (VersionMismatch("x"), 3),
        (ServiceUnavailable("x"), 4),
        (LedgerUnavailable("x"), 4),
    ],
)
def test_an_error_is_one_message_and_its_classs_exit_code(error: Exception, code: int) -> None:
    """2 wrong use, 3 refused, 4 not reachable, 1 anything else."""
    app = typer.Typer(cls=Program)

    @app.command()
    def fail() -> None:
        raise error

    @app.command()
    def other() -> None:
        """A second one, so that the first has a name."""

    done = CliRunner().invoke(app, ["fail"])
    assert (done.exit_code, done.stdout, "x\n" in done.stderr) == (code, "", True)


def test_each_command_has_a_panel() -> None:
    """So that every reader finds its own."""
    group = typer.main.get_group(server)
    commands = [
        group.get_command(click.Context(group), name) for name in group.list_commands(click.Context(group))
    ]
    assert [one.name for one in commands if not isinstance(one.rich_help_panel, str)] == []
    assert {one.name for one in commands if isinstance(one, Printing)} >= {"list", "plan", "check"}


def _commands(group: click.Group) -> Iterator[click.Command]:
    for name in group.list_commands(click.Context(group)):
        found = group.get_command(click.Context(group), name)
        assert found is not None
        yield from _commands(found) if isinstance(found, click.Group) else [found]


def test_only_commands_that_print_no_data_lack_json() -> None:
    """They run until they are stopped, or write files and say so in a sentence."""
    groups = [typer.main.get_group(program) for program in (server, site, peer)]
    without = [one.name for group in groups for one in _commands(group) if not isinstance(one, Printing)]
    assert set(without) == {"console", "serve", "supervise", "demo", "setup", "node", "plant"}


def test_an_option_that_is_given_and_empty_is_not_the_same_as_left_out() -> None:
    """Of every command: as `--hold "$REASON"` of a script in which the variable is not set."""
    groups = [typer.main.get_group(program) for program in (server, site, peer)]
    tried = []
    commands = [one for group in groups for one in _commands(group)]
    # What follows `node --` is flower-supernode's.
    assert [one.name for one in commands if not isinstance(one, Command)] == ["node"]
    for command in (one for one in commands if isinstance(one, Command)):
        options = [one for one in command.params if one.default == "" or one.type.name == "path"]
        for one in command.params:
            one.required = False
        for option in (one for one in options if isinstance(one, click.Option)):
            with pytest.raises(click.BadParameter, match="It is empty"):
                command.invoke(command.make_context("x", [option.opts[0], ""]))
            tried.append(option.opts[0])
    named = ("hold", "received-on", "key", "client", "kept", "from-outside", "ledger", "data-dir")
    assert {f"--{name}" for name in named} <= {*tried}


def test_names_in_a_table_are_shown_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are neither markup nor the names of pictures, in the title as little as in a cell."""
    monkeypatch.setattr("strategies.command_line._is_terminal", lambda: True)
    app = typer.Typer()
    title = "To forget [/red]ward[1]:bed:1"
    app.command()(lambda: show_table(["the client of a federation"], [["[/red]:key:7"]], title=title))
    said = CliRunner().invoke(app, []).stdout
    assert title in said
    assert "│ [/red]:key:7 " in said


@pytest.mark.parametrize("text", ["[/red]ward[1]", "icu:bed:1", "/data/[old]/:x:"])
def test_names_in_an_error_are_shown_as_they_are(text: str) -> None:
    """They are neither markup nor the names of pictures."""
    app = typer.Typer(cls=Program)

    @app.command()
    def one() -> None:
        raise InvalidRequest(text)

    app.command()(lambda: None)
    assert text in CliRunner().invoke(app, ["one"]).stderr
