"""The shell blocks of the guides to set up hosts, each with the host on which it is given and what it says.

A block stands below a marker in bold, `**On the server:**`, which says where it is given. A block of kind `text`
right after it holds lines of what is said, in their order; `…` stands for whatever differs.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from tests.integration.conftest import REPOSITORY

GUIDES = REPOSITORY / "docs"


class Place(StrEnum):
    """Where a block is given, as its marker says it."""

    EVERY_HOST = "On every host"
    SERVER = "On the server"
    SERVER_FOR_EACH_SITE = "On the server, for each site"
    SERVER_UNTIL = "On the server, again until it says so"
    EACH_SITE = "At each site"
    ONE_SITE = "At one site"
    ONE_SITE_UNTIL = "At one site, again until it says so"
    CONTAINERS = "With containers"
    """Not given by the test, which has none."""


UNTIL = (Place.SERVER_UNTIL, Place.ONE_SITE_UNTIL)


@dataclass(frozen=True, kw_only=True)
class Block:
    """One block. marker: what says where it is given, empty if nothing does. line: where it begins in the guide."""

    page: str
    marker: str
    commands: str
    said: tuple[str, ...]
    line: int

    def replaced(self, values: Mapping[str, str]) -> "Block":
        """The block with what a reader puts in place of the guide's names."""

        def put(text: str) -> str:
            for name, value in values.items():
                text = text.replace(name, value)
            return text

        return replace(self, commands=put(self.commands), said=tuple(map(put, self.said)))

    def missing_in(self, output: str) -> str:
        """The first line of what the guide prints that `output` does not say in its place; empty if it says all."""
        lines = iter(" ".join(line.split()) for line in output.splitlines())
        for wanted in self.said:
            pattern = re.compile(".*".join(map(re.escape, " ".join(wanted.split()).split("…"))))
            if not any(pattern.search(line) for line in lines):
                return wanted
        return ""


_FENCE = re.compile(r"^\s*```(\w*)$")
_MARKER = re.compile(r"\*\*([^*]+):\*\*")


def blocks(guide: Path) -> list[Block]:
    """The shell blocks of one guide in their order."""
    found: list[Block] = []
    marker = ""
    for line, kind, text in _parts(guide.read_text(encoding="utf-8")):
        if kind == "prose":
            marker = next(iter(_MARKER.findall(text)), marker)
            if text.startswith("## "):
                marker = ""
        elif kind == "sh":
            found.append(Block(page=guide.stem, marker=marker, commands=text, said=(), line=line))
            marker = ""
        elif kind == "text" and found:
            said = tuple(filter(None, map(str.strip, text.splitlines())))
            found[-1] = replace(found[-1], said=said)
    return found


def _parts(text: str) -> Iterator[tuple[int, str, str]]:
    """Each line of prose and each fenced block: where it begins, its kind and its text, without its indentation."""
    kind, indent, held, began = "", 0, [""], 0
    for number, line in enumerate(text.splitlines(), 1):
        fence = _FENCE.match(line)
        if fence and kind:
            yield began, kind, "\n".join(held)
            kind = ""
        elif fence:
            kind, indent, held, began = fence[1] or "text", line.index("`"), [], number
        elif kind:
            held.append(line[indent:])
        else:
            yield number, "prose", line
