"""What a check looks at, and what it says."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from server.state_directory.files import SUPERLINK_DATABASE
from strategies.installation import UNITS_DIR


class Level(StrEnum):
    """The gravity of a finding: `problem` is to be mended, `warning` to be known."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `mend` says what to do; empty where nothing is to be done."""

    level: Level
    what: str
    mend: str = ""


def ok(what: str) -> Finding:
    """Return a finding of something that is as it should be."""
    return Finding(Level.OK, what)


def warning(what: str, mend: str) -> Finding:
    """Return a finding of something that works and that somebody should know of."""
    return Finding(Level.WARNING, what, mend)


def problem(what: str, mend: str) -> Finding:
    """Return a finding of something that is to be mended."""
    return Finding(Level.PROBLEM, what, mend)


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """The places where an installation keeps things on this host.

    config_dir: certificates, keys, secrets. ledger_url: empty for SQLite in the state directory; on a client
        host there is none. superlink_database: Flower's own, on a server host.
    server_address: on a client's host, where it finds the server; empty: not looked at.
    federation_file: on a server host; None: the one in config_dir. units_dir: of systemd.
    """

    config_dir: Path = Path("/etc/flower-unlearning")
    state_dir: Path = Path("/var/lib/flower-unlearning/state")
    ledger_url: str = ""
    superlink_database: Path = SUPERLINK_DATABASE
    is_server: bool = True
    server_address: str = ""
    federation_file: Path | None = None
    units_dir: Path = UNITS_DIR

    def unit(self, name: str) -> Path:
        """Return where a service's unit is, if there is one."""
        return self.units_dir / f"{name}.service"
