"""The federation's file as the source of the defaults of the commands on the server host."""

from pathlib import Path

import typer
from typer.core import TyperGroup

from server.operations.federation_toml import (
    DEFAULT_PLACE,
    FederationFile,
    read_federation_file,
    unknown_key,
)
from unlearning.errors import ConfigurationError

READ_THE_FILE = frozenset({"console", "serve", "check", "renew", "backup", "restore", "erase-residue"})
"""The commands whose options have defaults in the file; `start` and `supervise` are all about it."""


def use_federation_file(ctx: typer.Context, path: Path) -> None:
    """Make what the file says the defaults of the commands below `ctx`.

    Raises:
        ConfigurationError: it cannot be read, or its table `service` names what `serve` has no option for.
    """
    options = read_federation_file(path).options()
    group = ctx.command
    serve = group.get_command(ctx, "serve") if isinstance(group, TyperGroup) else None
    assert serve is not None, "the group of flower-unlearn has the command serve"
    known = {parameter.name for parameter in serve.params}
    wrong = [
        f"{path}: service.{unknown_key(name.replace('_', '-'), (str(one).replace('_', '-') for one in known))}"
        for name in sorted(options["serve"].keys() - known)
    ]
    if wrong:
        raise ConfigurationError(wrong)
    ctx.default_map = {**(ctx.default_map or {}), **options}


def federation_file_of(ctx: typer.Context) -> FederationFile:
    """Return the file that the command names, or the one at its usual place.

    Raises:
        ConfigurationError: it cannot be read.
    """
    return read_federation_file(ctx.obj.federation_file or DEFAULT_PLACE)
