"""The HTTP API, from its own OpenAPI document."""

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.tables import table
from server.service.calls import CALLS
from server.service.openapi import OPERATIONS, openapi


def lines() -> Iterator[str]:
    """Yield a table of the operations, then one per schema."""
    rows = [
        (
            f"`{one.method.upper()} {one.path}`",
            one.summary,
            one.status,
            ", ".join(sorted(CALLS[one.call].roles)) if one.call else "no token",
        )
        for one in OPERATIONS
    ]
    yield from table(["call", "what it does", "answers", "roles"], rows)
    document = openapi()
    filter_ = document["paths"]["/requests"]["get"]["parameters"]
    yield from ("", "## Filter of lists", "")
    yield from table(["parameter", "type"], [(f"`{one['name']}`", _type(one["schema"])) for one in filter_])
    for name, schema in sorted(document["components"]["schemas"].items()):
        yield from ("", f"## {name}", "")
        yield from _schema(schema)


def _schema(schema: Mapping[str, Any]) -> Iterator[str]:
    if text := " ".join(schema.get("description", "").split()):
        yield from (text, "")
    required = schema.get("required", ())
    rows = [
        (f"`{name}`", _type(of) + (", required" if name in required else ""), _said(of))
        for name, of in schema.get("properties", {}).items()
    ]
    yield from table(["field", "type", "meaning"], rows) if rows else [f"It is {_type(schema)}."]


def _said(schema: Mapping[str, Any]) -> str:
    return " ".join(schema.get("description", "").split()).replace("|", "\\|").replace("<", "&lt;")


def _type(schema: Mapping[str, Any]) -> str:
    """Return a schema's type in a few words."""
    match schema:
        case {"$ref": str(place)}:
            name = place.rpartition("/")[2]
            return f"[{name}](#{name.lower()})"
        case {"const": value}:
            return f"`{value}`"
        case {"enum": values}:
            return " or ".join(f"`{value}`" for value in values)
        case {"anyOf": parts} | {"oneOf": parts}:
            return " or ".join(dict.fromkeys(map(_type, parts)))
        case {"type": "object"}:
            return "an object"
        case {"type": "array", "items": items}:
            return f"list of {_type(items)}"
        case {"type": "string", "format": kind}:
            return f"string ({kind})"
        case {"type": kind}:
            return str(kind)
    return "any"
