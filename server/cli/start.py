"""`flower-unlearn start` and `supervise`: the run that federation.toml describes, submitted and kept alive."""

from typing import Annotated

import typer

from server.cli.federation_file import federation_file_of
from server.cli.tables import show_table
from server.operations.federation_toml import DEFAULT_PLACE
from server.operations.flower_control import FlowerControl
from server.operations.starting import Submission, app_directory
from server.operations.supervisor import DEFAULT_PAUSE, DEFAULT_POLL_S
from server.operations.supervisor import supervise as keep_alive
from unlearning.errors import DeploymentError
from unlearning.runtime.growing_pause import GrowingPause


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
    typer.echo(f"Run {submission.start()} is submitted. `flower-unlearn clients` shows who is here.")


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
    show_table(("setting", "value"), [(name, str(value)) for name, value in settings.items()])
    missing = submission.missing()
    for sentence in missing:
        typer.echo(f"missing  {sentence}")
    if missing:
        raise typer.Exit(1)
    typer.echo("Nothing is missing.")
