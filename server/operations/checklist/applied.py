"""Whether the newest run was started with what federation.toml says now."""

from collections.abc import Iterator
from pathlib import Path

from server.operations.checklist.finding import Finding, ok, problem
from server.operations.federation_toml import FederationFile, flat, read_federation_file
from server.operations.flower_control import ConfigValue, app_settings
from server.operations.starting import NUM_CLIENTS, START_CLIENTS
from server.state_directory.files import read_settings
from unlearning.errors import ConfigurationError, DeploymentError

APPLY = (
    "flwr stop RUN_ID federation; systemctl restart flower-unlearning-supervisor; flower-unlearn start. The run goes "
    "on from its newest checkpoint."
)


def check_applied(path: Path) -> Iterator[Finding]:
    """Check that the newest run has the file's settings."""
    if not path.is_file():
        return  # all was said by options
    try:
        different = unapplied(read_federation_file(path))
    except ConfigurationError as exc:
        yield problem(str(exc), f"Mend {path}: nothing starts with it as it is.")
        return
    if different:
        yield problem(
            f"{path} is not what the newest run was started with: {'; '.join(different)}.",
            f"Where you have just started one, check again in a minute. Else: {APPLY}",
        )
    else:
        yield ok(f"{path} is what the newest run was started with, if there was one.")


def unapplied(file: FederationFile) -> list[str]:
    """Say in a few words each which settings differ between the file and the newest run; nothing if there was none.

    What the file leaves out is the app's, and else this version's default.

    Raises:
        ConfigurationError: the file's settings are none that a run accepts.
    """
    # Imported here because it needs PyTorch, which takes seconds.
    from strategies.settings.run_config import RunSettings

    try:
        kept = read_settings(file.state_dir)
    except (OSError, ConfigurationError):
        return []  # `check_state` and `model` say what is wrong with it
    given = {**_app_settings(file), **file.run_settings()}
    known = {name: value for name, value in given.items() if "." not in name}
    wanted = {**given, **RunSettings.from_run_config(known).to_run_config()}
    if not {START_CLIENTS, NUM_CLIENTS} & given.keys():
        wanted.pop(START_CLIENTS)  # it was the number of registered clients then
    return [
        f"{name} is {kept.get(name)!r} in the run and {value!r} in the file"
        for name, value in sorted(wanted.items())
        if (name in kept or name in given) and kept.get(name) != value
    ]


def _app_settings(file: FederationFile) -> dict[str, ConfigValue]:
    if file.app is None:
        return {}
    try:
        return flat(app_settings(file.app))
    except DeploymentError as exc:
        raise ConfigurationError([f"app: {exc}"]) from exc
