"""Hosts of their own on one machine: Linux network namespaces on a switch, with cables that can be pulled.

Each host has its own address, its own loopback and its own ports. One more namespace is the switch, with a
bridge, so that nothing is left in the machine's own network. Needs root, `ip`, veth, bridge and TUN; no
traffic control: the cable that is slow and lossy is made here, because few kernels have netem.
"""

import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.waiting import WAIT_S

ADDRESSES = "192.0.2"
"""The first three numbers of every host's address: a network for documentation, in which no host is real."""

_DEVICE = "eth0"  # on each host
_MAX_FRAME_BYTES = 65_536
_PROBE_TIMEOUT_S = 3.0
# From linux/if_tun.h.
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
_LISTENING = "0A"  # the state in /proc/net/tcp

_PROBE = """
import socket, sys, time
started = time.monotonic()
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=float(sys.argv[3])).close()
    said = "open"
except ConnectionRefusedError:
    said = "refused"
except OSError:
    said = "no answer"
print(time.monotonic() - started, said)
"""


class NetworkUnavailable(Exception):
    """This machine does not let us make namespaces, or lacks a kind of device; the message says which."""


class BadCable:
    """A cable that can be slow and lossy in both directions; perfect until told otherwise.

    It carries Ethernet frames between two devices of ours by a thread. `delay_s` is the time each way and
    `loss` the share of frames that never arrive, drawn from `generator`.
    """

    def __init__(self, ends: tuple[str, str], generator: random.Random) -> None:
        """Make the two devices, named `ends`; the caller moves them to where they belong.

        Raises:
            NetworkUnavailable: this machine has no TUN device for us.
        """
        self.delay_s, self.loss = 0.0, 0.0
        self.num_lost = 0
        self._generator = generator
        self._files: list[int] = []
        self._stop_reading, self._stop_writing = os.pipe()
        try:
            for name in ends:
                self._files.append(os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK))
                wanted = struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI)
                fcntl.ioctl(self._files[-1], _TUNSETIFF, wanted)
        except OSError as exc:
            self._close_files()
            raise NetworkUnavailable(f"No TAP device can be made: {exc}.") from exc
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Take the cable and its two devices away."""
        os.write(self._stop_writing, b"x")
        self._thread.join()
        self._close_files()

    def _close_files(self) -> None:
        for number in (*self._files, self._stop_reading, self._stop_writing):
            os.close(number)

    def _carry(self) -> None:
        first, second = self._files
        other = {first: second, second: first}
        on_the_way: list[tuple[float, int, int, bytes]] = []  # when it arrives, count, where, frame
        count = 0
        while True:
            wait_s = max(0.0, on_the_way[0][0] - time.monotonic()) if on_the_way else None
            readable, _, _ = select.select([*other, self._stop_reading], [], [], wait_s)
            if self._stop_reading in readable:
                return
            for source in readable:
                frame = _frame_from(source)
                if not frame:
                    continue
                if self._generator.random() < self.loss:
                    self.num_lost += 1
                    continue
                count += 1
                heapq.heappush(on_the_way, (time.monotonic() + self.delay_s, count, other[source], frame))
            while on_the_way and on_the_way[0][0] <= time.monotonic():
                _, _, target, frame = heapq.heappop(on_the_way)
                _send_frame(target, frame)


class Network:
    """Hosts by name, each with an address, on one switch; leaving the context takes all of it away.

    Processes in the namespaces must have ended before. `on_bad_cable` names the host whose cable `impaired`
    can make slow and lossy, if any; all other cables are veth pairs.

    Raises (on entering):
        NetworkUnavailable: this machine cannot do it; nothing of it is left.
    """

    def __init__(self, hosts: Sequence[str], *, on_bad_cable: str = "", seed: int = 0) -> None:
        self.hosts = tuple(hosts)
        self._bad = on_bad_cable
        self._seed = seed
        self._prefix = f"fu{os.getpid()}"
        self._made: list[str] = []
        self._cable: BadCable | None = None

    def __enter__(self) -> Self:
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove the namespaces and with them all devices."""
        if self._cable is not None:
            self._cable.close()
            self._cable = None
        while self._made:
            _run(["ip", "netns", "delete", self._made.pop()])

    # --- what runs where

    def address(self, host: str) -> str:
        """The host's IPv4 address."""
        return f"{ADDRESSES}.{self.hosts.index(host) + 1}"

    def command_on(self, host: str, command: Sequence[str]) -> list[str]:
        """The command that runs `command` on this host, in the same process."""
        return ["ip", "netns", "exec", self._namespace(host), *command]

    def namespace_file(self, host: str) -> Path:
        """The file by which a process may enter the host's network."""
        return Path("/run/netns") / self._namespace(host)

    def probe(self, source: str, address: str, port: int) -> str:
        """What a TCP connection from host `source` comes to: `open`, `refused` or `no answer`."""
        return self._connect(source, address, port)[1]

    def handshake_s(self, source: str, address: str, port: int) -> float:
        """The seconds that a TCP connection from host `source` takes to be made: at least one way and back."""
        return float(self._connect(source, address, port)[0])

    def listening_ports(self, host: str) -> set[int]:
        """The TCP ports on which programs of this host listen, on whatever address."""
        table = _run(self.command_on(host, ["cat", "/proc/net/tcp", "/proc/net/tcp6"]))
        rows = [line.split() for line in table.splitlines()]
        return {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == _LISTENING}

    def num_retransmitted(self, host: str) -> int:
        """How many TCP segments this host has had to send again since it is there."""
        lines = _run(self.command_on(host, ["cat", "/proc/net/snmp"])).splitlines()
        names, values = (line.split() for line in lines if line.startswith("Tcp:"))
        return int(dict(zip(names, values, strict=True))["RetransSegs"])

    # --- the cables

    def cut(self, host: str) -> None:
        """Switch the host's port off: no packet passes, and the host sees that its cable is dead."""
        _ip("-n", self._namespace("switch"), "link", "set", f"port-{host}", "down")

    def restore(self, host: str) -> None:
        """Switch the host's port on again."""
        _ip("-n", self._namespace("switch"), "link", "set", f"port-{host}", "up")

    @contextmanager
    def impaired(self, *, delay_s: float, loss: float) -> Iterator[BadCable]:
        """Within the context the bad cable delays every frame and loses some, in both directions."""
        cable = self._cable
        assert cable is not None, "the network is entered, and one of its cables is bad"
        cable.delay_s, cable.loss = delay_s, loss
        try:
            yield cable
        finally:
            cable.delay_s, cable.loss = 0.0, 0.0

    # --- inside

    def _connect(self, source: str, address: str, port: int) -> list[str]:
        words = [sys.executable, "-I", "-S", "-c", _PROBE, address, str(port), str(_PROBE_TIMEOUT_S)]
        return _run(self.command_on(source, words)).strip().split(" ", 1)

    def _namespace(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def _make(self) -> None:
        switch = self._namespace("switch")
        for name in (*self.hosts, "switch"):
            _ip("netns", "add", self._namespace(name))
            self._made.append(self._namespace(name))
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        for host in self.hosts:
            namespace, port = self._namespace(host), f"port-{host}"
            if host == self._bad:
                self._lay_bad_cable(namespace, switch, port)
            else:
                veth = ["type", "veth", "peer", "name", _DEVICE, "netns", namespace]
                _ip("link", "add", port, "netns", switch, *veth)
            _ip("-n", switch, "link", "set", port, "master", "bridge")
            _ip("-n", switch, "link", "set", port, "up")
            _ip("-n", namespace, "link", "set", "lo", "up")
            _ip("-n", namespace, "address", "add", f"{self.address(host)}/24", "dev", _DEVICE)
            _ip("-n", namespace, "link", "set", _DEVICE, "up")

    def _lay_bad_cable(self, namespace: str, switch: str, port: str) -> None:
        ends = (f"{self._prefix}a", f"{self._prefix}b")
        self._cable = BadCable(ends, random.Random(self._seed))
        for end, where, name in ((ends[0], namespace, _DEVICE), (ends[1], switch, port)):
            _ip("link", "set", end, "netns", where)
            _ip("-n", where, "link", "set", end, "name", name)


@contextmanager
def network_or_skip(hosts: Sequence[str], *, on_bad_cable: str = "") -> Iterator[Network]:
    """A network; where this machine cannot do it, or what is done with it, the test is skipped."""
    try:
        with Network(hosts, on_bad_cable=on_bad_cable, seed=1) as made:
            yield made
    except NetworkUnavailable as exc:
        pytest.skip(f"no namespaces on this machine (they need root): {exc}")


def _ip(*arguments: str) -> None:
    try:
        _run(["ip", *arguments])
    except (OSError, subprocess.SubprocessError) as exc:
        said = (getattr(exc, "stderr", None) or str(exc)).strip()
        raise NetworkUnavailable(f"`ip {' '.join(arguments)}` does not work here: {said}") from exc


def _run(command: Sequence[str]) -> str:
    return subprocess.run(list(command), capture_output=True, text=True, timeout=WAIT_S, check=True).stdout


def _frame_from(source: int) -> bytes:
    try:
        return os.read(source, _MAX_FRAME_BYTES)
    except OSError:  # none is there after all, or the device is down
        return b""


def _send_frame(target: int, frame: bytes) -> None:
    try:
        os.write(target, frame)
    except OSError:  # the device is down or its queue is full: the frame is lost, as on any cable
        return
