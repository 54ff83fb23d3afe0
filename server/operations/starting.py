"""Submitting the run that a federation's file describes: what is submitted, and what is missing for it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from server.certificate.keys import check_certificate_key
from server.operations.federation_toml import FederationFile
from server.operations.flower_control import ConfigValue, FlowerControl, Run, config_argument
from unlearning.errors import ConfigurationError, DeploymentError
from unlearning.runtime.durable_files import write_atomically

APP = "app"
_APP = """[project]
name = "flower-unlearning"
version = "0.1.0"
description = "A live federation that can forget."
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "flower-unlearning"
fab-include = ["README.md"]
[tool.flwr.app.components]
serverapp = "server.app:app"
clientapp = "client.app:app"
[tool.flwr.app.config]
"""
START_CLIENTS, NUM_CLIENTS = "start-clients", "num-clients"
NO_CLIENT = "No client is registered: `flower-unlearn setup client NAME FOLDER` lets one in."


def app_directory(file: FederationFile) -> Path:
    """Return the directory of the app that the file names; of the installed one, written beside the state directory."""
    return file.app if file.app is not None else write_app(file.state_dir.parent / APP)


def write_app(directory: Path) -> Path:
    """Write the app that `flwr run` submits into `directory`, and return it.

    It names the installed components and every setting, and carries no code: it exists without a checkout, and bundling
    a checkout walks through all of its files.
    """
    # Imported here because it needs PyTorch, which takes seconds; most commands do not.
    from strategies.settings.run_config import RunSettings

    about = b"The app of flower-unlearning; the code is installed on every machine.\n"
    write_atomically(directory / "README.md", about)
    lines = (config_argument({name: value}) for name, value in RunSettings().to_run_config().items())
    write_atomically(directory / "pyproject.toml", (_APP + "\n".join(lines) + "\n").encode())
    return directory


@dataclass(frozen=True, slots=True)
class Submission:
    """The run of a federation's file on its SuperLink.

    Raises:
        ConfigurationError: the file's settings hold a secret.
    """

    file: FederationFile
    control: FlowerControl

    def __post_init__(self) -> None:
        self.control.refuse_secrets(self.file.run_settings())

    def settings(self, registered: int) -> Mapping[str, ConfigValue]:
        """Return what is submitted; where it does not say how many clients to wait for, all `registered` are."""
        settings = self.file.run_settings()
        if registered and not {START_CLIENTS, NUM_CLIENTS} & settings.keys():
            settings[START_CLIENTS] = registered
        return settings

    def runs(self) -> list[Run]:
        """Return the app's runs, newest first; see `FlowerControl.runs`."""
        return self.control.runs()

    def submit(self) -> int:
        """Submit the run and return its id.

        Raises:
            DeploymentError: the SuperLink cannot be asked, or did not take it; or no client is registered, and the file
                does not say for how many clients to wait.
        """
        settings = self.settings(self.control.count_registered())
        if not {START_CLIENTS, NUM_CLIENTS} & settings.keys():
            raise DeploymentError(NO_CLIENT, code="no-client")
        return self.control.submit_run(settings)

    def start(self) -> int:
        """Submit the run, if there is none under way, and return its id.

        Raises:
            ConfigurationError: settings are wrong.
            DeploymentError: a run is under way, or the SuperLink did not take this one.
        """
        if wrong := self._wrong_settings():
            raise ConfigurationError(wrong)
        live = _live(self.runs())
        if live is not None:
            raise DeploymentError(
                f"Run {live.run_id} is {live.status}, and a federation has one at a time.",
                code="run-under-way",
                run_id=live.run_id,
            )
        return self.submit()

    def missing(self) -> list[str]:
        """Say in one sentence each what the run would fail or wait for."""
        wrong = self._wrong_settings()
        if self.file.certificate_key is None:
            wrong.append("certificate-key: there is none, so certificates of deletion would be unsigned.")
        else:
            try:
                check_certificate_key(str(self.file.certificate_key))
            except ConfigurationError as exc:
                wrong += exc.problems
        if not self.file.state_dir.is_dir():
            wrong.append(f"state-dir: there is no directory {self.file.state_dir}.")
        try:
            registered, live = self.control.count_registered(), _live(self.runs())
        except DeploymentError as exc:
            return [*wrong, f"The SuperLink {self.file.superlink} does not answer: {exc}"]
        if not registered:
            wrong.append(NO_CLIENT)
        if live is not None:
            wrong.append(f"Run {live.run_id} is {live.status}; `flwr stop {live.run_id}` ends it.")
        return wrong

    def _wrong_settings(self) -> list[str]:
        # Imported here because it needs PyTorch, which takes seconds.
        from strategies.settings.run_config import RunSettings

        if self.file.app is not None:  # its own settings are checked by its own code
            return []
        try:
            RunSettings.from_run_config(self.file.run_settings())
        except ConfigurationError as exc:
            return [*exc.problems]
        return []


def _live(runs: list[Run]) -> Run | None:
    return next((run for run in runs if not run.is_finished), None)
