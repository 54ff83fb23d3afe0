"""Who can reach the deletion service: addresses, ports, mutual TLS; and the life of its process."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.api.client import DeletionClient
from server.api.errors import ServiceUnavailable
from server.api.server import RunningServer, serve
from server.api.tls import TlsFiles
from server.ledger import Ledger
from tests.certificates import Authority
from tests.deletion_service import LiveLoop, free_port, submit
from unlearning.errors import (
    ConfigurationError,
)

ROOT = Path(__file__).parents[3]

# Who can reach it


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "example.org:0"])
def test_the_service_does_not_listen_to_other_machines_without_mutual_tls(
    ledger: Ledger, tmp_path: Path, tls: "dict[str, TlsFiles]", address: str
) -> None:
    """Neither in plain text nor with a certificate of its own only."""
    for files in (None, TlsFiles(certificate=tls["server"].certificate, key=tls["server"].key)):
        with pytest.raises(ConfigurationError, match="can be reached from other machines"):
            serve(ledger, tmp_path, address, files)


def test_a_port_is_not_shared(service: RunningServer, ledger: Ledger, tmp_path: Path) -> None:
    """A second service on the same port would take half of the calls."""
    with pytest.raises(ConfigurationError, match="cannot listen"):
        serve(ledger, tmp_path, service.address)


def test_an_address_where_nobody_listens_is_explained() -> None:
    """The message says how to start the service."""
    with DeletionClient(f"127.0.0.1:{free_port()}") as client:  # noqa: SIM117  the refusal is the call's
        with pytest.raises(ServiceUnavailable, match="Start it with `flower-unlearn serve`"):
            client.get("r-000001")


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TlsFiles]:
    """An authority, a server's and an operator's certificate, and a stranger's from another authority."""
    directory = tmp_path_factory.mktemp("tls")
    authority, strange = Authority(directory), Authority(directory, "strange-ca")
    stranger = strange.certify("operator", "operator")
    return {
        "server": authority.certify("server"),
        "operator": authority.certify("operator", "operator"),
        "stranger": TlsFiles(authority.file, stranger.certificate, stranger.key),
    }


@pytest.fixture
def tls_service(
    ledger: Ledger, loop: LiveLoop, tmp_path: Path, tls: dict[str, TlsFiles]
) -> Iterator[RunningServer]:
    running = serve(ledger, tmp_path, "127.0.0.1:0", tls["server"])
    yield running
    running.stop(0)


def test_with_mutual_tls_the_certificate_says_who_files(
    tls_service: RunningServer, tls: dict[str, TlsFiles]
) -> None:
    """What the caller calls itself does not count."""
    with DeletionClient(tls_service.address, tls["operator"]) as client:
        assert submit(client, submitted_by="somebody else").submitted_by == "operator"


@pytest.mark.parametrize("who", ["stranger", "nobody", "plain text"])
def test_with_mutual_tls_others_are_turned_away(
    tls_service: RunningServer, tls: dict[str, TlsFiles], ledger: Ledger, who: str
) -> None:
    """A certificate of another authority, none at all, and a connection without TLS file nothing."""
    files = {"stranger": tls["stranger"], "nobody": TlsFiles(ca=tls["server"].ca), "plain text": None}
    with DeletionClient(tls_service.address, files[who], timeout_s=10) as client:  # noqa: SIM117  the refusal is the call's
        with pytest.raises(ServiceUnavailable):
            submit(client)
    assert ledger.list_requests() == []


# The process


@pytest.mark.slow
def test_serve_keeps_requests_over_kill_9_and_stops_on_sigterm(loop: LiveLoop, tmp_path: Path) -> None:
    """A request answered before the kill is there after a restart; SIGTERM ends the service with code 0."""
    first, address = _start_service(tmp_path)
    with DeletionClient(address) as client:
        answered = submit(client)
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=60)
    second, address = _start_service(tmp_path)
    with DeletionClient(address) as client:
        assert client.get(answered.id) == answered
    second.send_signal(signal.SIGTERM)
    output, _ = second.communicate(timeout=60)
    assert (second.returncode, output) == (0, "The deletion service has stopped.\n")


def _start_service(state_dir: Path) -> "tuple[subprocess.Popen[str], str]":
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from server.cli import main; main()",
            "serve",
            "--state-dir",
            str(state_dir),
            "--address",
            "127.0.0.1:0",
        ],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r"listens at (\S+)\.$", line)
    assert found is not None, line
    return process, found.group(1)
