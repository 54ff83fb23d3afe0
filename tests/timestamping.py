"""An authority for timestamps (RFC 3161) of one's own, by `openssl ts` over real HTTP."""

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

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
    """An authority that answers at `url`; `file` is its root certificate.

    is_away: it answers 503. num_asked: how often it was.
    """

    directory: Path
    url: str = ""
    is_away: bool = False
    num_asked: int = 0

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
        root = ["-subj", "/CN=Own root", "-extensions", "ca", "-keyout", "ca.key", "-out", "ca.pem"]
        self.openssl("req", "-x509", *key, *root)
        self.openssl("req", *key, "-subj", "/CN=Own clock", "-keyout", "tsa.key", "-out", "tsa.csr")
        self.openssl(
            "x509", "-req", "-in", "tsa.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
            "-extfile", "tsa.cnf", "-extensions", "signer", "-out", "tsa.pem",
        )  # fmt: skip

    def reply(self, query: bytes) -> bytes:
        (self.directory / "query").write_bytes(query)
        self.openssl("ts", "-reply", "-config", "tsa.cnf", "-queryfile", "query", "-out", "reply")
        return (self.directory / "reply").read_bytes()


@contextmanager
def running_authority(directory: Path) -> Iterator[Authority]:
    """An authority that keeps its keys in the new `directory` and answers at its URL; below it, /away is 503."""
    made = Authority(directory)
    made.prepare()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            made.num_asked += 1
            reply = made.reply(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(503 if made.is_away or self.path != "/" else 200)
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    made.url = f"http://127.0.0.1:{server.server_port}/"
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
