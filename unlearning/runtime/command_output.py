"""The output of a command whose reader goes away, as `head` does, or whose terminal has no UTF-8.

The command still does all that it was called for.
"""

import io
import os
import sys
from typing import Any, TextIO


class _Pipe(io.FileIO):
    """A file whose output is dropped from the moment that no process reads it any more."""

    is_read = True

    def write(self, content: Any) -> int:
        """Write, or drop, some of the content; return how many bytes of it."""
        try:
            return super().write(content)
        except BrokenPipeError:
            self.is_read = False
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())  # for child processes, too
            os.close(nowhere)
            return super().write(content)


def outlive_readers() -> None:
    """Let no missing reader, of output or messages, and no character end this process; for a program's start."""
    if sys.stdout is sys.__stdout__ and sys.stdout is not None:  # not what a caller of this process put there
        sys.stdout = _over_pipe(sys.stdout)
    if sys.stderr is sys.__stderr__ and sys.stderr is not None:
        sys.stderr = _over_pipe(sys.stderr)


def carries_unicode() -> bool:
    """Return whether the output's encoding has every character."""
    return (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")


def is_read() -> bool:
    """Return whether the output still has a reader, as far as the last write showed."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return not isinstance(raw, _Pipe) or raw.is_read


def _over_pipe(stream: TextIO) -> TextIO:
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_Pipe(stream.fileno(), "wb", closefd=False)),
        encoding=stream.encoding,
        errors="backslashreplace",  # where a name or a sign is not of the encoding, as Python does on stderr
        line_buffering=bool(stream.line_buffering),
    )
