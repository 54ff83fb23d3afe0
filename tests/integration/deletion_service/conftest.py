"""Fixtures of the tests that talk to a deletion service."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from server.api.client import DeletionClient
from server.api.server import RunningServer, serve
from server.cli import app
from server.ledger import Ledger
from tests.deletion_service import LiveLoop


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
def command(service: RunningServer, loop: LiveLoop) -> Callable[..., Result]:
    """Runs `flower-unlearn` against the service."""

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["--server", service.address, *arguments])

    return run
