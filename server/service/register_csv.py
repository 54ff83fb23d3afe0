"""Requests as lines of CSV, for the console's register and over HTTP (RFC 4180, UTF-8 with a byte order mark)."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from unlearning.requests import DeletionRequest, Target, facts_of

KIND = "text/csv"
COLUMNS = (
    *(
        item.name
        for item in fields(DeletionRequest)
        if item.name not in ("idempotency_key", "parameters", "result")
    ),
    *(item.name for item in fields(Target) if item.name != "sample_ids"),
    "certificate_sha256",
)
"""What the register says of each request."""


def register_row(item: DeletionRequest) -> dict[str, Any]:
    """Return what the register says of a request, by the names of its fields."""
    facts = facts_of(item) | {
        "ground": item.ground.describe() if item.ground else "",
        "certificate_sha256": item.result.get("certificate_sha256", ""),
    }
    return {name: facts[name] for name in COLUMNS}


def csv_parts(
    pages: Iterable[Iterable[DeletionRequest]], more: Mapping[str, Any] | None = None
) -> Iterator[bytes]:
    """Yield the file page after page. more: values of further columns, the same on each line.

    A text that a spreadsheet would take for a formula begins with an apostrophe.
    """
    same = more or {}
    text = io.StringIO("\ufeff", newline="")
    text.seek(0, io.SEEK_END)
    writer = csv.DictWriter(text, (*COLUMNS, *same))
    writer.writeheader()
    for page in pages:
        for item in page:
            row = register_row(item) | dict(same)
            writer.writerow({name: _harmless(value) for name, value in row.items()})
        yield text.getvalue().encode()
        text.seek(0)
        text.truncate()


def _harmless(value: object) -> object:
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return f"'{value}"
    return value
