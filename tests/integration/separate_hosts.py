"""The live federation of live_federation.py with its server and each client on a host of its own.

Programs, options and ports are those of deploy/: TLS, a registered key for each SuperNode, mutual
TLS at the deletion service. Only the files of all hosts lie in one directory.
"""

import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks.deployment import DELETION_SERVICE, SUPEREXEC, SUPERLINK, supernode
from benchmarks.local_layout import LocalControl
from benchmarks.process_group import ProcessGroup
from server.operations.flower_control import FEDERATION, ConfigValue, config_argument
from server.operations.starting import write_app
from strategies.installation import program, run_script
from tests.integration.deployments import FrugalDeployment
from tests.integration.live_federation import LiveFederation
from tests.integration.namespaces import Network
from tests.waiting import HANGS_S
from unlearning.requests import DeletionRequest, Target
from unlearning.runtime.durable_files import make_private

CONTROL_PORT, RUNTIME_PORT, FLEET_PORT, DELETION_PORT = 8000, 9094, 9092, 9100
"""As in the table of deploy/README.md."""

SERVER = "server"
SUPERVISOR = "supervisor"

_MOST_TRIES = 5
"""To cut a link before an answer has left."""

_NO_PROXY: Mapping[str, str] = dict.fromkeys(("grpc_proxy", "http_proxy", "https_proxy"), "")


def host_of(client: int) -> str:
    """The name of a client's host."""
    return f"client-{client}"


class SeparateHosts(FrugalDeployment):
    """A secure deployment whose programs run on the hosts of `network`; with the supervisor as a program.

    They are started as people start them, each in the network of its host.
    """

    _kind_of_group = ProcessGroup

    def __init__(
        self, directory: Path, network: Network, *, num_clients: int, run_config: Mapping[str, ConfigValue]
    ) -> None:
        self._app = write_app(directory / "app")
        super().__init__(
            directory,
            num_clients=num_clients,
            app_dir=self._app,
            run_config=run_config,
            secure=True,
            with_deletion_service=True,
            environment=_NO_PROXY,
        )
        self._network = network
        address = network.address(SERVER)
        self.layout = layout = replace(
            self.layout,
            control_address=f"127.0.0.1:{CONTROL_PORT}",
            fleet_address=f"{address}:{FLEET_PORT}",
            deletion_address=f"{address}:{DELETION_PORT}",
            runtime_ports=(RUNTIME_PORT,) * num_clients,
        )
        # The same programs in the same order as in one place, each by way of its host.
        self._groups.clear()
        self._add(SUPERLINK, self._on_server(layout.superlink_command()), layout.server_dir)
        self._add(SUPEREXEC, self._on_server(layout.superexec_command()), layout.server_dir)
        for client in range(num_clients):
            command = network.command_on(host_of(client), self._node_command(client))
            self._add(supernode(client), command, layout.client_dir(client))
        self._add(DELETION_SERVICE, self._on_server(layout.deletion_service_command()), layout.server_dir)
        self._add(SUPERVISOR, self._on_server(self._supervisor_command()), layout.server_dir)
        environment = self._environment_of(layout.server_dir)

        def run_on_server(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                self._on_server(command),
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=HANGS_S,
                check=False,
            )

        self.control = LocalControl(self._app, FEDERATION, environment=environment, run_command=run_on_server)
        self._make_keys(address)

    def superlink_answers(self) -> bool:
        """Whether the SuperLink takes connections, of its own host and of SuperNodes."""
        return self._answers("127.0.0.1", CONTROL_PORT) and self._answers(
            self._network.address(SERVER), FLEET_PORT
        )

    def deletion_service_answers(self) -> bool:
        """Whether the deletion service takes connections."""
        return self._answers(self._network.address(SERVER), DELETION_PORT)

    def _node_command(self, client: int) -> list[str]:
        """The command of a site's unit."""
        return [program("flower-unlearn-site"), "node", "--", *self.layout.supernode_command(client)[1:]]

    def _answers(self, address: str, port: int) -> bool:
        return self._network.probe(SERVER, address, port) == "open"

    def _on_server(self, command: Sequence[str]) -> list[str]:
        return self._network.command_on(SERVER, command)

    def _supervisor_command(self) -> list[str]:
        file = self.layout.server_dir / "federation.toml"
        above = {"name": "main", "state-dir": str(self.layout.state_dir), "app": str(self._app)}
        above |= {"superlink-database": str(self.layout.superlink_database)}
        run = {name: value for name, value in self.run_config.items() if name not in above}
        make_private(file.parent)
        lines = [config_argument({name: value}) for name, value in above.items()]
        file.write_text("\n".join([*lines, "[run]", *(config_argument({n: v}) for n, v in run.items())]))
        # a look costs seconds of processor time
        return [program("flower-unlearn"), "--federation-file", str(file), "supervise", "--poll-s", "20"]

    def _make_keys(self, address: str) -> None:
        """Make keys by the scripts of deploy/, the server's certificate for its address on the network."""
        certificates = str(self.layout.certificates_dir)
        calls = [["make_certificates.sh", certificates, "server", "localhost", address]]
        calls += [["make_certificates.sh", certificates, "operator", "operator"]]
        for client in range(self.layout.num_clients):
            calls += [["make_supernode_key.sh", str(self.layout.client_dir(client) / "key")]]
        for call in calls:
            run_script(*call)


class FederationOfHosts(LiveFederation):
    """Requests are filed by the operator on a client's host, with the command and over the network."""

    def __init__(
        self, directory: Path, network: Network, *, num_clients: int, **settings: ConfigValue
    ) -> None:
        super().__init__(directory, num_clients=num_clients, with_sessions=False, **settings)
        self._samples_file = directory / "samples.txt"
        self.network = network
        self.deployment: SeparateHosts = SeparateHosts(
            directory / "federation", network, num_clients=num_clients, run_config=self.run_config
        )

    def flower_unlearn(self, *arguments: str) -> str:
        """Run `flower-unlearn` on client 0's host, with the operator's certificate."""
        layout = self.deployment.layout
        command = [program("flower-unlearn"), "--server", layout.deletion_address]
        command += ["--tls-ca", str(layout.authority)]
        command += ["--tls-cert", str(layout.certificates_dir / "operator.pem")]
        command += ["--tls-key", str(layout.certificates_dir / "operator.key")]
        return self.command(*self.network.command_on(host_of(0), [*command, *arguments]))

    def file(self, target: Target, key: str = "") -> DeletionRequest:
        """File a request about samples; it is durable when this returns."""
        self._samples_file.write_text("\n".join(sorted(target.sample_ids)))
        words = ["--client", target.client_id, "--method", "puf-special"]
        words += ["--samples", str(self._samples_file), *(["--key", key] if key else [])]
        return self.noted(self.ledger.requests.get(self.flower_unlearn("request", *words).split()[0]), target)

    @contextmanager
    def link_cut_while_reply_is_due(
        self, client: int, kind: str, cause: Callable[[], object] = lambda: None
    ) -> Iterator[None]:
        """Cut the link of a client that works on a `kind` message, for as long as it takes to matter.

        The context is entered when the client's answer is due and TCP repeats itself in vain; leaving it restores
        the link. It is an outage of seconds, in which an answer is late and not lost (docs/reference-failures.md).

        cause: brings the message about. Where the answer has gone before the link is cut, it is called again, for
        another message.
        """
        host, deployment = host_of(client), self.deployment
        try:
            for _ in range(_MOST_TRIES):
                if self._cut_before_reply(client, kind, cause):
                    break
                self.network.restore(host)
            else:
                raise AssertionError(f"client {client} answered {_MOST_TRIES} times before its link was cut")
            repeated = self.network.num_retransmitted(host)
            deployment.wait_until(
                lambda: self.network.num_retransmitted(host) > repeated,
                HANGS_S,
                f"client {client} repeats what does not arrive",
            )
            yield
        finally:
            self.network.restore(host)

    def _cut_before_reply(self, client: int, kind: str, cause: Callable[[], object]) -> bool:
        """Cut the link as soon as the next `kind` message is there; return whether its answer was still to come."""
        self.deployment.wait_until(
            lambda: self._num_replies_begun(client, kind) == self.num_messages(client, kind),
            HANGS_S,
            f"client {client} has answered what it has",
            poll_s=0.02,
        )
        begun, received = self._num_replies_begun(client, kind), self.num_messages(client, kind)

        def has_left() -> bool:
            return self._num_replies_begun(client, kind) > begun

        cause()
        self.deployment.wait_until(
            lambda: self.num_messages(client, kind) > received,
            HANGS_S,
            f"client {client} gets a {kind} message",
            poll_s=0.02,
        )
        self.network.cut(host_of(client))
        if has_left():
            return False
        self.deployment.wait_until(has_left, HANGS_S, f"client {client} has an answer")
        return True

    def _num_replies_begun(self, client: int, kind: str) -> int:
        log = self.deployment.group(supernode(client)).log_text()
        return len(re.findall(rf"Sending: {re.escape(kind)} message", log))


@contextmanager
def federation_of_hosts(
    directory: Path, network: Network, *, num_clients: int, **settings: ConfigValue
) -> Iterator[FederationOfHosts]:
    """A federation that has done its first training round; leaving ends everything.

    settings: of the run, beside those that all tests of live federations share.
    """
    federation = FederationOfHosts(directory, network, num_clients=num_clients, **settings)
    try:
        with federation.deployment as deployment:
            deployment.submit_run()
            federation.wait_for_rounds(1)
            yield federation
    finally:
        federation.service.close()
        federation.ledger.close()
