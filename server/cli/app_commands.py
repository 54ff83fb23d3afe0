"""`flower-unlearn new` and `model`: an app of your own that can forget, and the model that comes out of it."""

import re
import sys
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flower_unlearning_names import PACKAGES
from strategies.command_line import show_lines
from unlearning.errors import ConfigurationError
from unlearning.runtime.durable_files import durable_file

if TYPE_CHECKING:
    from strategies.settings.task_source import TaskSource

_FILES = {
    "pyproject.toml": "pyproject.toml.txt",
    "README.md": "README.md.txt",
    "{package}/__init__.py": "__init__.py.txt",
    "{package}/task.py": "task.py.txt",
    "{package}/client_app.py": "client_app.py.txt",
    "{package}/server_app.py": "server_app.py.txt",
    "tests/test_app.py": "test_app.py.txt",
}
"""What is written, and from which template."""


def new_command(
    name: Annotated[
        str, typer.Argument(help="The app's name, such as hospital: letters, digits and hyphens.")
    ],
    directory: Annotated[Path, typer.Option(help="Where the app's directory is made.")] = Path(),
) -> None:
    """Write a Flower app with a task and data of its own, which runs as it is; then make it yours."""
    package = name.replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name) or iskeyword(package) or package == "tests":
        raise ConfigurationError(
            [
                f"name: {name!r} cannot be an app's; take small letters, digits and single hyphens, such as "
                "hospital-net, and no word of Python's."
            ]
        )
    if package in (*PACKAGES, *sys.stdlib_module_names) or find_spec(package) is not None:
        raise ConfigurationError(
            [
                f"name: there is a Python package {package} already, which the app would hide: Flower puts an app's "
                "directory before what is installed. Take another name, such as hospital-net."
            ]
        )
    target = directory / name
    if target.exists():
        raise ConfigurationError(
            [f"name: {target} is there already; nothing was written. Take another name."]
        )
    for path, template in _FILES.items():
        text = (files("server.cli") / "new_app" / template).read_text(encoding="utf-8")
        written = target / path.format(package=package)
        written.parent.mkdir(parents=True, exist_ok=True)
        written.write_text(_fill(text, name=name, package=package), encoding="utf-8")
    sentence = (
        f"{target}: {package}/task.py says what is learnt; README.md has the commands. It runs as it is."
    )
    show_lines((sentence,), data={"path": str(target), "package": package})


def _fill(text: str, **values: str) -> str:
    for key, value in values.items():
        text = text.replace("{{ " + key + " }}", value)
    return text


def model_command(
    state_dir: Annotated[Path, typer.Option(help="The federation's state directory on the server.")],
    output: Annotated[Path, typer.Option(help="Where the state dictionary goes, such as model.pt.")],
    app: Annotated[
        Path, typer.Option(help="The directory of your own app, where the model is of its making.")
    ] = Path(),
) -> None:
    """Write the newest model that is committed: torch.load(...) gives what load_state_dict takes."""
    import torch

    from server.federation.checkpoints import CheckpointStore
    from server.state_directory.files import SETTINGS_FILE, read_settings
    from strategies.settings.task_source import MADE_BY, TABLE
    from unlearning.parameters import content_hash, state_to_save
    from unlearning.training import model_with

    has_run = (state_dir / SETTINGS_FILE).exists()
    state = CheckpointStore(state_dir / "checkpoints").newest() if has_run else None
    if state is None:
        raise ConfigurationError(
            [
                f"--state-dir: {state_dir} holds no federation. Name the directory that the run's state-dir names."
            ]
        )
    values = read_settings(state_dir)
    made_by, table = str(values.pop(MADE_BY, "")), str(values.pop(TABLE, ""))
    task = _source_of(made_by, table, app).prepared(values)
    before = state.deletion.before if state.deletion is not None else None
    parameters = state.parameters if before is None else before.parameters
    model = model_with(task, parameters)
    with durable_file(output) as file:
        torch.save(state_to_save(model), file)
    note = (
        "" if before is None else " (a deletion is recovering and not committed: this is the model before it)"
    )
    model_hash = content_hash(parameters)
    show_lines(
        (f"{output}: {task.name} after round {state.round}, model hash {model_hash}{note}",),
        data={"path": str(output), "task": task.name, "round": state.round, "model_hash": model_hash},
    )


def _source_of(made_by: str, table: str, app: Path) -> "TaskSource":
    """Return what made the task of a federation: the function `made_by` of an app in `app`, or the built-in tasks.

    Raises:
        ConfigurationError: the app is not there, or its module does not run.
    """
    from strategies import built_in
    from strategies.settings.task_source import TaskSource

    if not made_by:
        return built_in.SOURCE
    module, _, name = made_by.partition(":")
    sys.path.insert(0, str(app.resolve()))
    try:
        function = getattr(import_module(module), name)
    except Exception as exc:
        raise ConfigurationError(
            [
                f"--app: the model is made by {made_by}, which cannot be imported from {app.resolve()} ({exc!r}). Name "
                "the directory of the app, which holds its pyproject.toml."
            ]
        ) from exc
    return TaskSource.of(function, table)
