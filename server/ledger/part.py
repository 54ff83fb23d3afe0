"""What the parts of the ledger have in common: the database, the keys of sample ids, and reading page by page."""

from collections.abc import Callable, Iterator
from typing import TypeVar

from server.ledger.database import Database
from server.ledger.records import Event, RoundRecord
from unlearning.pseudonyms import SubjectKeys
from unlearning.requests import Target

_PAGE_SIZE = 1000
_Numbered = TypeVar("_Numbered", Event, RoundRecord)


class Part:
    """A part of the ledger, on a database that all parts share."""

    def __init__(self, database: Database, keys: SubjectKeys | None = None) -> None:
        self._database = database
        self._keys = keys

    @property
    def keys(self) -> SubjectKeys | None:
        """The keys of sample ids, if the ledger was opened with them."""
        return self._keys

    def key_target(self, target: Target) -> Target:
        """Return `target` as this ledger names samples."""
        return target if self._keys is None else self._keys.target(target)


def all_pages(read: Callable[[int, int], list[_Numbered]], *, after: int) -> Iterator[_Numbered]:
    """Yield what `read` gives after one number and another; a page that is not full is the last one."""
    while True:
        page = read(after, _PAGE_SIZE)
        yield from page
        if len(page) < _PAGE_SIZE:
            return
        after = page[-1].sequence
