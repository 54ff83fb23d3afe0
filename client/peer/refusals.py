"""Who sent what could not be taken: counted by sender, with the last reason, in the log and beside the journal.

A sender that is refused again and again costs a line and a write each time its count has doubled.

    state-dir/peer/refused.json     {sender: {"count": N, "last": REASON}}
"""

import json
import threading
from logging import getLogger
from pathlib import Path
from typing import Any

from unlearning.runtime.durable_files import write_atomically
from unlearning.untrusted import as_line, reason_of

_log = getLogger(__name__)

_MAX_SENDERS = 100
_OTHERS = "(others)"


class Refusals:
    """The refusals of a peer; may be used from any thread."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / "peer" / "refused.json"
        self._counts = read_refusals(state_dir)
        self._lock = threading.Lock()

    def add(self, sender: str, error: Exception) -> str:
        """Count a refusal of this sender; the reason in one line."""
        name, reason = as_line(sender, 80), reason_of(error)
        with self._lock:
            if name not in self._counts and len(self._counts) >= _MAX_SENDERS:
                name = _OTHERS
            count = int(self._counts.get(name, {"count": 0})["count"]) + 1
            self._counts[name] = {"count": count, "last": reason}
            if count & (count - 1) == 0:
                _log.warning("Peer %r is refused (%d so far): %s", name, count, reason)
                try:
                    write_atomically(self._path, json.dumps(self._counts, indent=1).encode())
                except OSError as exc:
                    _log.error("%s cannot be written: %s", self._path, exc)
        return reason


def read_refusals(state_dir: Path) -> dict[str, Any]:
    """Return what was refused, by sender; nothing where the file is not there or damaged: it is for information."""
    try:
        values = json.loads((state_dir / "peer" / "refused.json").read_text(encoding="utf-8"))
        return {
            str(name): {"count": int(one["count"]), "last": str(one["last"])} for name, one in values.items()
        }
    except (AttributeError, KeyError, OSError, TypeError, ValueError):
        return {}
