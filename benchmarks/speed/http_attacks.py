"""Attacks on the HTTP API so that others get no answer; each runs until its standard input ends.

python -m benchmarks.speed.http_attacks http-flood HOST:PORT CERTIFICATES
"""

import contextlib
import itertools
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.speed.deletion_attacks import ATTACKERS, PAUSE_S, each

TRICKLE_S = 0.5
TIMEOUT_S = 30.0


class HttpAttack:
    """Where the HTTP API is, and the tokens of eight clients."""

    def __init__(self, address: str, certificates: Path) -> None:
        host, _, port = address.rpartition(":")
        self.place = (host, int(port))
        self._tls = ssl.create_default_context(cafile=certificates / "ca.crt")
        self._tls.check_hostname = False
        self._certificates = certificates

    @contextmanager
    def connection(self) -> Iterator[ssl.SSLSocket]:
        """Yield a connection under TLS."""
        with (
            socket.create_connection(self.place, timeout=TIMEOUT_S) as plain,
            self._tls.wrap_socket(plain) as secure,
        ):
            yield secure

    def head(self, name: str, *lines: str) -> bytes:
        """Return the head of a filing with a client's token, or with an unknown one."""
        file = self._certificates / f"{name}.token"
        token = file.read_text() if file.exists() else "fu_of_nobody"
        head = ["POST /requests HTTP/1.1", "Host: here", f"Authorization: Bearer {token}", *lines, "", ""]
        return "\r\n".join(head).encode()


def slow_heads(attack: HttpAttack) -> None:
    """Let three hundred HTTP connections finish TLS and send a byte of their head now and then."""
    letters = itertools.chain(attack.head("nobody")[:-4], itertools.repeat(ord("x")))
    _trickle(attack, ["nobody"] * 300, b"", bytes(itertools.islice(letters, 10_000)))


def slow_bodies(attack: HttpAttack) -> None:
    """Let eight clients have sixteen HTTP calls each, whose bodies come byte by byte."""
    names = [name for name in ATTACKERS for _ in range(16)]
    _trickle(attack, names, None, b" " * 10_000)


def _trickle(attack: HttpAttack, names: Sequence[str], head: bytes | None, rest: bytes) -> None:
    def trickle(name: str) -> None:
        begun = attack.head(name, f"Content-Length: {len(rest)}") if head is None else head
        while True:
            with contextlib.suppress(OSError), attack.connection() as connection:
                connection.sendall(begun)
                for letter in rest:
                    connection.sendall(bytes([letter]))
                    time.sleep(TRICKLE_S)
            time.sleep(PAUSE_S)

    each(trickle, names)


def flood(attack: HttpAttack) -> None:
    """Let two hundred HTTP connections call with an unknown token, as fast as they are answered."""
    _call_on(attack, ["nobody"] * 200, b"{}")


def unread_answers(attack: HttpAttack) -> None:
    """Let two hundred HTTP connections call with an unknown token, and stay connected after their refusals."""

    def stay(name: str) -> None:
        while True:
            with contextlib.suppress(OSError), attack.connection() as connection:
                connection.sendall(attack.head(name, "Content-Length: 0"))
                time.sleep(TIMEOUT_S)

    each(stay, ["nobody"] * 200)


def many_calls(attack: HttpAttack) -> None:
    """Let eight clients make sixteen HTTP calls each at a time, as fast as they are answered, refused or not."""
    _call_on(attack, [name for name in ATTACKERS for _ in range(16)], b"{}")


def huge_bodies(attack: HttpAttack) -> None:
    """Send bodies of 100 MiB over HTTP, from eight clients and four without a token, again and again."""
    _call_on(attack, [*ATTACKERS, *["nobody"] * 4], bytes(100 * 1024 * 1024))


def huge_parts(attack: HttpAttack) -> None:
    """Send bodies without end over HTTP, in parts that do not say how many there are, from eight clients."""
    part = b"100000\r\n" + bytes(0x100000) + b"\r\n"

    def send(name: str) -> None:
        while True:
            with contextlib.suppress(OSError), attack.connection() as connection:
                connection.sendall(attack.head(name, "Transfer-Encoding: chunked"))
                while True:
                    connection.sendall(part)
            time.sleep(PAUSE_S)

    each(send, ATTACKERS)


def _call_on(attack: HttpAttack, names: Sequence[str], body: bytes) -> None:
    def call_on(name: str) -> None:
        head = attack.head(name, f"Content-Length: {len(body)}")
        while True:
            with contextlib.suppress(OSError), attack.connection() as connection:
                connection.sendall(head)
                connection.sendall(body)
                while connection.recv(65536):
                    pass

    each(call_on, names)


HTTP_ATTACKS: dict[str, Callable[[HttpAttack], None]] = {
    "http-slow-heads": slow_heads,
    "http-slow-bodies": slow_bodies,
    "http-flood": flood,
    "http-unread-answers": unread_answers,
    "http-many-calls": many_calls,
    "http-huge-bodies": huge_bodies,
    "http-huge-parts": huge_parts,
}


if __name__ == "__main__":
    _, name, address, certificates = sys.argv
    made = HttpAttack(address, Path(certificates))
    threading.Thread(target=HTTP_ATTACKS[name], args=(made,), daemon=True).start()
    sys.stdin.read()
