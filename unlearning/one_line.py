"""Foreign texts as lines for logs and messages."""

import re
from collections.abc import Sequence

MAX_LINE = 500
"""Characters of a foreign text that are logged and written down; a stack trace's beginning and end fit."""
_BLANKS = re.compile(r"\s+")


def as_line(text: object, limit: int = MAX_LINE) -> str:
    """Foreign text as one line of printable characters, not longer than `limit`; of a long one, both ends.

    Line breaks, terminal escapes and characters that change the direction of writing do not get through.
    """
    whole = text if isinstance(text, str) else repr(text)
    if len(whole) > limit:
        head = limit * 2 // 5
        # cut before and after: blanks that are joined must not let the cost depend on the sender
        whole = f"{whole[: 4 * head]} … {whole[-4 * (limit - head) :]}"
    line = "".join(letter if letter.isprintable() else "\ufffd" for letter in _BLANKS.sub(" ", whole).strip())
    if len(line) > limit:
        head = limit * 2 // 5
        line = f"{line[:head]} … {line[head + 3 - limit :]}"
    return line


def list_first(items: Sequence[str], most: int, separator: str = ", ") -> str:
    """Return the first `most` items as a list in words, and how many more there are."""
    more = len(items) - most
    return separator.join(items[:most]) + (f" and {more:,} more" if more > 0 else "")
