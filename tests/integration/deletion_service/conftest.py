"""Fixtures of the tests that talk to a deletion service."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from server.cli import app
from server.ledger import Ledger
from server.service.client import DeletionClient
from server.service.grpc_server import RunningServer, serve
from server.service.limits import Limits
from strategies.tls_files import TlsFiles
from tests.certificates import Authority
from tests.deletion_service import ANSWERED_S, LiveLoop

Command = Callable[..., Result]
As = Callable[[str], DeletionClient]


@pytest.fixture
def ledger(sqlite_ledger: Ledger) -> Ledger:
    return sqlite_ledger


@pytest.fixture
def loop(ledger: Ledger) -> LiveLoop:
    return LiveLoop(ledger)


@pytest.fixture
def service(ledger: Ledger, tmp_path: Path) -> Iterator[RunningServer]:
    running = serve(ledger, tmp_path / "reports", "127.0.0.1:0")
    yield running
    running.stop(0)


@pytest.fixture
def client(service: RunningServer) -> Iterator[DeletionClient]:
    with DeletionClient(service.address) as connected:
        yield connected


@pytest.fixture
def command(service: RunningServer, loop: LiveLoop) -> Command:
    """Runs `flower-unlearn` against the service."""

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["--server", service.address, *arguments])

    return run


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="session")
def identities(authority: Authority) -> dict[str, TlsFiles]:
    """The service's certificate, and one of each role; `both` is operator and officer, `nobody` has no role."""
    people = {"operator": "ada", "officer": "olga", "auditor": "alma", "client": "3"}
    files = {role: authority.certify(name, role) for role, name in people.items()}
    files["both"] = authority.certify("bea", "operator", "officer")
    return {**files, "nobody": authority.certify("eve"), "server": authority.certify("server")}


class Guarded:
    """A deletion service that asks for certificates, and its callers, who are connected as long as it runs."""

    def __init__(
        self, running: RunningServer, identities: dict[str, TlsFiles], until_the_end: ExitStack
    ) -> None:
        self.core = running.core
        self.address = running.address
        self.identities = identities
        self._until_the_end = until_the_end

    def as_(self, who: str) -> DeletionClient:
        calling = DeletionClient(self.address, self.identities[who], timeout_s=ANSWERED_S)
        return self._until_the_end.enter_context(calling)


Start = Callable[..., Guarded]


@pytest.fixture
def start(ledger: Ledger, loop: LiveLoop, tmp_path: Path, identities: dict[str, TlsFiles]) -> Iterator[Start]:
    """Starts a service with these limits."""
    with ExitStack() as until_the_end:

        def begin(**limits: Any) -> Guarded:
            running = serve(
                ledger, tmp_path / "reports", "127.0.0.1:0", identities["server"], limits=Limits(**limits)
            )
            until_the_end.callback(running.stop, 0)
            return Guarded(running, identities, until_the_end)

        yield begin


@pytest.fixture
def as_(start: Start) -> As:
    """Calls the service as somebody."""
    return start().as_
