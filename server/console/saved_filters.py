"""Filters of the list of requests that a user has saved by a name: a private file of this account, for every console.

A filter is the query of the list's address, so the file holds what was searched for.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from unlearning.errors import InvalidRequest
from unlearning.runtime.durable_files import make_private, write_atomically

MAX_FILTERS, MAX_NAME = 50, 40


@dataclass(frozen=True, slots=True)
class SavedFilters:
    """The filters in a file, by name; a file that cannot be read has none."""

    path: Path

    def all(self) -> dict[str, str]:
        """Return the query of each filter, in the order in which they were saved."""
        with suppress(OSError, ValueError):
            found = json.loads(self.path.read_text(encoding="utf-8"))
            if isinstance(found, dict):
                return {str(name): str(query) for name, query in found.items()}
        return {}

    def save(self, name: str, query: str) -> None:
        """Keep a filter; one of the same name is replaced.

        Raises:
            InvalidRequest: the name is none, or there are too many.
        """
        saved = {**self.all(), name: query}
        if not name.isprintable() or not 0 < len(name) <= MAX_NAME or len(saved) > MAX_FILTERS:
            raise InvalidRequest(
                f"A filter has a name of 1 to {MAX_NAME} characters, and {MAX_FILTERS} can be saved; nothing was.",
                code="filter-name",
            )
        self._write(saved)

    def delete(self, name: str) -> None:
        """Remove a filter, if it is there."""
        self._write({key: query for key, query in self.all().items() if key != name})

    def _write(self, saved: Mapping[str, str]) -> None:
        make_private(self.path.parent)
        write_atomically(self.path, json.dumps(saved, indent=1, ensure_ascii=False).encode())
