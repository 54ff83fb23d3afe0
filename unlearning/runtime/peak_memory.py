"""Peak memory: how much a process held at most while it did a piece of work.

`Memory` is one process's figure, `PeakMemory` that of a phase of a deletion over all who took part, and
`MemoryWatch` takes them. docs/report.md says what the figures mean.
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

import torch

try:
    import resource
except ImportError:  # Windows has none; the figure is unknown there
    resource = None  # type: ignore[assignment]

MAX_BYTES = 2**63 - 1
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


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
    """Watches this process's peak memory from entering until leaving.

    Several may watch in one process, as where clients and server share it: each has the peak of the whole
    process during its own time. On Linux the kernel's high-water mark is set back on entering, which costs
    some 30 microseconds. Where that is impossible the mark is that since the process began.
    """

    def __init__(self) -> None:
        self._peak = Memory()

    def __enter__(self) -> Self:
        with _lock:
            _credit()
            _open.append(self)
            _set_back()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _lock:
            _credit()
            _open.remove(self)

    def peak(self) -> Memory:
        """Return the peak so far, or, after leaving, of the time watched; unknown before entering."""
        with _lock:
            if self in _open:
                _credit()
            return self._peak


_lock = threading.Lock()
_open: list[MemoryWatch] = []


def _credit() -> None:
    """Let every watch know of the marks, which the next one sets back."""
    if not _open:
        return
    marks = Memory(resident_bytes=_resident(), device_bytes=_on_devices())
    for watch in _open:
        watch._peak = watch._peak.joined(marks)


def _set_back() -> None:
    with suppress(OSError):  # not Linux, or forbidden in this container: the mark is that since the beginning
        _CLEAR.write_bytes(b"5")  # sets VmHWM to what is resident now: proc_pid_clear_refs(5)
    if _uses_cuda():
        for device in range(torch.cuda.device_count()):
            torch.cuda.reset_peak_memory_stats(device)


def _resident() -> int | None:
    """Return the high-water mark of resident memory in bytes."""
    with suppress(OSError):  # not Linux
        for line in _STATUS.read_bytes().splitlines():
            if line.startswith(b"VmHWM:"):
                return int(line.split()[1]) * 1024
    if resource is None:
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # since the process began; it never falls
    return most if sys.platform == "darwin" else most * 1024


def _uses_cuda() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]  # torch does not type it


def _on_devices() -> int | None:
    """Return the most bytes that tensors took on any CUDA device; None where CUDA was not used."""
    if not _uses_cuda():
        return None
    return max(torch.cuda.max_memory_allocated(device) for device in range(torch.cuda.device_count()))


def _larger(name: str, *both: _Figures) -> int | None:
    known = [value for value in (getattr(one, name) for one in both) if value is not None]
    return max(known, default=None)


def _checked(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_BYTES:
        return None
    return value
