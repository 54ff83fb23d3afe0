"""Looks for bytes in files, as somebody would who took the disk."""

from pathlib import Path


def files_with(directory: Path, text: str | bytes) -> list[Path]:
    """The files at and below `directory` that hold `text` as it is."""
    wanted = text.encode() if isinstance(text, str) else text
    files = (path for path in sorted(directory.rglob("*")) if path.is_file() and not path.is_symlink())
    return [path for path in files if wanted in path.read_bytes()]
