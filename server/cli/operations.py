"""`flower-unlearn check`, `backup` and `restore`: an operator's commands on the hosts themselves."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from server.cli.connection import LedgerUrl
from server.state_directory.files import SUPERLINK_DATABASE
from server.state_directory.ledger_address import asked_ledger, ledger_of_environment
from strategies.installation import CONFIG_DIR, STATE_ROOT

StateDir = Annotated[Path, typer.Option(help="The server's state directory.")]


def check(
    ctx: typer.Context,
    config_dir: Annotated[Path, typer.Option(help="Where certificates, keys and secrets are.")] = CONFIG_DIR,
    state_dir: Annotated[Path, typer.Option(help="The host's state directory.")] = STATE_ROOT / "state",
    ledger: LedgerUrl = "",
    superlink_database: Annotated[
        Path, typer.Option(help="The SuperLink's database, on a server host.")
    ] = SUPERLINK_DATABASE,
    client: Annotated[bool, typer.Option("--client", help="This is a client's host.")] = False,
    server_address: Annotated[
        str,
        typer.Option(envvar="FEDERATION_SERVER", help="On a client's host: the server, which must answer."),
    ] = "",
    from_outside: Annotated[
        str, typer.Option(help="Check instead, from another host, what of this server host can be reached.")
    ] = "",
) -> None:
    """Inspect this host's installation: name what is wrong and how to mend it; exit code 1 for a problem."""
    from server.operations.checklist import Installation, Level, check_from_outside, inspect_installation

    installation = Installation(
        config_dir=config_dir,
        state_dir=state_dir,
        ledger_url=ledger or ledger_of_environment(),
        superlink_database=superlink_database,
        is_server=not client,
        server_address=server_address if client else "",
        federation_file=ctx.obj.federation_file,
    )
    found = list(
        check_from_outside(from_outside)
        if from_outside
        else inspect_installation(installation, now=datetime.now(UTC))
    )
    for finding in found:
        typer.echo(f"{finding.level:8} {finding.what}")
        if finding.mend:
            typer.echo(f"         {finding.mend}")
    problems = sum(finding.level is Level.PROBLEM for finding in found)
    typer.echo(f"{len(found)} findings, {problems} of them problems.")
    if problems:
        raise typer.Exit(1)


def erase_residue(
    state_dir: StateDir,
    superlink_database: Annotated[Path, typer.Option(help="The SuperLink's database.")] = SUPERLINK_DATABASE,
    ledger: LedgerUrl = "",
) -> None:
    """Erase what the SuperLink keeps of messages that are over; after a deletion the supervisor does it by itself."""
    from server.ledger import Ledger
    from server.operations.superlink_residue import erase_after_deletions

    opened = Ledger.open(asked_ledger(ledger, state_dir))
    try:
        erase_after_deletions(superlink_database, state_dir, opened, always=True)
    finally:
        opened.close()
    typer.echo(f"Erased what {superlink_database} kept of messages that are over.")


def backup(
    directory: Annotated[Path, typer.Argument(help="A new directory for this backup.")],
    state_dir: StateDir,
    ledger: LedgerUrl = "",
) -> None:
    """Back up ledger, newest checkpoint and reports, while everything runs."""
    # Imported here because checkpoints know the methods and so need PyTorch; other commands do not.
    from server.operations.backup import back_up

    made = back_up(
        directory, state_dir=state_dir, ledger_url=asked_ledger(ledger, state_dir), now=datetime.now(UTC)
    )
    typer.echo(f"{directory}: {len(made.sha256)} files, ledger up to event {made.event_sequence}.")
    typer.echo("It holds what is forgotten after this moment: erase it when a later deletion is completed.")


def restore(
    directory: Annotated[Path, typer.Argument(help="A directory that `backup` has written.")],
    state_dir: StateDir,
    ledger: LedgerUrl = "",
    force: Annotated[
        bool, typer.Option("--force", help="Restore although deletions made since will be undone.")
    ] = False,
) -> None:
    """Put a backup in the place of the federation's state; stop ServerApp, service and supervisor before."""
    from server.operations.restore import broken_off_restore
    from server.operations.restore import restore as put_back

    if broken_off_restore(state_dir) is not None:
        typer.echo(
            "An earlier restore was broken off; it is finished now. Give the command again for another backup."
        )
    done = put_back(
        directory,
        state_dir=state_dir,
        ledger_url=asked_ledger(ledger, state_dir),
        now=datetime.now(UTC),
        force=force,
    )
    typer.echo(f"Restored the backup of {done.made_at}, event {done.event_sequence}.")
    if (aside := state_dir.expanduser() / done.aside).is_dir():
        typer.echo(f"What was there before is in {aside}; erase it when all is well.")
    if not done.compared:
        typer.echo(
            "There was no ledger here to compare with: deletions that were carried out after the backup are not "
            "known and would have to be filed again."
        )
    for line in done.undone:
        typer.echo(f"UNDONE: {line}")
    if done.undone:
        typer.echo("The model may again hold this data. File these deletions again now.")
