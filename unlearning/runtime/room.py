"""How much memory this process can still take."""

from contextlib import suppress
from pathlib import Path

import psutil

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
