"""Peak memory: how much a process held at most while it did a piece of work.

`Memory` is one process's figure, `PeakMemory` that of a phase of a deletion over all who took part, and
`MemoryWatch` takes them. docs/reference-report.md says what the figures mean.
"""

import sys
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import reduce
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

GB = 1e9
MAX_BYTES = 2**63 - 1
LOOK_EVERY_S = 0.05
_STATUS = Path("/proc/self/status")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figures:
    """Figures in bytes; None: unknown."""

    def joined(self, other: Self) -> Self:
        """Return the larger of each, as far as known."""
        return replace(self, **{item.name: _larger(item.name, self, other) for item in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory(_Figures):
    """The most bytes that a process held: resident in the machine's memory, and of tensors on a CUDA device.

    None: unknown; for `device_bytes` also that no CUDA device was used.
    """

    resident_bytes: int | None = None
    device_bytes: int | None = None

    @classmethod
    def from_json(cls, value: Any) -> "Memory":
        """Return what an answer carries; whatever is no number of bytes is unknown, for a client may send anything."""
        given = value if isinstance(value, Mapping) else {}
        return cls(**{item.name: _checked(given.get(item.name)) for item in fields(cls)})


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakMemory(_Figures):
    """The most memory of any client and of the server in a phase; None where it is unknown.

    client_bytes, server_bytes: resident in the machine's memory, the whole process.
    client_device_bytes, server_device_bytes: of tensors on a CUDA device; None too where none was used.
    """

    client_bytes: int | None = None
    client_device_bytes: int | None = None
    server_bytes: int | None = None
    server_device_bytes: int | None = None

    @classmethod
    def of(cls, clients: Iterable[Memory], server: Memory) -> "PeakMemory":
        """Return that of an exchange, from each client's and the server's own."""
        most = reduce(Memory.joined, clients, Memory())
        return cls(
            client_bytes=most.resident_bytes,
            client_device_bytes=most.device_bytes,
            server_bytes=server.resident_bytes,
            server_device_bytes=server.device_bytes,
        )


class MemoryWatch:
    """Watches this process's memory from entering until leaving, by a look every 50 ms.

    Several may watch in one process, as where clients and server share it: each has the peak of the whole process
    during its own time.
    """

    def __init__(self) -> None:
        self._peak = Memory()
        self._mark = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._mark = _high_water_mark()
        self._look()
        self._thread = threading.Thread(target=self._watch, name="memory-watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._look()
        self._ended.set()

    def peak(self) -> Memory:
        """Return the peak so far, or, after leaving, of the time watched; unknown before entering."""
        if self._thread is not None and not self._ended.is_set():
            self._look()
        return self._peak

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_EVERY_S):
            self._look()

    def _look(self) -> None:
        now = memory_now()
        mark = _high_water_mark()
        if mark > self._mark:  # reached since entering, perhaps between two looks
            now = now.joined(Memory(resident_bytes=mark))
        with self._lock:
            self._peak = self._peak.joined(now)


def memory_now() -> Memory:
    """Return what this process holds at this moment; of the CUDA device where tensors take most."""
    torch: Any = sys.modules.get("torch")  # a process that has not imported it holds no tensor
    is_used = torch is not None and torch.cuda.is_initialized()
    devices = range(torch.cuda.device_count()) if is_used else ()
    return Memory(
        resident_bytes=psutil.Process().memory_info().rss,
        device_bytes=max((torch.cuda.memory_allocated(device) for device in devices), default=None),
    )


def _high_water_mark() -> int:
    """Return the most bytes that were resident since the process began; 0 where the kernel does not say (not Linux)."""
    with suppress(OSError):
        for line in _STATUS.read_bytes().splitlines():
            if line.startswith(b"VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def _larger(name: str, *both: _Figures) -> int | None:
    known = [value for value in (getattr(one, name) for one in both) if value is not None]
    return max(known, default=None)


def _checked(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_BYTES:
        return None
    return value


_OWN_GROUP, _GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def free_memory() -> int:
    """Return the bytes that this process can still take: of the machine, and of its control group where that has a
    limit (a container's, or a systemd unit's `MemoryMax`).
    """
    free: int = psutil.virtual_memory().available
    with suppress(OSError, ValueError, KeyError):  # no group, no limit, or not Linux
        [path] = [line[3:] for line in _OWN_GROUP.read_text().splitlines() if line.startswith("0::")]
        group = _GROUPS / path.lstrip("/")
        limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        held = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        pages_of_files = int(held["active_file"]) + int(held["inactive_file"])  # which give way
        return min(free, max(0, limit - used + pages_of_files))
    return free
