"""The thin app that `flwr run` submits: it names the installed components and every setting, and carries no code."""

from pathlib import Path

from server.processes.flower_control import config_argument
from unlearning.runtime.durable_files import write_atomically


def write_app(directory: Path) -> Path:
    """Write the app into `directory`, and give it back.

    It exists without a checkout; besides, bundling a checkout walks through all of its files.
    """
    # Imported here because it needs PyTorch, which takes seconds; most commands do not.
    from strategies.settings.run_config import RunSettings

    about = b"The app of flower-unlearning; the code is installed on every machine.\n"
    write_atomically(directory / "README.md", about)
    lines = [
        "[project]",
        'name = "flower-unlearning"',
        'version = "0.1.0"',
        'description = "A live federation that can forget."',
        'license = "Apache-2.0"',
        "dependencies = []",
        "[tool.flwr.app]",
        'publisher = "flower-unlearning"',
        'fab-include = ["README.md"]',
        "[tool.flwr.app.components]",
        'serverapp = "server.app:app"',
        'clientapp = "client.app:app"',
        "[tool.flwr.app.config]",
        *(config_argument({name: value}) for name, value in RunSettings().to_run_config().items()),
    ]
    write_atomically(directory / "pyproject.toml", ("\n".join(lines) + "\n").encode())
    return directory
