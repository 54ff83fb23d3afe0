"""A whole federation of real processes on this machine: for the demo, the tests and the benchmarks."""

import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

import httpx

from benchmarks.local_layout import LocalControl, new_layout
from benchmarks.process_group import ProcessGroup
from server.operations.checklist.ports import can_connect
from server.operations.flower_control import FEDERATION, ConfigValue, flower_environment
from server.state_directory.ledger_address import VARIABLE
from unlearning.errors import DeploymentError

SUPERLINK = "flower-superlink"
SUPEREXEC = "flower-superexec"
DELETION_SERVICE = "deletion-service"
SUPERNODE = "flower-supernode"

_START_TIMEOUT_S = 60.0
_STOP_GRACE_S = 5.0


class LocalDeployment:
    """A SuperLink, its SuperExec, `num_clients` SuperNodes and, if asked for, the deletion service.

    A context manager: entering starts everything and returns when the SuperLink answers (SuperNodes
    and SuperExec are then on their way; runs wait for them), leaving ends all of it by its process
    groups, also after an exception or Ctrl-C.

    Client i is the client of id `str(i)`; if `secure`, it is registered under that name with a key of
    its own and everything but loopback HTTP inside a client's site is encrypted. `layout` holds the
    addresses and the places of all files. A directory that was used before goes on where it was.

    The deletion service and the app share a ledger, so with it the run configuration's `state-dir` is set.
    `ledger_url` names another ledger than SQLite there; only the two learn it, by their environment.
    With sessions, `session-address` is set. `node_config` adds settings to every
    SuperNode's configuration; `environment` adds environment variables to every program. With `secure_aggregation` the
    sites have keys and the runs that setting.
    """

    _SERVER_APP = "flwr-serverapp"
    """What the command of a ServerApp's process has in it."""
    _run_options: Sequence[str] = ()
    _kind_of_group: type[ProcessGroup] = ProcessGroup

    def __init__(
        self,
        directory: Path,
        *,
        num_clients: int,
        app_dir: Path,
        run_config: Mapping[str, ConfigValue] | None = None,
        secure: bool = False,
        with_deletion_service: bool = False,
        with_sessions: bool = False,
        ledger_url: str = "",
        node_config: Mapping[str, ConfigValue] | None = None,
        environment: Mapping[str, str] | None = None,
        secure_aggregation: bool = False,
    ) -> None:
        self.run_config: dict[str, ConfigValue] = dict(run_config or {})
        self.layout = layout = new_layout(
            directory,
            num_clients=num_clients,
            secure=secure,
            node_config=node_config or {},
            secure_aggregation=secure_aggregation,
        )
        self._added_environment = {"OMP_NUM_THREADS": "1", **(environment or {})}
        self._ledger_environment = {VARIABLE: ledger_url} if ledger_url else {}
        self._groups: dict[str, ProcessGroup] = {}
        self._expected: set[str] = set()
        self._add(SUPERLINK, layout.superlink_command(), layout.server_dir)
        self._add(SUPEREXEC, layout.superexec_command(), layout.server_dir)
        for client in range(num_clients):
            self._add(supernode(client), layout.supernode_command(client), layout.client_dir(client))
        if with_deletion_service:
            self._add(DELETION_SERVICE, layout.deletion_service_command(), layout.server_dir)
            self.run_config |= {"state-dir": str(layout.state_dir)}
        if secure_aggregation:
            self.run_config |= {"secure-aggregation": True}
        if with_sessions:
            self.run_config |= layout.session_settings()
        self.run_app_in(app_dir)

    # --- the whole

    def __enter__(self) -> Self:
        """Start everything; see the class.

        Raises:
            DeploymentError: a program did not start.
        """
        try:
            self.layout.prepare()
            is_new = not self.layout.superlink_database.exists()
            # What needs no SuperLink starts beside it: it takes one processor for seconds.
            for name in self._groups:
                if name in (SUPERLINK, DELETION_SERVICE):
                    self.start(name)
            self.wait_until(self.superlink_answers, _START_TIMEOUT_S, "the SuperLink answers")
            if self.layout.secure and is_new:
                for client in range(self.layout.num_clients):
                    self.control.register_supernode(self.layout.client_dir(client) / "key.pub", str(client))
            for name in self._groups:
                if name not in self._expected:
                    self.start(name)
            if DELETION_SERVICE in self._groups:
                self.wait_until(
                    self.deletion_service_answers, _START_TIMEOUT_S, "the deletion service answers"
                )
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop everything."""
        self.stop()

    def stop(self) -> None:
        """End every process that this deployment started; the files stay.

        Raises:
            DeploymentError: a process outlived SIGKILL.
        """
        self._expected.clear()
        # The SuperLink goes last, so that the others can still take their leave of it.
        for names in ([name for name in self._groups if name != SUPERLINK], [SUPERLINK]):
            groups = [self._groups[name] for name in names]
            for group in groups:
                group.ask_to_end()
            deadline = time.monotonic() + _STOP_GRACE_S
            for group in groups:
                if not group.wait_until_gone(max(0.0, deadline - time.monotonic())):
                    group.kill()

    # --- one program

    @property
    def names(self) -> list[str]:
        """The programs' names, in the order in which they are started."""
        return list(self._groups)

    def start(self, name: str) -> None:
        """Start one program.

        Raises:
            DeploymentError: there is none of this name, or it runs already.
        """
        self.group(name).start()
        self._expected.add(name)

    def kill(self, name: str) -> None:
        """End one program and all that it started with SIGKILL; return when none of it lives.

        Raises:
            DeploymentError: there is none of this name.
        """
        self._expected.discard(name)
        self.group(name).kill()

    def group(self, name: str) -> ProcessGroup:
        """Return the processes of one program.

        Raises:
            DeploymentError: there is none of this name.
        """
        if name not in self._groups:
            raise DeploymentError(f"There is no program {name!r} here; there are {self.names}.")
        return self._groups[name]

    def server_app_pid(self) -> int | None:
        """Return the process id of the ServerApp that runs now, if one does."""
        for process in self.group(SUPEREXEC).members():
            if self._SERVER_APP in process.command:
                return process.pid
        return None

    # --- runs

    def run_app_in(self, app_dir: Path) -> None:
        """Submit the app of this directory from now on."""
        self.control = LocalControl(
            app_dir, FEDERATION, environment=self._environment_of(self.layout.server_dir)
        )
        self.control.run_options = self._run_options

    def submit_run(self, overrides: Mapping[str, ConfigValue] | None = None) -> int:
        """Submit the app with this deployment's run configuration; return the run's id.

        Raises:
            DeploymentError: the SuperLink refused it or could not be reached.
        """
        return self.control.submit_run({**self.run_config, **(overrides or {})})

    def wait_until_finished(self, run_id: int, timeout_s: float) -> str:
        """Wait until the run has ended, in whatever way; return its status.

        Raises:
            DeploymentError: it has not ended in time, or a program ended unasked.
        """
        status = ""

        def is_finished() -> bool:
            nonlocal status
            if self.server_app_pid() is not None:
                return False  # asking the SuperLink costs seconds of processor time
            status = self.control.run(run_id).status
            return status.startswith("finished")

        self.wait_until(is_finished, timeout_s, f"run {run_id} ends", poll_s=1.0)
        return status

    def superlink_answers(self) -> bool:
        """Return whether the SuperLink answers over HTTP and takes the connections of SuperNodes, if there are any."""
        scheme = "https" if self.layout.secure else "http"
        trusted = ssl.create_default_context(cafile=self.layout.authority) if self.layout.secure else False
        address = f"{scheme}://{self.layout.control_address}/health"
        try:  # past a proxy that the environment names
            is_up = httpx.get(address, timeout=2, verify=trusted, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False
        return is_up and (not self.layout.num_clients or _is_listening(self.layout.fleet_address))

    def deletion_service_answers(self) -> bool:
        """Return whether the deletion service takes connections."""
        return _is_listening(self.layout.deletion_address)

    def wait_until(
        self, predicate: Callable[[], bool], timeout_s: float, what: str, *, poll_s: float = 0.2
    ) -> None:
        """Wait until `predicate` holds, looking every `poll_s` seconds.

        Raises:
            DeploymentError: it does not hold after `timeout_s`, or a program that should run has
                ended; the message ends with what the programs wrote last.
        """
        deadline = time.monotonic() + timeout_s
        while not predicate():
            ended = [name for name in sorted(self._expected) if not self._groups[name].is_running]
            if ended:
                raise DeploymentError(
                    f"Ended unasked while waiting until {what}: {ended}.\n{self.log_tails(ended)}"
                )
            if time.monotonic() > deadline:
                raise DeploymentError(f"Waited {timeout_s:g} s in vain until {what}.\n{self.log_tails()}")
            time.sleep(poll_s)

    def log_tails(self, names: Sequence[str] | None = None) -> str:
        """Return the last fifteen lines of the programs' logs, each under its path."""
        parts = []
        for name in names if names is not None else self.names:
            lines = self.group(name).log_text().splitlines()[-15:]
            parts.append(f"--- {self.group(name).log_path}\n" + "\n".join(lines))
        return "\n".join(parts)

    # --- inside

    def _add(self, name: str, command: Sequence[str], directory: Path) -> None:
        environment = self._environment_of(directory)
        if name in (SUPEREXEC, DELETION_SERVICE):
            environment |= self._ledger_environment
        self._groups[name] = self._kind_of_group(name, command, environment=environment, directory=directory)

    def _environment_of(self, directory: Path) -> dict[str, str]:
        return {**flower_environment(directory / "flower"), **self._added_environment}


def supernode(client: int) -> str:
    """Return the name of a client's SuperNode among a deployment's programs."""
    return f"{SUPERNODE}-{client}"


def _is_listening(address: str) -> bool:
    host, _, port = address.rpartition(":")
    return can_connect(host, int(port))
