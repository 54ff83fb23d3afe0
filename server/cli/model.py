"""`flower-unlearn model`: the federation's model as a PyTorch state dictionary."""

import json
from pathlib import Path
from typing import Annotated

import typer

from unlearning.errors import ConfigurationError


def model_command(
    state_dir: Annotated[Path, typer.Option(help="The federation's state directory on the server.")],
    output: Annotated[Path, typer.Option(help="Where the state dictionary goes, such as model.pt.")],
) -> None:
    """Write the newest model that is committed: torch.load(...) gives what load_state_dict takes."""
    import torch

    from server.federation.checkpoints import CheckpointStore
    from server.state_directory.files import SETTINGS_FILE
    from strategies.run_config import RunSettings, secrets_in
    from unlearning.parameters import content_hash, load
    from unlearning.tasks import make_task
    from unlearning.training import build

    path = state_dir / SETTINGS_FILE
    state = CheckpointStore(state_dir / "checkpoints").newest() if path.exists() else None
    if state is None:
        raise ConfigurationError(
            [
                f"--state-dir: {state_dir} holds no federation. Name the directory that the run's state-dir names."
            ]
        )
    values = json.loads(path.read_text(encoding="utf-8"))
    known = RunSettings().to_run_config()
    # Earlier versions wrote a password down, and settings that are gone.
    values = {
        name: value for name, value in values.items() if name in known and not secrets_in({name: value})
    }
    settings = RunSettings.from_run_config(values)
    model = build(make_task(settings.task()), settings.seed)
    before = state.deletion.before if state.deletion is not None else None
    parameters = state.parameters if before is None else before.parameters
    load(model, parameters)
    torch.save(model.state_dict(), output)
    note = (
        "" if before is None else " (a deletion is recovering and not committed: this is the model before it)"
    )
    typer.echo(
        f"{output}: {settings.model} after round {state.round}, model hash {content_hash(parameters)}{note}"
    )
