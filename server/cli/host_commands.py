"""An operator's commands on the hosts themselves: start, supervise, check, back up, restore, renew, tokens."""

from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from server.cli.connection import LedgerUrl, federation_file_of, options_of
from server.ledger import Ledger
from server.operations.federation_toml import DEFAULT_PLACE
from server.operations.flower_control import FlowerControl
from server.operations.retention import Retention, prune
from server.operations.starting import Submission, app_directory
from server.operations.supervisor import DEFAULT_PAUSE, DEFAULT_POLL_S
from server.operations.supervisor import supervise as keep_alive
from server.service.calls import Role
from server.service.tokens import DEFAULT_DAYS, last_uses, make_token, read_tokens, remove_tokens
from server.state_directory.files import SUPERLINK_DATABASE, TOKEN_USES, UNDONE_FILE
from server.state_directory.ledger_address import asked_ledger, ledger_of_environment
from strategies.command_line import say, show_lines, show_table
from strategies.installation import CONFIG_DIR, STATE_ROOT
from unlearning.errors import DeploymentError
from unlearning.runtime.growing_pause import GrowingPause
from unlearning.runtime.json_codec import to_plain

StateDir = Annotated[Path, typer.Option(help="The server's state directory.")]
_RIGHTS = {"erases whole clients": "may_erase_clients", "sandbox": "is_sandbox"}


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
    lines = [
        (f"{head:7}", text)
        for finding in found
        for head, text in ((finding.level, finding.what), ("", finding.mend))
        if text
    ]
    show_lines(*lines, data=found)
    problems = sum(finding.level is Level.PROBLEM for finding in found)
    say(f"{len(found)} findings, {problems} of them problems.")
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

    opened = Ledger.open_existing(asked_ledger(ledger, state_dir))
    try:
        erase_after_deletions(superlink_database, state_dir, opened, always=True)
    finally:
        opened.close()
    sentence = f"Erased what {superlink_database} kept of messages that are over."
    show_lines((sentence,), data={"erased": str(superlink_database)})


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
    said = f"{directory}: {len(made.sha256)} files, ledger up to event {made.event_sequence}."
    show_lines((said,), data=made)
    say("It holds what is forgotten after this moment: erase it when a later deletion is completed.")


def restore(
    directory: Annotated[Path, typer.Argument(help="A directory that `backup` has written.")],
    state_dir: StateDir,
    ledger: LedgerUrl = "",
    force: Annotated[
        bool, typer.Option("--force", help="Restore although deletions made since will be undone.")
    ] = False,
    certificates: Annotated[
        Path | None,
        typer.Option(
            help="Certificates that were kept elsewhere, a file or a folder: the deletions that the backup does not "
            "know are filed again. Lists of sample ids (.txt) in the folder are recognised."
        ),
    ] = None,
    public_key: Annotated[
        Path | None, typer.Option(help="Of these certificates only those count that this key has signed.")
    ] = None,
) -> None:
    """Put a backup in the place of the federation's state; stop ServerApp, service and supervisor before."""
    from server.operations.restore import broken_off_restore
    from server.operations.restore import restore as put_back

    if broken_off_restore(state_dir) is not None:
        say(
            "An earlier restore was broken off; it is finished now. Give the command again for another backup."
        )
    done = put_back(
        directory,
        state_dir=state_dir,
        ledger_url=asked_ledger(ledger, state_dir),
        now=datetime.now(UTC),
        force=force,
        certificates=certificates,
        public_key=public_key,
    )
    show_lines((f"Restored the backup of {done.made_at}, event {done.event_sequence}.",), data=done)
    if (aside := state_dir.expanduser() / done.aside).is_dir():
        say(f"What was there before is in {aside}; erase it when all is well.")
    if not done.compared:
        given = (
            "beyond what the certificates show" if done.certified else "give certificates by --certificates"
        )
        say(
            f"There was no ledger here to compare with, so what was filed or carried out after {done.made_at} may be "
            f"lost ({given}): compare with your last export of the register and file what is missing again."
        )
    for line in done.undone:
        say(f"UNDONE: {line}")
    for line in done.by_hand:
        say(f"FILE BY HAND, for the ids of the samples are not known here: {line}")
    if done.undone:
        say(
            f"{len(done.filed_again)} of the requests are filed again and are carried out as soon as the federation "
            f"runs and, where people decide, they are accepted; until then the model may hold their data, and sites "
            f"train on none of it. {state_dir / UNDONE_FILE} has all of this."
        )


@options_of("retention", Retention, Retention)
def prune_command(
    state_dir: StateDir,
    ledger: LedgerUrl = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would go.")] = False,
    *,
    retention: Retention,
) -> None:
    """Erase reports and texts of requests that ended longer ago than they are kept; certificates and events stay."""
    with closing(Ledger.open_existing(asked_ledger(ledger, state_dir))) as opened:
        found = [*prune(opened, state_dir, retention, now=datetime.now(UTC), is_dry=dry_run)]
    show_table(
        ("request", "erased", "bytes"),
        [(one.request_id, one.what, str(one.num_bytes)) for one in found],
        data=found,
    )
    total = sum(one.num_bytes for one in found)
    say(f"{total:,} bytes of {len(found):,} reports and texts {'would go' if dry_run else 'are erased'}.")


def renew_command(
    certificate: Annotated[
        list[Path] | None, typer.Argument(help="The certificates, .pem; default: the server's.")
    ] = None,
    authority: Annotated[
        Path, typer.Option(help="The directory with the authority's ca.crt and ca.key.")
    ] = CONFIG_DIR / "certificates",
    address: Annotated[
        list[str] | None,
        typer.Option(
            help="A name or address under which clients reach the host, in place of those in the certificate; "
            "may be repeated."
        ),
    ] = None,
) -> None:
    """Make certificates again with the same names, roles and keys, valid from now on."""
    from server.operations.renewing import renew, uses

    for path in certificate or [authority / "server.pem"]:
        new = renew(path, authority, addresses=address or (), now=datetime.now(UTC))
        until = f"{new.not_valid_after_utc:%Y-%m-%d}"
        show_lines(
            (f"{path} is valid until {until}. {uses(new)}",), data={"path": str(path), "valid_until": until}
        )


def http_token(
    file: Annotated[Path, typer.Argument(help="The file of tokens, for `serve --http-tokens`.")],
    name: Annotated[
        str,
        typer.Argument(help="Who calls; with the role client, the client's id. Left out: list all tokens."),
    ] = "",
    role: Annotated[Role, typer.Option(help="What it may do, as a certificate's role.")] = Role.CLIENT,
    days: Annotated[int, typer.Option(min=1, max=3650, help="For how long it is valid.")] = DEFAULT_DAYS,
    erase_clients: Annotated[
        bool, typer.Option("--erase-clients", help="It may file the erasure of a whole client.")
    ] = False,
    sandbox: Annotated[
        bool, typer.Option("--sandbox", help="For trying a tool: its requests change nothing.")
    ] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Remove this caller's tokens instead.")] = False,
    remove_older: Annotated[
        bool, typer.Option("--remove-older", help="Remove this caller's tokens but the newest instead.")
    ] = False,
    state_dir: Annotated[
        Path, typer.Option(help="For the list: the service's state directory, which knows the last uses.")
    ] = STATE_ROOT / "state",
) -> None:
    """Make a token for a caller over HTTP and print it; the file keeps its hash. Without a name: list all tokens."""
    if not name:
        _show_tokens(file, state_dir)
        return
    if remove or remove_older:
        count = remove_tokens(file, name, role, keep=0 if remove else 1)
        said = f"{count} token(s) of {name} as {role} removed; a running service has noticed."
        show_lines((said,), data={"removed": count})
        return
    now = datetime.now(UTC)
    token = make_token(file, name, role, now, days=days, may_erase_clients=erase_clients, is_sandbox=sandbox)
    typer.echo(f"The token of {name} as {role}, valid for {days} days, shown this once:", err=True)
    show_lines((token,), data={"name": name, "role": role, "token": token})


def _show_tokens(file: Path, state_dir: Path) -> None:
    used = last_uses(state_dir / TOKEN_USES)
    found = [{**to_plain(item), "last_used": used.get(item.id, "")} for item in read_tokens(file)]
    rows = [
        (
            item["name"],
            item["role"],
            item["made_at"][:10],
            item["expires_at"][:10],
            item["last_used"] or "never",
            ", ".join(what for what, name in _RIGHTS.items() if item[name]),
        )
        for item in found
    ]
    show_table(("caller", "role", "made", "expires", "last used", "rights"), rows, data=found)


def start(
    ctx: typer.Context,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be submitted and what is missing for it.")
    ] = False,
) -> None:
    """Submit the run of federation.toml; where the supervisor runs, it does this by itself."""
    file = federation_file_of(ctx)
    submission = Submission(file, FlowerControl(app_directory(file), file.superlink))
    if dry_run:
        _show(submission)
        return
    run_id = submission.start()
    said = f"Run {run_id} is submitted. `flower-unlearn clients` shows who is here."
    show_lines((said,), data={"run_id": run_id})


def supervise(
    ctx: typer.Context,
    delay_s: Annotated[
        float, typer.Option(min=0, help="Wait after a first failure, seconds.")
    ] = DEFAULT_PAUSE.first_s,
    longest_delay_s: Annotated[
        float, typer.Option(min=0, help="The longest wait, seconds.")
    ] = DEFAULT_PAUSE.longest_s,
    poll_s: Annotated[float, typer.Option(min=0.1, help="Time between looks, seconds.")] = DEFAULT_POLL_S,
) -> None:
    """Submit the run of federation.toml, and again whenever it ends in failure; runs until SIGTERM or Ctrl-C."""
    path = ctx.obj.federation_file or DEFAULT_PLACE
    keep_alive(path, pause=GrowingPause(first_s=delay_s, longest_s=longest_delay_s), poll_s=poll_s)


def _show(submission: Submission) -> None:
    """Print what would be submitted, and what is missing; exit code 1 where something is."""
    try:
        registered = submission.control.count_registered()
    except DeploymentError:
        registered = 0
    settings = submission.settings(registered)
    missing = submission.missing()
    show_table(
        ("setting", "value"),
        [(name, str(value)) for name, value in settings.items()],
        data={"settings": settings, "missing": missing},
    )
    for sentence in missing:
        say(f"missing  {sentence}")
    if missing:
        raise typer.Exit(1)
    say("Nothing is missing.")
