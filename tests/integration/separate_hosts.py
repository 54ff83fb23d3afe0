"""The live federation of live_federation.py with its server and each client on a host of its own.

Programs, options and ports are those of deploy/README.md: TLS, a registered key for each SuperNode, mutual
TLS at the deletion service. Only the files of all hosts lie in one directory.
"""

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from client.memory import LAST_ANSWER
from server.processes.deployment import DELETION_SERVICE, SUPEREXEC, SUPERLINK, LocalDeployment, supernode
from server.processes.flower_control import ConfigValue, FlowerControl, config_argument, program
from server.processes.layout import FEDERATION
from tests.integration.conftest import REPOSITORY
from tests.integration.live_federation import WAIT_S, LiveFederation
from tests.integration.namespaces import Network
from unlearning.durable_files import make_private
from unlearning.requests import DeletionRequest, Target

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


class SeparateHosts(LocalDeployment):
    """A secure deployment whose programs run on the hosts of `network`; with the supervisor as a program."""

    def __init__(
        self, directory: Path, network: Network, *, num_clients: int, run_config: Mapping[str, ConfigValue]
    ) -> None:
        super().__init__(
            directory,
            num_clients=num_clients,
            app_dir=REPOSITORY,
            run_config=run_config,
            secure=True,
            with_deletion_service=True,
            with_worker=False,  # a worker would be on one host and its messages' processes with it
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
            command = network.command_on(host_of(client), layout.supernode_command(client))
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
                timeout=120,
                check=False,
            )

        self.control = FlowerControl(
            REPOSITORY, FEDERATION, environment=environment, run_command=run_on_server
        )
        self._make_keys(address)

    def superlink_answers(self) -> bool:
        """Whether the SuperLink takes connections, of its own host and of SuperNodes."""
        return self._answers("127.0.0.1", CONTROL_PORT) and self._answers(
            self._network.address(SERVER), FLEET_PORT
        )

    def deletion_service_answers(self) -> bool:
        """Whether the deletion service takes connections."""
        return self._answers(self._network.address(SERVER), DELETION_PORT)

    def last_answer(self, client: int) -> int:
        """When this client wrote the answer to work that it keeps, in nanoseconds; 0 where it has none."""
        try:
            return (self.layout.client_dir(client) / "state" / LAST_ANSWER).stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def client_apps(self, client: int) -> list[int]:
        """The ids of the processes of this client's ClientApps."""
        members = self._group(supernode(client)).members()
        return [process.pid for process in members if "flwr-clientapp" in process.command]

    @contextmanager
    def client_apps_stopped(self, client: int, known: Sequence[int]) -> Iterator[None]:
        """Within the context the processes of this client's ClientApps stand still: first the `known`, at once."""
        pids = [*known]
        try:
            _signal(pids, signal.SIGSTOP)
            pids += self.client_apps(client)  # takes as long as an answer needs to leave
            _signal(pids, signal.SIGSTOP)
            yield
        finally:
            _signal(pids, signal.SIGCONT)

    def _answers(self, address: str, port: int) -> bool:
        return self._network.probe(SERVER, address, port) == "open"

    def _on_server(self, command: Sequence[str]) -> list[str]:
        return self._network.command_on(SERVER, command)

    def _supervisor_command(self) -> list[str]:
        file = self.layout.server_dir / "federation.toml"
        above = {"name": "main", "state-dir": str(self.layout.state_dir), "app": str(REPOSITORY)}
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
        for script, *arguments in calls:
            subprocess.run(["sh", str(REPOSITORY / "deploy" / script), *arguments], check=True)


class FederationOfHosts(LiveFederation):
    """Requests are filed by the operator on a client's host, with the command and over the network."""

    def __init__(
        self, directory: Path, network: Network, *, num_clients: int, **settings: ConfigValue
    ) -> None:
        super().__init__(
            directory, num_clients=num_clients, with_sessions=False, with_worker=False, **settings
        )
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
        words = ["--client", target.client_id, "--samples", str(self._samples_file), "--key", key]
        return self.noted(self.ledger.get(self.flower_unlearn("request", *words).split()[0]), target)

    @contextmanager
    def link_cut_while_reply_is_due(
        self, client: int, kind: str, cause: Callable[[], object] = lambda: None
    ) -> Iterator[None]:
        """Cut the link of a client that works on a `kind` message, for as long as it takes to matter.

        The context is entered when the client's answer is due and TCP repeats itself in vain; leaving it restores
        the link. It is an outage of seconds, in which an answer is late and not lost (docs/operations.md), so it
        begins when the answer is there and has not yet left the ClientApp: also on a machine that is so busy that
        imports and work take longer than the minute after which Flower gives a client up.

        cause: brings the message about. On such a machine the answer may have gone before the link is cut; then it is
        called again, for another message.
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
                WAIT_S,
                f"client {client} repeats what nobody gets",
            )
            yield
        finally:
            self.network.restore(host)

    def _cut_before_reply(self, client: int, kind: str, cause: Callable[[], object]) -> bool:
        """Cut the link as soon as an answer to the next `kind` message is there; return whether it was still there."""
        deployment = self.deployment
        begun, received = self._num_replies_begun(client, kind), self.num_messages(client, kind)

        def has_left() -> bool:
            return self._num_replies_begun(client, kind) > begun

        cause()
        deployment.wait_until(
            lambda: self.num_messages(client, kind) > received,
            WAIT_S,
            f"client {client} gets a {kind} message",
        )
        before = deployment.last_answer(client)
        deployment.wait_until(
            lambda: bool(deployment.client_apps(client)) or has_left(),
            WAIT_S,
            f"client {client} begins to work",
        )
        working = deployment.client_apps(client)
        deployment.wait_until(
            lambda: deployment.last_answer(client) not in (0, before) or has_left(),
            WAIT_S,
            f"client {client} has worked",
            poll_s=0.005,
        )
        with deployment.client_apps_stopped(client, working):
            self.network.cut(host_of(client))
            if has_left():
                return False
        deployment.wait_until(has_left, WAIT_S, f"client {client} has an answer")
        return True

    def _num_replies_begun(self, client: int, kind: str) -> int:
        log = self.deployment.log_text(supernode(client))
        return len(re.findall(rf"Sending: {re.escape(kind)} message", log))


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(pid, number)


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
