"""What `flower-unlearn setup` and `flower-unlearn-site setup` do to a host: files that are made once, and reported.

Here because server and clients share it, as they share where installed programs are. Keys and certificates come from
the scripts of deploy/, which an administrator can call by hand as well.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from grp import getgrnam
from pathlib import Path
from pwd import getpwnam

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from unlearning.errors import ConfigurationError, DeploymentError
from unlearning.runtime.durable_files import make_private, write_new

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"
"""Of a checkout, and of an installed package, which has it beside its modules."""
CONFIG_DIR, STATE_ROOT = Path("/etc/flower-unlearning"), Path("/var/lib/flower-unlearning")
PROGRAMS, UNITS_DIR = Path("/opt/flower-unlearning/bin"), Path("/etc/systemd/system")


_UNQUOTED = re.compile(r"[\w/.+@-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Where things go on a host, and whose they become.

    Units, environment and settings name the directories, so these are whole paths that need no quotes there.
    user: owns all but the units, where this process may give files away; "" leaves them this process's.
    say: receives a line for each thing that was made, or was there.

    Raises:
        ConfigurationError: a directory has a space, a quote or the like in its path.
    """

    say: Callable[[str], None]
    config_dir: Path = CONFIG_DIR
    state_root: Path = STATE_ROOT
    units_dir: Path = UNITS_DIR
    user: str = "flower"

    def __post_init__(self) -> None:
        paths = {name: getattr(self, name).absolute() for name in ("config_dir", "state_root", "units_dir")}
        wrong = [
            f"{name.replace('_', '-')}: {str(path)!r} would have to be quoted in units and settings. Take a path of "
            "letters, digits and . _ - + @."
            for name, path in paths.items()
            if not _UNQUOTED.fullmatch(str(path))
        ]
        if wrong:
            raise ConfigurationError(wrong)
        for name, path in paths.items():
            object.__setattr__(self, name, path)

    @property
    def state_dir(self) -> Path:
        """The programs' state directory."""
        return self.state_root / "state"

    def directory(self, path: Path) -> Path:
        """Make a directory of mode 700 that belongs to the user, as what is made in it then does.

        Raises:
            DeploymentError: there is no such user.
        """
        make_private(path)
        if self.user and os.geteuid() == 0:
            try:
                owner, group = getpwnam(self.user).pw_uid, getgrnam(self.user).gr_gid
            except KeyError:
                raise DeploymentError(
                    f"There is no user {self.user} on this host: useradd --system --home-dir {self.state_root} "
                    f"{self.user}, or give --user.",
                    code="no-user",
                ) from None
            os.chown(path, owner, group, follow_symlinks=False)
        return path

    def localised(self, text: str) -> str:
        """Return a file of deploy/ with this host's directories and this installation's programs."""
        for usual, here in (
            (CONFIG_DIR, self.config_dir),
            (STATE_ROOT, self.state_root),
            (PROGRAMS, Path(sys.executable).parent),
        ):
            text = text.replace(str(usual), str(here))
        return text

    def file(self, path: Path, content: str | bytes) -> None:
        """Write a file of mode 600 where there is none; of one that is kept say which lines of a text it lacks."""
        if path.exists():
            self.say(f"kept   {path}")
            there = path.read_bytes().splitlines()
            for line in content.splitlines() if isinstance(content, str) else ():
                if line and not line.startswith("#") and line.encode() not in there:
                    self.say(f"       which lacks {line}")
            return
        write_new(path, content.encode() if isinstance(content, str) else content)
        self.say(f"made   {path}")

    def script(self, name: str, *arguments: str, makes: Path) -> None:
        """Call a script of deploy/ that makes the file `makes`, where there is none.

        Raises:
            DeploymentError: it failed.
        """
        if makes.exists():
            self.say(f"kept   {makes}")
            return
        run_script(name, *arguments)
        self.say(f"made   {makes}")

    def unit(self, name: str) -> None:
        """Copy a systemd unit, with this host's directories, where there is systemd."""
        if not self.units_dir.is_dir():
            self.say(f"no {self.units_dir} here: start {name} by other means (deploy/README.md)")
            return
        text = self.unit_text(name)
        path = self.units_dir / f"{name}.service"
        if path.exists() and path.read_text() == text:
            self.say(f"kept   {path}")
            return
        path.write_text(text)
        self.say(f"made   {path}")

    def unit_text(self, name: str) -> str:
        """Return this version's unit, with this host's directories and user."""
        text = self.localised((DEPLOY / "systemd" / f"{name}.service").read_text())
        return text.replace("User=flower\n", f"User={self.user}\n" if self.user else "")


def program(name: str) -> str:
    """Find a program that is installed beside this Python, then on the PATH.

    Raises:
        DeploymentError: it is in neither place.
    """
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise DeploymentError(
            f"The program {name} is neither beside {sys.executable} nor on the PATH: "
            "install the package into the virtual environment that runs this.",
            code="no-program",
        )
    return found


def past_proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which no proxy is asked for this host's own addresses, which it could not reach.

    Flower's programs on one host call each other over HTTP.
    """
    direct = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    names = [direct] if direct.strip() == "*" else [direct, "localhost", "127.0.0.1", "::1"]
    return {**environment, "no_proxy": ",".join(filter(None, names))}


def is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Return whether the authority has signed the certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def run_script(name: str, *arguments: str) -> None:
    """Run a script of deploy/ to its end.

    Raises:
        DeploymentError: it is not installed, or it failed; with what it said.
    """
    command = ["sh", str(DEPLOY / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise DeploymentError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
