"""`federation.toml`: all that the operator of a federation sets, in one file for every command on the server host.

    name = "hearts"
    state-dir = "/var/lib/flower-unlearning/state"
    certificate-key = "/etc/flower-unlearning/certificate-key/certificate-signing.key"

    [service]          # the options of `flower-unlearn serve`
    address = "0.0.0.0:9100"

    [run]              # the settings of docs/reference-settings.md
    rounds = 0

It holds no secret: keys and passwords are named by their files.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from server.certificate.keys import PUBLIC_KEY
from server.operations.flower_control import ConfigValue
from server.state_directory.files import SUPERLINK_DATABASE
from strategies.settings.groups import AbsolutePath
from unlearning.errors import ConfigurationError

DEFAULT_PLACE = Path("/etc/flower-unlearning/federation.toml")
_STANDS_ELSEWHERE = {"federation": "name", "state-dir": "state-dir", "certificate-key": "certificate-key"}
"""Settings of a run that are keys of the file itself, because more than the run reads them."""


@dataclass(
    frozen=True,
    kw_only=True,
    config=ConfigDict(
        extra="forbid", alias_generator=lambda name: name.replace("_", "-"), populate_by_name=True
    ),
)
class FederationFile:
    """What a federation's file says.

    name: the federation's name in reports. config_dir: certificates, keys, secrets.
    certificate_key: signs certificates of deletion; none: they are unsigned.
    superlink: the [superlink.NAME] table of $FLWR_HOME/config.toml. app: the directory of an app of one's own.
    service, retention, run: its tables, by the names that a person types.
    """

    name: str = "main"
    state_dir: AbsolutePath
    config_dir: AbsolutePath = DEFAULT_PLACE.parent
    certificate_key: AbsolutePath | None = None
    superlink: str = "federation"
    superlink_database: AbsolutePath = SUPERLINK_DATABASE
    app: AbsolutePath | None = None
    service: dict[str, Any] = field(default_factory=dict)
    retention: dict[str, Any] = field(default_factory=dict)
    run: dict[str, Any] = field(default_factory=dict)

    def run_settings(self) -> dict[str, ConfigValue]:
        """Return what is submitted with the run, one level deep: `[run.hospital] depth` is `hospital.depth`."""
        settings: dict[str, ConfigValue] = {"federation": self.name, "state-dir": str(self.state_dir)}
        if self.certificate_key is not None:
            settings["certificate-key"] = str(self.certificate_key)
        return {**settings, **flat(self.run)}

    def options(self) -> dict[str, dict[str, Any]]:
        """Return, by command, the options that the file gives in place of their defaults."""
        state_dir, database = str(self.state_dir), str(self.superlink_database)
        ledger = {"ledger": self.run["ledger"]} if "ledger" in self.run else {}
        of_state = {"state_dir": state_dir, **ledger}
        service, retention = (
            {name.replace("-", "_"): value for name, value in table.items()}
            for table in (self.service, self.retention)
        )
        public = self.certificate_key.parent / PUBLIC_KEY if self.certificate_key is not None else None
        return {
            "console": {"public_key": str(public)} if public is not None and public.is_file() else {},
            "serve": {**of_state, **service},
            "prune": {**of_state, **retention},
            "check": {**of_state, "config_dir": str(self.config_dir), "superlink_database": database},
            "renew": {"authority": str(self.config_dir / "certificates")},
            "backup": of_state,
            "restore": of_state,
            "erase-residue": {**of_state, "superlink_database": database},
        }


def read_federation_file(path: Path) -> FederationFile:
    """Read `path`; what the tables `service` and `run` hold is checked by those who use them.

    Raises:
        ConfigurationError: it cannot be read, or says in one sentence each what is wrong with it.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as exc:
        raise ConfigurationError(
            [f"{path} cannot be read: {exc}. `flower-unlearn setup server` makes one."]
        ) from exc
    try:
        read: FederationFile = _ADAPTER.validate_python(values)
    except ValidationError as exc:
        raise ConfigurationError([f"{path}: {_sentence(error)}" for error in exc.errors()]) from exc
    moved = [
        f"{path}: run.{name} belongs above the tables, as {key}, because other commands read it too."
        for name, key in _STANDS_ELSEWHERE.items()
        if name in read.run
    ]
    if moved:
        raise ConfigurationError(moved)
    return read


def unknown_key(name: str, known: Iterable[str]) -> str:
    """Say that there is no such key, and which one may be meant."""
    near = get_close_matches(name, [*known], n=1, cutoff=0.5)
    return f"{name}: there is no such key{f'; {near[0]} is one' if near else ''}."


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, ConfigValue]:
    """Return a table without tables in it.

    Raises:
        ConfigurationError: a value is none that a run can have.
    """
    found: dict[str, ConfigValue] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        elif isinstance(value, bool | int | float | str):
            found[f"{prefix}{name}"] = value
        else:
            raise ConfigurationError(
                [f"run.{prefix}{name}: give true or false, a number or a text, got {value!r}."]
            )
    return found


def _sentence(error: Any) -> str:
    name = ".".join(str(part) for part in error["loc"])
    if error["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return unknown_key(name, _KEYS)
    if error["type"] in ("missing", "missing_argument"):
        return f"{name} is missing."
    return f"{name}: {error['msg'].removeprefix('Value error, ')}, got {error['input']!r}."


_ADAPTER = TypeAdapter(FederationFile)
_KEYS = [name.replace("_", "-") for name in FederationFile.__dataclass_fields__]
