"""The user's own comparisons of methods, from a file of the state directory into the ledger, where plans read them."""

import json
from logging import getLogger
from pathlib import Path

from server.ledger import OWN_COMPARISONS, Ledger, LedgerWriter
from server.requests.plan_data import Comparison
from unlearning.errors import DataError
from unlearning.runtime.json_codec import from_plain, to_plain

_log = getLogger(__name__)


class OwnRuns:
    """The file that `flower-unlearn bench --app` writes; it may come, change and go while the federation runs."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: int | None = -1

    def announce(self, ledger: Ledger, writer: LedgerWriter) -> None:
        """Write into the ledger what the file says, where it has changed; a damaged one counts for nothing."""
        changed = self._path.stat().st_mtime_ns if self._path.exists() else None
        if changed == self._seen:
            return
        self._seen = changed
        known = [to_plain(item) for item in self._read()] if changed else []
        if known != (ledger.facts().get(OWN_COMPARISONS) or []):
            writer.set_facts({OWN_COMPARISONS: known})

    def _read(self) -> list[Comparison]:
        try:
            return from_plain(list[Comparison], json.loads(self._path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, DataError) as exc:
            _log.error("%s is damaged (%s), so plans do without own runs: make it again.", self._path, exc)
            return []
