"""Who can reach the deletion service: addresses, ports, mutual TLS; and the life of its process."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from server.api.client import DeletionClient
from server.api.errors import ServiceUnavailable
from server.api.server import RunningServer, serve
from server.api.tls import TlsFiles
from server.ledger import Ledger
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
    authority, strange = _authority("ca"), _authority("strange ca")
    files = {}
    for name, signer in (("server", authority), ("operator", authority), ("stranger", strange)):
        certificate, key = _certificate(name, signer)
        for suffix, content in (("crt", certificate), ("key", key), ("ca", _pem(authority[0]))):
            (directory / f"{name}.{suffix}").write_bytes(content)
        files[name] = TlsFiles(*(directory / f"{name}.{suffix}" for suffix in ("ca", "crt", "key")))
    return files


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


def _authority(name: str) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    return _builder(name, name, key).add_extension(
        x509.BasicConstraints(ca=True, path_length=None), critical=True
    ).sign(key, hashes.SHA256()), key


def _certificate(
    name: str, signer: tuple[x509.Certificate, ec.EllipticCurvePrivateKey]
) -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = signer[0].subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
    builder = _builder(name, str(issuer), key).add_extension(
        x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]),
        critical=False,
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return _pem(builder.sign(signer[1], hashes.SHA256())), private


def _builder(name: str, issuer: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


# The process


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
