"""What a SuperLink says of its runs and what it can be asked: the `flwr` commands, in and out of JSON.

The commands, not Flower's internal classes: they are what Flower keeps stable between versions.
"""

import json
import os
import subprocess
import sys
import tomllib
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import distribution
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

from packaging.version import Version

from server.state_directory.ledger_address import FILE_VARIABLE, VARIABLE, old_sqlite
from strategies.installation import past_proxies, program
from strategies.settings.groups import secrets_in
from unlearning.errors import ConfigurationError, DeploymentError
from unlearning.runtime.durable_files import give_all_to_owner
from unlearning.runtime.json_codec import from_plain

ConfigValue = bool | int | float | str
"""What a Flower run or node configuration can hold."""

CommandRunner = Callable[[Sequence[str]], subprocess.CompletedProcess[str]]
"""Runs a command to its end with its output captured as text."""

FLOWER_ENVIRONMENT: Mapping[str, str] = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    # Every machine has the package installed; the SuperLink must not fetch it again at each run.
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    # A federation on this machine lives for minutes and is waited for; those of deploy/ look less often.
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
}
"""What each Flower process that this project starts runs with."""

FEDERATION = "federation"
"""The name of the SuperLink in Flower's configuration file."""

FLEET_SPEAKS_HTTP = Version(installed_version("flwr")) >= Version("1.40.dev0")
"""Whether SuperNodes reach the SuperLink over HTTP at its one address; before, by gRPC at an address of the fleet's."""

_COMMAND_TIMEOUT_S = 90.0
# Flower hands Alembic the directories of its migrations as one text, unescaped.
_UNUSABLE = frozenset(" ,%")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run as the SuperLink tells of it.

    `status` is `pending`, `starting`, `running`, `finished:completed`, `finished:failed` or
    `finished:stopped`; `lived_s` is how long the ServerApp ran.
    """

    run_id: int
    app: str
    status: str
    details: str
    lived_s: float
    finished_at: datetime | None

    @property
    def is_finished(self) -> bool:
        """Whether the run has ended, in whatever way."""
        return self.status.startswith("finished")

    @property
    def has_failed(self) -> bool:
        """Whether the run ended and neither completed nor was stopped by an operator."""
        return self.is_finished and self.status not in ("finished:completed", "finished:stopped")


def config_argument(values: Mapping[str, ConfigValue]) -> str:
    """Write a configuration as `flwr run --run-config` and `--node-config` take it: `a=1 b="text"`.

    Raises:
        DeploymentError: a text holds a double quote, a backslash or a control character, for which
            Flower's format has no spelling.
    """
    words = []
    for key, value in values.items():
        if isinstance(value, bool):
            words.append(f"{key}={str(value).lower()}")
        elif isinstance(value, int | float):
            words.append(f"{key}={value!r}")
        elif (
            '"' in value
            or "\\" in value
            or any(unicodedata.category(one) == "Cc" and one != "\t" for one in value)
        ):
            raise DeploymentError(
                f"Flower cannot take {key}={value!r} on a command line: "
                "use a value without double quotes, backslashes and line breaks.",
                code="no-spelling",
            )
        else:
            words.append(f'{key}="{value}"')
    return " ".join(words)


def refuse_unusable_flower(package: Path | None = None) -> None:
    """Refuse an environment with which no SuperLink works, whether it ends or answers with internal errors.

    Args:
        package: Flower's package; None for the installed one.

    Raises:
        DeploymentError: its path has a character with which the SuperLink makes no tables, or SQLite is too old for it.
    """
    if too_old := old_sqlite():
        raise DeploymentError(too_old, code="old-sqlite")
    package = package or Path(str(distribution("flwr").locate_file("flwr"))).resolve()
    if not _UNUSABLE.isdisjoint(str(package)):
        raise DeploymentError(
            f"Flower is installed in {str(package)!r}, and a SuperLink makes no tables where that path has a space, a "
            "comma or a percent sign. Make the virtual environment in another directory.",
            code="place-of-flower",
        )


def flower_config(address: str, authority: Path | None) -> str:
    """Return Flower's config.toml, by which commands find the SuperLink; without an authority it has no TLS."""
    trust = "insecure = true" if authority is None else f'root-certificates = "{authority}"'
    return (
        f'[superlink]\ndefault = "{FEDERATION}"\n\n[superlink.{FEDERATION}]\naddress = "{address}"\n{trust}\n'
    )


def flower_environment(home: Path | None = None) -> dict[str, str]:
    """Return this process's environment with Flower's settings; `home` becomes Flower's own directory.

    The ledger's address is not in it. Flower starts its helpers (`flower-superexec`, `flwr-serverapp`) by name, so the
    directory of this Python's programs leads the PATH.
    """
    environment = {**past_proxies(os.environ), **FLOWER_ENVIRONMENT}
    for secret in (VARIABLE, FILE_VARIABLE):  # for the programs that open the ledger, not for all
        environment.pop(secret, None)
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', os.defpath)}"
    if home is not None:
        environment["FLWR_HOME"] = str(home)
    return environment


class FlowerControl:
    """The runs of one app on one SuperLink.

    `federation` is a `[superlink.NAME]` table of `$FLWR_HOME/config.toml`; `app_dir` holds the app's
    pyproject.toml. Every call starts a `flwr` command, about a second of processor time.
    """

    def __init__(
        self,
        app_dir: Path,
        federation: str,
        *,
        environment: Mapping[str, str] | None = None,
        run_command: CommandRunner | None = None,
    ) -> None:
        self.app_dir = app_dir.resolve()
        self.federation = federation
        self._environment = dict(environment) if environment is not None else flower_environment()
        self.run_command = run_command if run_command is not None else self._run_in_a_process
        self.app = _app_name(self.app_dir)

    def submit_run(self, run_config: Mapping[str, ConfigValue]) -> int:
        """Submit the app with these overrides of its configuration; return the new run's id.

        Raises:
            ConfigurationError: they hold a secret, which the SuperLink would store and send to every client.
            DeploymentError: the SuperLink did not take it. It may have, if it was lost while
                answering: look at `runs()` before submitting again.
        """
        self.refuse_secrets(run_config)
        options = ["--run-config", config_argument(run_config)] if run_config else []
        answer = self.ask(["run", str(self.app_dir), self.federation, *options])
        return int(answer["run-id"])

    def refuse_secrets(self, run_config: Mapping[str, ConfigValue]) -> None:
        """Refuse settings, the app's own among them, that only the server may know.

        Raises:
            ConfigurationError: names each setting and the place for it.
        """
        wrong = secrets_in({**app_settings(self.app_dir), **run_config})
        if wrong:
            raise ConfigurationError(wrong)

    def runs(self) -> list[Run]:
        """List this app's runs among the SuperLink's newest 50, newest first.

        Raises:
            DeploymentError: the SuperLink cannot be reached.
        """
        answer = self.ask(["list", self.federation, "--limit", "50"])
        return [run for run in map(run_from_json, answer["runs"]) if run.app == self.app]

    def register_supernode(self, public_key: Path, name: str) -> int:
        """Admit the SuperNode that holds this key, under this name; return its node id.

        Raises:
            DeploymentError: the SuperLink cannot be reached or refuses the key.
        """
        answer = self.ask(["supernode", "register", str(public_key), self.federation, "--name", name])
        return int(answer["node-id"])

    def count_registered(self) -> int:
        """Return how many SuperNodes may take part: those registered with a key, or online without one.

        Raises:
            DeploymentError: the SuperLink cannot be reached.
        """
        nodes = self.ask(["supernode", "list", self.federation])["nodes"]
        return sum(1 for node in nodes if node["status"] in ("registered", "online", "offline"))

    def ask(self, arguments: Sequence[str]) -> dict[str, Any]:
        """Return what one `flwr` command answers.

        Raises:
            DeploymentError: it failed, or did not answer in JSON.
        """
        shown = "flwr " + " ".join(arguments)
        try:
            done = self.run_command([program("flwr"), *arguments, "--format", "json"])
        except (OSError, subprocess.SubprocessError) as exc:
            raise DeploymentError(f"`{shown}` did not end well: {exc}", code="broken-off") from exc
        answer = _first_json_object(done.stdout)
        # The exit status is 0 even when the command failed; only the JSON tells.
        if answer is None:
            raise DeploymentError(
                f"`{shown}` ended with status {done.returncode} and gave no JSON: "
                f"{(done.stderr or done.stdout).strip()[-2000:]}",
                code="no-answer",
            )
        if not answer.get("success"):
            reason = str(answer.get("error-message", answer)).strip()
            raise DeploymentError(f"`{shown}` failed: {reason}", code="refused", reason=reason)
        return answer

    def _run_in_a_process(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                list(command),
                env=self._environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_COMMAND_TIMEOUT_S,
                check=False,
            )
        finally:
            if home := self._environment.get("FLWR_HOME"):
                give_all_to_owner(Path(home))


def _app_name(app_dir: Path) -> str:
    with _project(app_dir) as project:
        return f"{project['tool']['flwr']['app']['publisher']}/{project['project']['name']}"


def app_settings(app_dir: Path) -> dict[str, Any]:
    """Return the table of settings in an app's pyproject.toml.

    Raises:
        DeploymentError: it is no app's.
    """
    with _project(app_dir) as project:
        return from_plain(dict[str, Any], project["tool"]["flwr"]["app"].get("config", {}))


@contextmanager
def _project(app_dir: Path) -> Iterator[dict[str, Any]]:
    """Give an app's pyproject.toml to read from.

    Raises:
        DeploymentError: it cannot be read, or what is looked for is not there.
    """
    path = app_dir / "pyproject.toml"
    try:
        yield tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as exc:
        raise DeploymentError(
            f"{path} is not a Flower app's: it must give [project] name and [tool.flwr.app] publisher "
            f"({exc!r}).",
            code="no-app",
        ) from exc


def _first_json_object(text: str) -> dict[str, Any] | None:
    """Find the JSON object in a command's output, which warnings may precede."""
    decoder = json.JSONDecoder()
    start = text.find("{")
    while start >= 0:
        try:
            value, _ = decoder.raw_decode(text, start)
        except json.JSONDecodeError:
            start = text.find("{", start + 1)
            continue
        return value if isinstance(value, dict) else None
    return None


def run_from_json(row: Mapping[str, Any]) -> Run:
    """Read what the SuperLink says of a run."""
    finished = str(row["finished-at"])
    return Run(
        run_id=int(row["run-id"]),
        app=str(row["fab-id"]),
        status=str(row["status"]),
        details=str(row["status-details"]),
        lived_s=float(row["elapsed"]),
        finished_at=None if finished == "N/A" else datetime.fromisoformat(finished),
    )
