"""What somebody does to a deletion service so that others get no answer; each runs until its standard input ends.

python -m benchmarks.speed.deletion_attacks half-open HOST:PORT CERTIFICATES HOST:METRICS_PORT
"""

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc

from server.ledger import LimitExceeded
from server.service import deletion_pb2 as pb
from server.service.client import DeletionClient
from server.service.statuses import ServiceUnavailable
from strategies.tls_files import TlsFiles
from unlearning.errors import RequestError
from unlearning.requests import Granularity, Target

SERVICE = "/flower_unlearning.deletion.v1.DeletionService"
ATTACKERS = [f"attacker-{number}" for number in range(8)]
STRANGER = "stranger"
PAUSE_S = 0.2


class Attack:
    """Where the service is, and the certificates of eight clients and of a caller without a role."""

    def __init__(self, address: str, certificates: Path, metrics: str) -> None:
        self.address = address
        self.metrics = metrics
        self._certificates = certificates

    def tls(self, name: str) -> TlsFiles:
        """Return the certificate of an attacker."""
        directory = self._certificates
        return TlsFiles(directory / "ca.crt", directory / f"{name}.pem", directory / f"{name}.key")

    def channel(self, name: str) -> grpc.Channel:
        """Return a connection of an attacker's own."""
        options = [("grpc.use_local_subchannel_pool", 1)]
        return grpc.secure_channel(self.address, self.tls(name).channel_credentials(), options)


def half_open(attack: Attack) -> None:
    """Open sixty-four calls that never send their message: eight clients have eight each, begun again as they end."""

    def silence() -> Iterator[bytes]:
        threading.Event().wait()
        yield b""

    def keep_open(name: str) -> None:
        call: Any = attack.channel(name).stream_unary(f"{SERVICE}/GetRequest", None, None)
        calls = [call.future(silence()) for _ in range(8)]
        while True:
            time.sleep(PAUSE_S)
            calls = [one if not one.done() else call.future(silence()) for one in calls]

    each(keep_open, ATTACKERS)


def big_messages(attack: Attack) -> None:
    """Send twelve messages of 100 MiB at once from a caller without a role, again and again."""
    content = bytes(100 * 1024 * 1024)

    def send(_: str) -> None:
        call: Any = attack.channel(STRANGER).unary_unary(f"{SERVICE}/GetRequest", None, None)
        while True:
            with contextlib.suppress(grpc.RpcError):
                call(content, timeout=60)
            time.sleep(PAUSE_S)

    each(send, [STRANGER] * 12)


def idle_connections(attack: Attack) -> None:
    """Open eleven hundred connections that say nothing, each made again when it is closed."""
    host, _, port = attack.address.rpartition(":")
    keep_open((host, int(port)), 1100)


def keep_open(place: tuple[str, int], count: int) -> None:
    """Keep so many silent connections open, for ever."""
    open_ones: dict[int, socket.socket] = {}
    while True:
        for number in range(count):
            if number not in open_ones:
                with contextlib.suppress(OSError):
                    open_ones[number] = socket.create_connection(place, timeout=1)
                    open_ones[number].setblocking(False)
        for number, one in list(open_ones.items()):
            try:
                is_closed = one.recv(1) == b""
            except BlockingIOError:
                is_closed = False
            except OSError:
                is_closed = True
            if is_closed:
                open_ones.pop(number).close()
        time.sleep(PAUSE_S)


def watchers(attack: Attack) -> None:
    """Let eight clients watch a request of their own four times each."""

    def watch(name: str) -> None:
        with DeletionClient(attack.address, attack.tls(name)) as client:
            request = client.submit(
                Target(Granularity.CLIENT, name), method="puf-special", idempotency_key=name
            )

            def follow() -> None:
                while True:
                    with contextlib.suppress(ServiceUnavailable, LimitExceeded):
                        for _ in client.watch(request.id):
                            pass
                    time.sleep(PAUSE_S)

            each(lambda _: follow(), [name] * 4)

    each(watch, ATTACKERS)


def trickling(attack: Attack) -> None:
    """Let forty HTTP connections send a byte now and then."""
    host, _, port = attack.metrics.rpartition(":")

    def trickle(_: str) -> None:
        while True:
            with contextlib.suppress(OSError), socket.create_connection((host, int(port))) as connection:
                while True:
                    connection.sendall(b"G")
                    time.sleep(1)
            time.sleep(PAUSE_S)

    each(trickle, ["anybody"] * 40)


def flood(attack: Attack) -> None:
    """Let eight clients call as fast as they are answered, refused or not."""

    def call_on(name: str) -> None:
        call: Any = attack.channel(name).unary_unary(f"{SERVICE}/GetRequest", None, None)
        while True:
            with contextlib.suppress(grpc.RpcError):
                call(pb.GetRequestRequest(request_id="r-000001").SerializeToString(), timeout=60)

    each(call_on, ATTACKERS)


def long_lists(attack: Attack) -> None:
    """Let two clients file and withdraw lists of 100,000 sample ids within their quota."""

    def file_on(name: str) -> None:
        ids = frozenset(f"image-{number:0>10}" for number in range(100_000))
        with DeletionClient(attack.address, attack.tls(name)) as client:
            while True:
                with contextlib.suppress(ServiceUnavailable, RequestError):
                    filed = client.submit(Target(Granularity.SAMPLE, name, ids), method="puf-special")
                    client.change("cancel", filed.id)
                time.sleep(PAUSE_S)

    each(file_on, ATTACKERS[:2])


ATTACKS: dict[str, Callable[[Attack], None]] = {
    "half-open": half_open,
    "big-messages": big_messages,
    "idle-connections": idle_connections,
    "watchers": watchers,
    "trickling": trickling,
    "flood": flood,
    "long-lists": long_lists,
}


def each(act: Callable[[str], None], names: Sequence[str]) -> None:
    """Do something for each of these names at once, in a thread each; return when all are done."""
    threads = [threading.Thread(target=act, args=(name,), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    _, name, address, certificates, metrics = sys.argv
    attack = Attack(address, Path(certificates), metrics)
    threading.Thread(target=ATTACKS[name], args=(attack,), daemon=True).start()
    sys.stdin.read()
