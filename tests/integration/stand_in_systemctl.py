"""Stands in for systemctl on a host without systemd: `systemctl enable --now UNIT ...` runs the units' own lines.

User, EnvironmentFile, Environment, WorkingDirectory, ExecStart and RestartSec are read from the unit in
/etc/systemd/system, as `setup` or the guide put it there; what a unit locks down is not.
The first argument is the directory of the services' logs.
"""

import os
import pwd
import shlex
import subprocess
import sys
import time
from pathlib import Path

UNITS = Path("/etc/systemd/system")


def main(logs: Path, *words: str) -> int:
    """Do what systemctl would; returns its exit status."""
    if words == ("daemon-reload",):
        return 0
    if words[:2] != ("enable", "--now"):
        print(f"systemctl {words} is not stood in for", file=sys.stderr)
        return 2
    for name in words[2:]:
        unit = Unit(name)
        if os.fork() == 0:
            os.setsid()
            unit.keep_running(logs / f"{name}.log")
    return 0


class Unit:
    """One service. Its lines are read before anything is started, so that a unit that is wrong fails here."""

    def __init__(self, name: str) -> None:
        text = (UNITS / f"{name}.service").read_text().replace("\\\n", " ")
        lines = [line.partition("=") for line in text.splitlines() if "=" in line and line[0] != "#"]
        self._values = {key: value for key, _, value in lines}
        self._user = pwd.getpwnam(self._values["User"])
        self._environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": self._user.pw_dir}
        for name in (
            "PYTHONPATH",
            "OMP_NUM_THREADS",
        ):  # the code under test, and how it shares the processors
            if name in os.environ:
                self._environment[name] = os.environ[name]
        for line in Path(self._values["EnvironmentFile"]).read_text().splitlines():
            for word in shlex.split(line, comments=True):
                name, _, value = word.partition("=")
                self._environment[name] = value
        for key, _, value in lines:
            if key == "Environment":
                name, _, value = value.partition("=")
                self._environment[name] = value
        self._command = shlex.split(self._values["ExecStart"])
        for name, value in self._environment.items():
            self._command = [word.replace(f"${{{name}}}", value) for word in self._command]

    def keep_running(self, log: Path) -> None:
        """Start it, and again whenever it has ended."""
        with log.open("a") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        while True:
            subprocess.run(
                self._command,
                env=self._environment,
                cwd=self._values["WorkingDirectory"],
                user=self._user.pw_uid,
                group=self._user.pw_gid,
                extra_groups=[],
                umask=int(self._values["UMask"], 8),
                check=False,
            )
            time.sleep(float(self._values["RestartSec"]))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
