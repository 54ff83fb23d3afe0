"""A server and three sites are set up by the commands alone, each on a host of its own, and delete something."""

import json
import os
import shlex
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks.process_group import ProcessGroup
from server.ledger import Ledger
from server.ledger.database import Database
from server.state_directory.ledger_address import ledger_url
from strategies.installation import program
from tests.integration.namespaces import Network, network_or_skip
from tests.programs import run_program
from tests.waiting import HANGS_S

SERVER = "server"
SITES = ("hospital-0", "hospital-1", "hospital-2")


class Places:
    """The directories of one host, which stand for those of /etc and /var/lib."""

    def __init__(self, root: Path) -> None:
        self.config, self.state, self.units = root / "etc", root / "var", root / "units"
        self.units.mkdir(parents=True)

    def options(self, *, all_of_them: bool = True) -> list[str]:
        options = ["--config-dir", str(self.config), "--user", ""]
        return options + (
            ["--state-root", str(self.state), "--units-dir", str(self.units)] if all_of_them else []
        )

    def environment(self, file: str = "environment") -> dict[str, str]:
        """What the file sets, read as systemd and a shell read it."""
        lines = (self.config / file).read_text().splitlines()
        words = [shlex.split(line, comments=True) for line in lines]
        return dict(word.split("=", 1) for found in words for word in found if "=" in word)

    def command(self, unit: str) -> list[str]:
        """The command of a unit, its variables filled in."""
        text = (self.units / f"{unit}.service").read_text().replace("\\\n", " ")
        [line] = [line for line in text.splitlines() if line.startswith("ExecStart=")]
        words = shlex.split(line.removeprefix("ExecStart="))
        for name, value in self.environment().items():
            words = [word.replace(f"${{{name}}}", value) for word in words]
        return words


def setup(*arguments: str) -> str:
    program_name = "flower-unlearn-site" if arguments[0] == "site" else "flower-unlearn"
    words = arguments[1:] if arguments[0] == "site" else arguments
    status, said = run_program(program_name, *words)
    assert status == 0, said
    return said


def test_doing_it_again_changes_nothing(tmp_path):
    """Neither keys nor settings that were edited; each is named as kept."""
    server, site = Places(tmp_path / "server"), Places(tmp_path / "site")
    calls = [
        ("setup", "server", "hearts", "fed.example.org", *server.options()),
        ("site", "setup", "hospital-0", "fed.example.org", "--data-dir", "/data", *site.options()),
    ]
    for call in calls:
        setup(*call)
    with (server.config / "federation.toml").open("a") as file:
        file.write("# mine\n")
    files = {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()}
    for call in calls:
        assert "made " not in setup(*call)
    assert {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()} == files


def test_what_setup_makes_is_private_and_passes_the_check(tmp_path):
    """No key is open to others, and `check` finds no problem in the files."""
    server = Places(tmp_path)
    said = setup("setup", "server", "hearts", "fed.example.org", "192.0.2.1", *server.options())
    assert "problem" not in said
    assert [path for path in server.config.rglob("*.key") if path.stat().st_mode & 0o077] == []
    assert f'config-dir = "{server.config}"' in (server.config / "federation.toml").read_text()
    assert (server.config / "superexec.secret").stat().st_size == 32


def test_a_site_must_say_which_data_it_has(tmp_path):
    """Before anything is made."""
    site = Places(tmp_path)
    status, said = run_program("flower-unlearn-site", "setup", "hospital-0", "fed", *site.options())
    assert status == 2
    assert "--data-dir names this site's own data" in said
    assert not site.config.exists()


def test_a_folder_that_is_not_whole_is_refused(tmp_path):
    """With what makes it."""
    server = Places(tmp_path)
    setup("setup", "server", "hearts", "localhost", *server.options())
    (tmp_path / "hospital-0").mkdir()
    status, said = run_program(
        *("flower-unlearn", "setup", "client", "hospital-0", str(tmp_path / "hospital-0")),
        *server.options(all_of_them=False),
    )
    assert status == 2
    assert "client-key.pub is not there" in " ".join(said.split())


@pytest.fixture
def network() -> Iterator[Network]:
    with network_or_skip([SERVER, *SITES]) as made:
        yield made


class Hosts:
    """Commands and units on the hosts of a network."""

    def __init__(self, network: Network, directory: Path, stack: ExitStack) -> None:
        self.network, self._stack, self._directory = network, stack, directory
        self.places = {name: Places(directory / name) for name in (SERVER, *SITES)}
        self.groups: dict[str, ProcessGroup] = {}

    def environment(self, host: str, *files: str) -> dict[str, str]:
        found = {**os.environ, **dict.fromkeys(("grpc_proxy", "http_proxy", "https_proxy"), "")}
        for file in ("environment", *files):
            found |= self.places[host].environment(file)
        return found

    def run(self, host: str, *command: str, files: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.network.command_on(host, [program(command[0]), *command[1:]]),
            env=self.environment(host, *files),
            capture_output=True,
            text=True,
            timeout=HANGS_S,
            check=False,
        )

    def start(self, host: str, unit: str) -> None:
        """As `systemctl start` does."""
        group = ProcessGroup(
            f"{host}-{unit}",
            self.network.command_on(host, self.places[host].command(unit)),
            environment=self.environment(host),
            directory=self._directory / host / unit,
        )
        self._stack.callback(group.kill)
        group.start()
        self.groups[f"{host} {unit}"] = group

    def until(self, host: str, command: tuple[str, ...], text: str, files: tuple[str, ...] = ()) -> str:
        """Repeat a command until it says `text`."""
        deadline = time.monotonic() + HANGS_S
        while text not in (said := (done := self.run(host, *command, files=files)).stdout + done.stderr):
            tails = "\n".join(group.log_text()[-800:] for group in self.groups.values())
            assert time.monotonic() < deadline, f"{said}\n{tails}"
            time.sleep(3.0)  # a look is a command, a second of processor time
        return said


@pytest.mark.slow
@pytest.mark.hosts
def test_four_hosts_are_set_up_by_the_commands_alone(network, tmp_path):
    """The guide's commands in the guide's order: rounds, then a deletion that is signed and verified."""
    with ExitStack() as stack:
        hosts = Hosts(network, tmp_path, stack)
        server, address, began = hosts.places[SERVER], network.address(SERVER), time.monotonic()
        setup("setup", "server", "hearts", address, *server.options())
        with (server.config / "federation.toml").open("a") as file:
            file.write('dataset = "digits"\nround-interval-s = 1.0\ntransport = "session"\n')
        for unit in ("flower-superlink", "flower-superexec", "flower-unlearning"):
            hosts.start(SERVER, unit)
        hosts.until(
            SERVER, ("flwr", "supernode", "list", "federation", "--format", "json"), '"success": true'
        )
        for number, name in enumerate(SITES):
            site = hosts.places[name]
            part = ("--part-id", str(number), "--num-parts", str(len(SITES)))
            setup("site", "setup", name, address, *part, *site.options())
            folder = site.config / "to-server" / name
            let_in = ("setup", "client", name, str(folder), *server.options(all_of_them=False))
            done = hosts.run(SERVER, "flower-unlearn", *let_in)
            assert done.returncode == 0, done.stdout + done.stderr
            answer = server.state / "to-site" / name
            setup("site", "setup", name, address, "--answer", str(answer), *site.options())
            hosts.start(name, "flower-supernode")
        hosts.start(SERVER, "flower-unlearning-supervisor")

        operator = ("operator.environment",)
        hosts.until(SERVER, ("flower-unlearn", "clients"), "hospital-2", operator)
        asked = ("flower-unlearn", "request", "--client", "hospital-1", "--method", "not", "--key", "k")
        hosts.until(SERVER, asked, "r-000001", operator)
        hosts.until(SERVER, ("flower-unlearn", "status", "r-000001"), "completed", operator)
        ledger = Ledger(Database(ledger_url(server.state / "state")))
        first = ledger.rounds()[0]
        ledger.close()
        # The streams that `setup` has prepared are used, by all.
        assert sorted(first.metrics["session"]) == list(SITES)
        print(
            f"first round after {(first.at - datetime.now(UTC)).total_seconds() + time.monotonic() - began:.0f} s"
        )
        done = hosts.run(
            SERVER, "flower-unlearn", "report", "r-000001", "--output", str(tmp_path), files=operator
        )
        certificate, report = tmp_path / "certificate-r-000001.json", tmp_path / "report-r-000001.json"
        assert json.loads(report.read_text())["request"]["client_id"] == "hospital-1", done.stdout
        key = server.config / "certificate-key" / "certificate-signing.pub"
        verify = ("flower-unlearn", "verify", str(certificate), "--public-key", str(key), "--service")
        checked = hosts.run(SERVER, *verify, "--report", str(report), files=operator)
        assert checked.returncode == 0, checked.stdout + checked.stderr
        assert "holds\tsignature" in checked.stdout
        print(
            f"first deletion verified after {time.monotonic() - began:.0f} s; load {os.getloadavg()[0]:.1f}"
        )
        # A site sees its own request with its own certificate, and `check` finds nothing wrong on any host.
        assert "r-000001" in hosts.run("hospital-1", "flower-unlearn", "list").stdout
        # Namespaces share the machine's processes, so each sees the others' federation too, and is not to speak of it.
        for name in (SERVER, *SITES):
            places = hosts.places[name]
            where = ("--config-dir", str(places.config), "--state-dir", str(places.state / "state"))
            found = hosts.run(
                name, "flower-unlearn", "check", *(() if name == SERVER else ("--client", *where))
            )
            assert found.returncode == 0, found.stdout + found.stderr
