"""Looks for bytes in files and in memory, as somebody would who took the disk or the whole machine."""

import re
from pathlib import Path


def files_with(directory: Path, text: str | bytes) -> list[Path]:
    """The files at and below `directory` that hold `text` as it is."""
    wanted = text.encode() if isinstance(text, str) else text
    files = (path for path in sorted(directory.rglob("*")) if path.is_file() and not path.is_symlink())
    return [path for path in files if wanted in path.read_bytes()]


def rows_in_memory(pid: int, rows: list[bytes]) -> int:
    """How many of these rows stand anywhere in what a process may read and write."""
    there: set[bytes] = set()
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            start, end = (int(part, 16) for part in re.match(r"(\w+)-(\w+)", line).groups())
            if " rw" not in line or "[v" in line:
                continue
            memory.seek(start)
            try:
                content = memory.read(end - start)
            except OSError:
                continue
            there |= {row for row in rows if row in content}
    return len(there)
