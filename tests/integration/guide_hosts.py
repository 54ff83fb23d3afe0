"""Hosts on which the guide's own paths, users and commands can be used as they stand: namespaces of one machine.

Each host of a `Network` gets mounts and processes of its own besides: its own /etc, /opt, /var/lib, /usr/local/bin
and /root. What a namespace cannot have has a stand-in in its /usr/local/bin: systemctl (the units' own lines are run,
see stand_in_systemctl.py), scp (the hosts' directories are all on this machine), and `python3 -m venv` with the
environment's pip (PyTorch is not installed again for each host: the environment of the tests is linked).
"""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from tests.integration.conftest import REPOSITORY
from tests.integration.namespaces import Network, NetworkUnavailable
from tests.waiting import WAIT_S

SERVER_NAME = "federation.example.org"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_OWN = {"etc": "/etc", "opt": "/opt", "var-lib": "/var/lib", "local-bin": "/usr/local/bin", "root": "/root"}
"""The directories that each host has for itself, and where it sees them."""

_BOOT = """
set -e
mount --make-rprivate /
mkdir -p $HERE/python && mount --bind {python} $HERE/python
cp -a /etc/. $HERE/etc/
echo "{server} {name}" >> $HERE/etc/hosts
{mounts}
mkdir -p /etc/systemd/system
[ -e {python}/bin ] || {{ mkdir -p {python} && mount --bind $HERE/python {python}; }}
touch $HERE/ready
exec sleep infinity
"""
# The Python of the tests may be in a home that the host's own hides, as /root is; one in /usr stays where it is.

_VENV = """#!/bin/sh
[ "$1 $2" = "-m venv" ] || exit 2
mkdir -p "$3/bin" && ln -s {environment}/bin/* "$3/bin/" && ln -s {environment}/lib {environment}/pyvenv.cfg "$3/"
rm -f "$3/bin/pip"
printf '#!/bin/sh\\n[ "$1" = install ] && [ -f "${{2%%%%[[]*}}/pyproject.toml" ]\\n' > "$3/bin/pip"
chmod 755 "$3/bin/pip"
"""
_SCP = """#!/bin/sh
# scp -r FROM TO, of which one begins with root@SERVER:
[ "$1" = -r ] || exit 2
there() {{ case $1 in root@{name}:/var/lib/*) echo "{var_lib}/${{1#root@{name}:/var/lib/}}" ;; *) echo "$1" ;; esac; }}
exec cp -r "$(there "$2")" "$(there "$3")"
"""
_SHELL = """
set -e
[ ! -e /root/.guide ] || . /root/.guide
cd {directory}
{commands}
export -p > /root/.guide
"""


class GuideHost:
    """One host; `run` gives commands to the one shell of its administrator, whose variables stay."""

    def __init__(self, name: str, network: Network, root: Path) -> None:
        self.name, self._here = name, root / name
        for directory in (*_OWN, "logs"):
            (self._here / directory).mkdir(parents=True)
        self._put_stand_ins(root)
        python, server = sys.base_prefix, network.address(network.hosts[0])
        mounts = "\n".join(f"mount --bind $HERE/{mine} {place}" for mine, place in _OWN.items())
        boot = _BOOT.format(python=python, server=server, name=SERVER_NAME, mounts=mounts)
        command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", boot]
        with (self._here / "boot.log").open("w") as log:
            self._process = subprocess.Popen(
                network.command_on(name, command),
                env={"PATH": _PATH, "HERE": str(self._here)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + WAIT_S
        while not (self._here / "ready").exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise NetworkUnavailable((self._here / "boot.log").read_text())
            time.sleep(0.05)

    def close(self) -> None:
        """End every process of the host; its mounts go with them."""
        self._process.kill()
        self._process.wait()

    def run(self, commands: str, timeout_s: float = 300.0) -> subprocess.CompletedProcess[str]:
        """Give commands as root, in the repository's directory; what they say on both ways is in `stdout`."""
        [first] = psutil.Process(self._process.pid).children()
        inside = ["nsenter", f"--target={first.pid}", "--mount", "--pid", "--net"]
        return subprocess.run(
            [*inside, "sh", "-c", _SHELL.format(directory=REPOSITORY, commands=commands)],
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def logs(self, most: int = 1500) -> str:
        """The end of what each service has written."""
        files = sorted((self._here / "logs").glob("*.log"))
        return "\n".join(f"== {self.name} {file.name}\n{file.read_text()[-most:]}" for file in files)

    @staticmethod
    def _environment() -> Mapping[str, str]:
        kept = {name: os.environ[name] for name in ("PYTHONPATH", "OMP_NUM_THREADS") if name in os.environ}
        return {"PATH": _PATH, "HOME": "/root", "LANG": "C.UTF-8", "COLUMNS": "200", **kept}

    def _put_stand_ins(self, root: Path) -> None:
        server = root / "server" / "var-lib"
        systemctl = f'exec {sys.executable} {Path(__file__).with_name("stand_in_systemctl.py")} {self._here}/logs "$@"'
        for name, text in {
            "python3": _VENV.format(environment=sys.prefix),
            "scp": _SCP.format(name=SERVER_NAME, var_lib=server),
            "systemctl": f"#!/bin/sh\n{systemctl}\n",
        }.items():
            path = self._here / "local-bin" / name
            path.write_text(text)
            path.chmod(0o755)
