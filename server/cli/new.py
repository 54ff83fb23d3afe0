"""The command `flower-unlearn new`: writes a Flower app of your own that can forget."""

import re
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from flower_unlearning_names import PACKAGES
from unlearning.errors import ConfigurationError

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
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name) or package in (*PACKAGES, "tests"):
        raise ConfigurationError(
            [
                f"name: {name!r} cannot be an app's; take small letters, digits and single hyphens, such as "
                f"hospital-net, and none of {', '.join(PACKAGES)} and tests."
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
    typer.echo(
        f"{target}: {package}/task.py says what is learnt; README.md has the commands. It runs as it is."
    )


def _fill(text: str, **values: str) -> str:
    for key, value in values.items():
        text = text.replace("{{ " + key + " }}", value)
    return text
