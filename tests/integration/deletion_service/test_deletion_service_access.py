"""Who can reach the deletion service: addresses, ports, mutual TLS; and the life of its process."""

import errno
import os
import re
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from server.ledger import Ledger
from server.service.client import DeletionClient
from server.service.grpc_server import RunningServer, serve
from server.service.statuses import ServiceUnavailable
from strategies.installation import program
from strategies.tls_files import TlsFiles
from tests.certificates import Authority
from tests.deletion_service import LiveLoop, submit
from tests.integration.deletion_service.conftest import Start
from tests.raising import refuses
from tests.waiting import WAIT_S

# Who can reach it


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "example.org:0"])
def test_the_service_does_not_listen_to_other_machines_without_mutual_tls(
    ledger: Ledger, tmp_path: Path, identities: dict[str, TlsFiles], address: str
) -> None:
    """Neither in plain text nor with a certificate of its own only."""
    for files in (None, replace(identities["server"], ca=None)):
        with refuses("address"):
            serve(ledger, tmp_path, address, files)


def test_a_port_is_not_shared(service: RunningServer, ledger: Ledger, tmp_path: Path) -> None:
    """A second service on the same port would take half of the calls."""
    with refuses("address") as refusal:
        serve(ledger, tmp_path, service.address)
    assert os.strerror(errno.EADDRINUSE) in str(refusal.value)


def test_an_address_of_another_machine_is_said_so(
    ledger: Ledger, tmp_path: Path, identities: dict[str, TlsFiles]
) -> None:
    """And not that something else listens there."""
    with refuses("address") as refusal:
        serve(ledger, tmp_path, "192.0.2.1:9092", identities["server"])
    assert os.strerror(errno.EADDRNOTAVAIL) in str(refusal.value)


@pytest.mark.parametrize("who", ["stranger", "nobody", "plain text"])
def test_with_mutual_tls_others_are_turned_away(
    start: Start, authority: Authority, tmp_path: Path, ledger: Ledger, who: str
) -> None:
    """A certificate of another authority, none at all, and a connection without TLS file nothing."""
    strange = Authority(tmp_path, "strange-ca").certify("operator", "operator")
    files = {
        "stranger": replace(strange, ca=authority.file),
        "nobody": TlsFiles(ca=authority.file),
        "plain text": None,
    }
    with DeletionClient(start().address, files[who], timeout_s=10) as client:  # noqa: SIM117  the refusal is the call's
        with pytest.raises(ServiceUnavailable):
            submit(client)
    assert ledger.requests.select() == []


# The process


@pytest.mark.slow
def test_serve_keeps_requests_over_kill_9_and_stops_on_sigterm(loop: LiveLoop, tmp_path: Path) -> None:
    """A request answered before the kill is there after a restart; SIGTERM ends the service with code 0.

    Admission needs the methods; the service itself stays small.
    """
    first, address = _start_service(tmp_path)
    with DeletionClient(address) as client:
        answered = submit(client)
        assert client.methods()
    assert "libtorch" not in Path(f"/proc/{first.pid}/maps").read_text()
    assert psutil.Process(first.pid).memory_info().rss <= 150 * 2**20
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=WAIT_S)
    second, address = _start_service(tmp_path)
    with DeletionClient(address) as client:
        assert client.get(answered.id) == answered
    second.send_signal(signal.SIGTERM)
    output, _ = second.communicate(timeout=WAIT_S)
    assert (second.returncode, output) == (0, "The deletion service has stopped.\n")


def _start_service(state_dir: Path) -> "tuple[subprocess.Popen[str], str]":
    process = subprocess.Popen(
        [program("flower-unlearn"), "serve", "--state-dir", str(state_dir), "--address", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r"listens at (\S+)\.$", line)
    assert found is not None, line
    return process, found.group(1)
