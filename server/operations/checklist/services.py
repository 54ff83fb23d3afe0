"""Whether the systemd units of a host are this version's, and whether their user can read and write what it needs.

Access is computed from owners and modes, not tried: so root and any other user who can look see the same, and nothing
is started as another user. Access lists beyond modes are not seen.
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from pwd import getpwnam, getpwuid

from server.operations.checklist.finding import Finding, Installation, ok, problem, warning
from server.operations.starting import APP
from server.state_directory.files import REPLACED
from strategies.installation import DEPLOY, Host
from unlearning.runtime.durable_files import sqlite_files

READ, WRITE, ENTER = 4, 2, 1
SITES = "flower-supernode"
USER = re.compile(r"^User=(\S+)$", re.MULTILINE)
_WRITE = (
    "Give the `setup` command of this host again: it writes units and keeps all else. Then systemctl daemon-reload, "
    "and enable --now or restart it."
)


def check_units(installation: Installation) -> Iterator[Finding]:
    """Check that each unit of this version is there as it is; nothing where there is none, as with containers."""
    names = {path.stem for path in (DEPLOY / "systemd").glob("*.service")}
    wanted = sorted(names - {SITES}) if installation.is_server else [SITES]
    there = {name: installation.unit(name) for name in wanted if installation.unit(name).is_file()}
    for name in wanted if there else ():
        if name not in there:
            yield problem(f"There is no unit {installation.unit(name)}, which this version has.", _WRITE)
            continue
        text = there[name].read_text(encoding="utf-8")
        user = USER.search(text)
        host = Host(
            say=lambda _: None,
            config_dir=installation.config_dir,
            state_root=installation.state_dir.parent,
            user=user[1] if user else "",
        )
        if text == host.unit_text(name):
            yield ok(f"{there[name]} is this version's.")
        else:
            yield warning(
                f"{there[name]} is not this version's: an earlier one's, or changed by hand.",
                f"{_WRITE} Changes of your own belong into a drop-in (systemctl edit {name}).",
            )


@dataclass(frozen=True, slots=True)
class User:
    """A user of this host, by name for messages, with all groups."""

    name: str
    uid: int
    groups: frozenset[int]

    def may(self, path: Path, wanted: int) -> bool:
        """Return whether the modes of `path` give this user the bits that are wanted."""
        found = path.stat()
        shift = 6 if found.st_uid == self.uid else 3 if found.st_gid in self.groups else 0
        return self.uid == 0 or (found.st_mode >> shift) & wanted == wanted


def service_user(installation: Installation) -> User:
    """Return the user of the systemd unit; where there is none, the owner of the state directory."""
    unit = installation.unit("flower-superlink" if installation.is_server else SITES)
    named = USER.search(unit.read_text(encoding="utf-8")) if unit.is_file() else None
    uid = installation.state_dir.stat().st_uid
    if named and named[1].isdigit():
        uid, named = int(named[1]), None
    try:
        entry = getpwnam(named[1]) if named else getpwuid(uid)
    except KeyError:
        # A number without a name, as in containers; or a name of no user, who may do nothing.
        return User(named[1] if named else str(uid), -1 if named else uid, frozenset())
    return User(entry.pw_name, entry.pw_uid, frozenset(os.getgrouplist(entry.pw_name, entry.pw_gid)))


def check_service_user(installation: Installation) -> Iterator[Finding]:
    """Check that the services can read their settings and keys, and read and write their state."""
    if not installation.state_dir.is_dir():
        return  # `check_state` says so
    user, home = service_user(installation), installation.state_dir.parent
    shut: dict[Path, str] = {}
    for paths, wanted in ((_read(installation), READ), (_written(installation), READ | WRITE)):
        for path, verb in _shut_to(user, paths, wanted):
            shut.setdefault(path, verb)
    for verb in sorted(set(shut.values())):
        first, *others = (path for path, one in shut.items() if one == verb)
        also = f" (and {len(others)} more)" if others else ""
        yield problem(
            f"{first} cannot be {verb} by the user {user.name}, whom the services run as{also}.",
            f"chown -R {user.name}: {installation.config_dir} {home}; chmod a+x on a directory above. "
            "Restart the services.",
        )
    if not shut:
        yield ok(f"The services' user {user.name} can read and write what it needs.")


def _shut_to(user: User, paths: Iterable[Path], wanted: int) -> Iterator[tuple[Path, str]]:
    """Yield what keeps the user out, and from what: of each path itself, or the first directory above that does."""
    for path in paths:
        with suppress(OSError):  # gone meanwhile, or not ours to look at
            above = [one for one in reversed(path.absolute().parents) if not user.may(one, ENTER)]
            if above:
                yield above[0], "entered"
            elif not user.may(path, wanted | (ENTER if path.is_dir() else 0)):
                yield path, "read and written" if wanted & WRITE else "read"


def _read(installation: Installation) -> Iterator[Path]:
    """Yield the files in the configuration that services read: not the authority's key, nor what is carried away."""
    for path in installation.config_dir.rglob("*"):
        is_callers = path.suffix in (".pem", ".key") and path.stem != "server"
        elsewhere = installation.is_server and is_callers and (path.parent / "ca.crt").is_file()
        is_carried = "to-server" in path.parts or path.suffix in (".csr", ".srl") or path.name == "ca.key"
        if path.is_file() and not elsewhere and not is_carried:
            yield path


def _written(installation: Installation) -> Iterator[Path]:
    """Yield the files and directories that services write: state, Flower's database and home and the app."""
    database, home = installation.superlink_database, installation.state_dir.parent
    if installation.is_server and database.is_file():
        yield database.parent
        yield from filter(Path.is_file, sqlite_files(database))
    for directory in (installation.state_dir, home / "flower", home / APP):
        if directory.is_dir():
            yield directory
            for path in directory.rglob("*"):
                if not path.relative_to(directory).parts[0].startswith(REPLACED):
                    yield path
