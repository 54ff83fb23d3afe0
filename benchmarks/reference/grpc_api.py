"""The gRPC API, from the text of deletion.proto: its comments are the descriptions."""

import re
from collections.abc import Iterator
from pathlib import Path

import server.service
from benchmarks.tables import table
from server.service.calls import CALLS

_PROTO = Path(server.service.__path__[0], "deletion.proto")
_BLOCK = re.compile(r"(?ms)((?:^//[^\n]*\n)*)^message (\w+) \{(.*?)\}$")
_RPC = re.compile(r"((?:^  //[^\n]*\n)*)^  rpc (\w+)\((.*?)\) returns \((.*?)\);", re.MULTILINE)
_FIELD = re.compile(r"^ +((?:repeated |optional )?[\w.<>, ]+?) (\w+) = \d+;(?: *// *(.*))?$", re.MULTILINE)


def lines() -> Iterator[str]:
    """Yield a table of the calls, then one per message."""
    text = _PROTO.read_text(encoding="utf-8")
    rows = [
        (
            f"`{name}`",
            f"{_linked(asked)} → {_linked(answer)}",
            _words(said),
            ", ".join(sorted(CALLS[name].roles)),
        )
        for said, name, asked, answer in _RPC.findall(text)
    ]
    yield from table(["call", "messages", "what it does", "roles"], rows)
    for said, name, body in _BLOCK.findall(text):
        yield from ("", f"## {name}", "")
        if said:
            yield from (_words(said), "")
        fields = [(f"`{field}`", _linked(kind), _cell(of)) for kind, field, of in _FIELD.findall(body)]
        yield from table(["field", "type", "meaning"], fields) if fields else ["It has no fields."]


def _words(comment: str) -> str:
    return _cell(" ".join(line.strip().removeprefix("//").strip() for line in comment.splitlines()))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _linked(kind: str) -> str:
    """Return a type with a link where it is a message of this file."""
    before, _, name = kind.rpartition(" ")
    is_own = name[0].isupper() and "." not in name
    return f"{before} [{name}](#{name.lower()})".strip() if is_own else kind.replace("<", "&lt;")
