"""What a caller is told whose connection fails: over TLS, or because no service is there."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from server.service.client import DeletionClient
from server.service.grpc_server import RunningServer
from server.service.statuses import ServiceUnavailable
from strategies.tls_files import TlsFiles
from tests.certificates import Authority
from tests.deletion_service import free_port
from tests.integration.deletion_service.conftest import Start


def told(address: str, tls: TlsFiles | None) -> tuple[str, str]:
    """The code and the message of a call's failure."""
    with DeletionClient(address, tls) as client, pytest.raises(ServiceUnavailable) as caught:
        client.methods()
    return caught.value.code, str(caught.value)


def test_absence_is_told_apart_from_tls_trouble(identities: dict[str, TlsFiles]) -> None:
    """With certificates and without."""
    address = f"127.0.0.1:{free_port()}"
    assert told(address, None)[0] == told(address, identities["operator"])[0] == "absent"


def test_each_trouble_with_tls_has_its_remedy(
    start: Start, identities: dict[str, TlsFiles], authority: Authority, tmp_path: Path
) -> None:
    """The wrong authority, no certificate, another authority's, no TLS, and a name that is not the server's."""
    own, other = identities["operator"], Authority(tmp_path, "other")
    address = start().address
    for tls, remedy in (
        (replace(own, ca=other.file), "give the federation's ca.crt"),
        (TlsFiles(authority.file), "does not accept your certificate, or you gave none"),
        (replace(other.certify("ada", "operator"), ca=authority.file), "does not accept your certificate"),
        (None, "it probably needs TLS"),
    ):
        code, said = told(address, tls)
        assert (code, remedy in said) == ("tls", True), said
    code, said = told(address.replace("127.0.0.1", "localhost"), own)
    assert (code, "not for this name" in said) == ("tls", True), said


def test_a_service_without_tls_says_so(service: RunningServer, identities: dict[str, TlsFiles]) -> None:
    """To a caller that gives certificates."""
    code, said = told(service.address, identities["operator"])
    assert (code, "without TLS" in said) == ("tls", True)


def test_the_command_prints_one_message_and_no_log_line_of_grpc(
    start: Start, identities: dict[str, TlsFiles]
) -> None:
    """gRPC writes to stderr by itself, past Python, where it is not told to be silent."""
    own, address = identities["operator"], start().address.replace("127.0.0.1", "localhost")
    files = ("--tls-ca", str(own.ca), "--tls-cert", str(own.certificate), "--tls-key", str(own.key))
    program = Path(sys.executable).with_name("flower-unlearn")
    done = subprocess.run(
        [program, "--server", address, *files, "list"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (4, "")
    assert len(done.stderr.splitlines()) == 1
