"""`flower-unlearn peer`: the client package's command, under the name where people look for it.

A peer is a data owner's machine, so its code is in `client/`, which `server/` never imports. What connects them is
the entry point `peer` of the group `flower_unlearning.commands` (pyproject.toml).
"""

from importlib.metadata import entry_points

import typer

from unlearning.errors import ConfigurationError

GROUP = "flower_unlearning.commands"
PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""All arguments, `--help` too, go to the peer's own command."""


def peer(context: typer.Context) -> None:
    """Run one peer of a federation without a server, or ask it to forget: --config FILE."""
    found = entry_points(group=GROUP, name="peer")
    if not found:
        raise ConfigurationError(
            "The package is installed without its entry points; install it again: pip install ."
        )
    (entry,) = found
    entry.load()(context.args, name=context.command_path)
