"""RFC 3161 timestamps of a certificate, by an authority of our own (openssl ts) over real HTTP."""

import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from server.certificate.checks import Outcome
from server.certificate.timestamp import check_timestamp, fetch_timestamp
from unlearning.errors import CertificateError

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the timestamps")

CONTENT = b'{"certificate":{},"signature":null}\n'
_CONFIG = """
[tsa]
default_tsa = own
[own]
serial = {0}/serial
signer_cert = {0}/tsa.pem
signer_key = {0}/tsa.key
signer_digest = sha256
default_policy = 1.2.3.4
digests = sha256, sha512
accuracy = secs:1
[ca]
basicConstraints = critical,CA:TRUE
keyUsage = critical,keyCertSign
[signer]
basicConstraints = critical,CA:FALSE
keyUsage = critical,digitalSignature
extendedKeyUsage = critical,timeStamping
[req]
distinguished_name = name
[name]
"""


@dataclass
class Authority:
    """An authority that answers at `url`; `file` is its root certificate."""

    directory: Path
    url: str = ""

    @property
    def file(self) -> Path:
        return self.directory / "ca.pem"

    def openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.directory, check=True, capture_output=True)

    def prepare(self) -> None:
        self.directory.mkdir()
        (self.directory / "tsa.cnf").write_text(_CONFIG.format(self.directory))
        (self.directory / "serial").write_text("01\n")
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-config", "tsa.cnf"]
        self.openssl(
            "req",
            "-x509",
            *key,
            "-subj",
            "/CN=Own root",
            "-extensions",
            "ca",
            "-keyout",
            "ca.key",
            "-out",
            "ca.pem",
        )
        self.openssl("req", *key, "-subj", "/CN=Own clock", "-keyout", "tsa.key", "-out", "tsa.csr")
        self.openssl(
            "x509", "-req", "-in", "tsa.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
            "-extfile", "tsa.cnf", "-extensions", "signer", "-out", "tsa.pem",
        )  # fmt: skip

    def reply(self, query: bytes) -> bytes:
        (self.directory / "query").write_bytes(query)
        self.openssl("ts", "-reply", "-config", "tsa.cnf", "-queryfile", "query", "-out", "reply")
        return (self.directory / "reply").read_bytes()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Authority]:
    made = Authority(tmp_path_factory.mktemp("tsa") / "own")
    made.prepare()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            reply = made.reply(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200 if self.path == "/" else 503)
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    made.url = f"http://127.0.0.1:{server.server_port}/"
    yield made
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def stamped(authority: Authority) -> Path:
    """A timestamp of CONTENT."""
    path = authority.directory / "certificate.tsr"
    path.write_bytes(fetch_timestamp(CONTENT, authority.url, authority.file))
    return path


def test_a_timestamp_says_when(authority: Authority, stamped: Path) -> None:
    """And whose certificate it was checked with."""
    check = check_timestamp(CONTENT, stamped, authority.file)
    assert check.outcome is Outcome.HOLDS
    assert "The file was there at 20" in check.sentence


def test_a_timestamp_of_another_file_is_refused(authority: Authority, stamped: Path) -> None:
    """One byte is enough."""
    assert check_timestamp(CONTENT + b" ", stamped, authority.file).outcome is Outcome.REFUSED


def test_a_timestamp_of_another_authority_is_refused(stamped: Path, tmp_path: Path) -> None:
    """An authority of the same name is another one."""
    other = Authority(tmp_path / "other")
    other.prepare()
    assert check_timestamp(CONTENT, stamped, other.file).outcome is Outcome.REFUSED


@pytest.mark.parametrize("position", [60, -10])
def test_a_timestamp_that_was_changed_is_refused(
    authority: Authority, stamped: Path, tmp_path: Path, position: int
) -> None:
    """In what it says or in its signature."""
    changed = bytearray(stamped.read_bytes())
    changed[position] ^= 1
    (tmp_path / "changed.tsr").write_bytes(changed)
    assert check_timestamp(CONTENT, tmp_path / "changed.tsr", authority.file).outcome is Outcome.REFUSED


def test_what_was_not_given_is_skipped_or_refused(stamped: Path) -> None:
    """No timestamp is no fault; a timestamp without its authority says nothing."""
    assert check_timestamp(CONTENT, None, None).outcome is Outcome.SKIPPED
    assert check_timestamp(CONTENT, stamped, None).outcome is Outcome.REFUSED


def test_an_authority_that_is_away_is_explained(authority: Authority) -> None:
    """An error of HTTP, a port where nobody is, and a file that holds no authority."""
    for url in (authority.url + "away", "http://127.0.0.1:1/", "no url"):
        with pytest.raises(CertificateError, match="No timestamp from"):
            fetch_timestamp(CONTENT, url, authority.file)
    with pytest.raises(CertificateError, match="holds no certificates"):
        fetch_timestamp(CONTENT, authority.url, authority.directory / "tsa.key")
