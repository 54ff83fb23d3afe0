"""Where a local federation's programs keep their files, where they listen and how they are called.

The programs and their options are those of deploy/; only the addresses are all loopback.
Each has a directory of its own, as if it ran on a host of its own:

    server/     superlink.db, state/ (with ledger.db), flower/ (Flower's home), certificates/ if secure
    client-0/   state/, flower/, key and key.pub if secure
    ...
"""

import os
import secrets
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from server.operations.flower_control import (
    FLEET_SPEAKS_HTTP,
    ConfigValue,
    FlowerControl,
    Run,
    config_argument,
    flower_config,
    refuse_unusable_flower,
    run_from_json,
)
from server.state_directory.ledger_address import ledger_url
from strategies.installation import program, run_script
from unlearning.errors import DeploymentError
from unlearning.runtime.durable_files import make_private, write_new

_GIVEN: set[int] = set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Files, addresses and command lines of a federation on one machine.

    Client i is the client of id `str(i)`. `node_config` adds settings to every SuperNode's; with `secure_aggregation`
    each has a key of its own and the roster of all.
    """

    directory: Path
    secure: bool
    control_address: str
    fleet_address: str
    deletion_address: str
    session_address: str
    runtime_ports: tuple[int, ...]
    node_config: Mapping[str, ConfigValue] = field(default_factory=dict)
    secure_aggregation: bool = False

    @property
    def num_clients(self) -> int:
        """How many SuperNodes there are."""
        return len(self.runtime_ports)

    @property
    def server_dir(self) -> Path:
        """The server's directory."""
        return self.directory / "server"

    @property
    def state_dir(self) -> Path:
        """Where the ServerApp and the deletion service keep checkpoints and reports."""
        return self.server_dir / "state"

    @property
    def superlink_database(self) -> Path:
        """Where the SuperLink keeps its runs, nodes and messages."""
        return self.server_dir / "superlink.db"

    @property
    def ledger_url(self) -> str:
        """The ledger's database, if the deployment is given no other."""
        return ledger_url(self.state_dir)

    @property
    def certificates_dir(self) -> Path:
        """The certificates, if secure: ca.crt, server.pem, server.key, operator.pem, operator.key."""
        return self.server_dir / "certificates"

    @property
    def authority(self) -> Path:
        """The certificate that everybody trusts, if secure."""
        return self.certificates_dir / "ca.crt"

    @property
    def session_certificates_dir(self) -> Path:
        """Those of sessions, if secure: ca.crt, server.pem, client-0.pem, ... and their keys.

        An authority of its own, so that a client's certificate does not open the deletion service.
        """
        return self.server_dir / "session-certificates"

    def client_dir(self, client: int) -> Path:
        """Return the directory of one client's site."""
        return self.directory / f"client-{client}"

    def prepare(self) -> None:
        """Write what the programs read: directories, Flower's configuration, the secret, keys.

        Raises:
            DeploymentError: a key or a certificate could not be made.
        """
        for site in (self.server_dir, *map(self.client_dir, range(self.num_clients))):
            make_private(site / "flower")
            make_private(site / "state")
        if not self._secret.exists():
            write_new(self._secret, secrets.token_bytes(32))
        config = flower_config(self.control_address, self.authority if self.secure else None)
        (self.server_dir / "flower" / "config.toml").write_text(config)
        if self.secure and not self.authority.exists():
            run_script("make_certificates.sh", str(self.certificates_dir), "server", "localhost")
            run_script("make_certificates.sh", str(self.certificates_dir), "operator", "operator")
            sessions = str(self.session_certificates_dir)
            run_script("make_certificates.sh", sessions, "server", "localhost")
            for client in range(self.num_clients):
                run_script("make_supernode_key.sh", str(self.client_dir(client) / "key"))
                run_script("make_certificates.sh", sessions, "client", f"client-{client}")

        if self.secure_aggregation:
            self._make_secure_keys()

    def _secure_keys(self, client: int) -> dict[str, ConfigValue]:
        key = self.client_dir(client) / "secure-key.pem"
        return {"secure-key": str(key), "secure-roster": str(self.directory / "secure-roster")}

    def _make_secure_keys(self) -> None:
        roster = self.directory / "secure-roster"
        make_private(roster)
        for client in range(self.num_clients):
            private, public = self.client_dir(client) / "secure-key.pem", roster / f"{client}.pem"
            if not public.exists():
                key = Ed25519PrivateKey.generate()
                write_new(private, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
                public.write_bytes(
                    key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
                )

    def superlink_command(self) -> list[str]:
        """Return the command that starts `flower-superlink`.

        Raises:
            DeploymentError: no SuperLink works in this environment.
        """
        refuse_unusable_flower()
        host, _, port = self.control_address.partition(":")
        command = [program("flower-superlink"), "--host", host, "--port", port, "--isolation", "process"]
        if not FLEET_SPEAKS_HTTP:
            command += ["--fleet-api-address", self.fleet_address]
        command += ["--database", str(self.superlink_database)]
        command += ["--superexec-auth-secret-file", str(self._secret)]
        if not self.secure:
            return [*command, "--insecure"]
        command += ["--ssl-ca-certfile", str(self.authority)]
        command += ["--ssl-certfile", str(self.certificates_dir / "server.pem")]
        command += ["--ssl-keyfile", str(self.certificates_dir / "server.key")]
        return [*command, "--enable-supernode-auth"]

    def superexec_command(self) -> list[str]:
        """Return the command that starts `flower-superexec`, which starts the ServerApps."""
        command = [program("flower-superexec"), "--runtime-api-address", self.control_address]
        command += ["--superexec-auth-secret-file", str(self._secret)]
        return command + (["--root-certificates", str(self.authority)] if self.secure else ["--insecure"])

    def session_settings(self) -> dict[str, ConfigValue]:
        """Return what a run's configuration says so that methods of many exchanges use sessions."""
        return {
            "session-address": self.session_address,
            **(self.session_tls("server") if self.secure else {}),
        }

    def session_tls(self, name: str) -> dict[str, ConfigValue]:
        """Return the files by which `name` (server, client-0, ...) proves who it is in a session."""
        certificates = self.session_certificates_dir
        return {
            "session-tls-ca": str(certificates / "ca.crt"),
            "session-tls-cert": str(certificates / f"{name}.pem"),
            "session-tls-key": str(certificates / f"{name}.key"),
        }

    def supernode_command(self, client: int) -> list[str]:
        """Return the command that starts one client's `flower-supernode`."""
        directory = self.client_dir(client)
        settings: dict[str, ConfigValue] = {
            "partition-id": client,
            "num-partitions": self.num_clients,
            "client-id": str(client),
            "state-dir": str(directory / "state"),
            **(self.session_tls(f"client-{client}") if self.secure else {}),
            **(self._secure_keys(client) if self.secure_aggregation else {}),
            **self.node_config,
        }
        command = [program("flower-supernode"), "--superlink", self.fleet_address, "--host", "127.0.0.1"]
        command += ["--port", str(self.runtime_ports[client]), "--node-config", config_argument(settings)]
        if not self.secure:
            return [*command, "--insecure"]
        command += ["--root-certificates", str(self.authority)]
        return [*command, "--auth-supernode-private-key", str(directory / "key")]

    def deletion_service_command(self) -> list[str]:
        """Return the command that starts the deletion service."""
        command = [program("flower-unlearn"), "serve"]
        command += ["--state-dir", str(self.state_dir), "--address", self.deletion_address]
        if not self.secure:
            return command
        command += ["--tls-ca", str(self.authority)]
        command += ["--tls-cert", str(self.certificates_dir / "server.pem")]
        return [*command, "--tls-key", str(self.certificates_dir / "server.key")]

    @property
    def _secret(self) -> Path:
        return self.server_dir / "superexec.secret"


class LocalControl(FlowerControl):
    """The runs of a federation on this machine. `run_options` are added to each `flwr run`."""

    run_options: Sequence[str] = ()

    def ask(self, arguments: Sequence[str]) -> dict[str, Any]:
        """Return what one `flwr` command answers."""
        return super().ask([*arguments, *(self.run_options if arguments[0] == "run" else ())])

    def run(self, run_id: int) -> Run:
        """Return one run.

        Raises:
            DeploymentError: the SuperLink cannot be reached or has no such run.
        """
        return run_from_json(self.ask(["list", self.federation, "--run-id", str(run_id)])["runs"][0])

    def stop_run(self, run_id: int) -> None:
        """Stop a run; its ServerApp ends and the run becomes `finished:stopped`.

        Raises:
            DeploymentError: the SuperLink cannot be reached, or the run is not running.
        """
        self.ask(["stop", str(run_id), self.federation])

    def log(self, run_id: int) -> str:
        """Return what the run's ServerApp has logged so far; empty if it cannot be had."""
        command = [program("flwr"), "log", str(run_id), self.federation, "--show"]
        try:
            return self.run_command(command).stdout
        except (OSError, subprocess.SubprocessError):
            return ""


def new_layout(
    directory: Path,
    *,
    num_clients: int,
    secure: bool,
    node_config: Mapping[str, ConfigValue],
    secure_aggregation: bool = False,
) -> Layout:
    """Lay a federation out in `directory`, on loopback ports that are free now.

    Raises:
        DeploymentError: too few ports are free.
    """
    control, fleet, deletion, session, *runtimes = free_ports(4 + num_clients)
    return Layout(
        directory=directory.resolve(),
        secure=secure,
        control_address=f"127.0.0.1:{control}",
        fleet_address=f"127.0.0.1:{control if FLEET_SPEAKS_HTTP else fleet}",
        deletion_address=f"127.0.0.1:{deletion}",
        session_address=f"127.0.0.1:{session}",
        runtime_ports=tuple(runtimes),
        node_config=dict(node_config),
        secure_aggregation=secure_aggregation,
    )


def free_ports(count: int) -> list[int]:
    """Find `count` loopback ports that are free, each given once by this process.

    They lie below those that the system hands out.

    A port from the system's own range could become some other connection's local port while the
    program that owns it is down for a restart.

    Raises:
        DeploymentError: there are not as many.
    """
    found: list[int] = []
    first, end = 20_000, 32_000
    # Different processes begin at different places, so that two deployments do not race for one port.
    begin = first + os.getpid() * 61 % (end - first)
    for port in [*range(begin, end), *range(first, begin)]:
        if len(found) == count:
            break
        if port in _GIVEN:  # its program may be down for a restart, or not need it all the time
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
    _GIVEN.update(found)
    if len(found) < count:
        raise DeploymentError(f"Only {len(found)} of {count} ports are free between {first} and {end}.")
    return found
