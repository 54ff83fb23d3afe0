"""What a peer must not forget when it stops: the items it has, its own requests' targets, its model; and its refusals.

    state-dir/peer/items/NNNNNN.npz     one item each, in the order of arrival
    state-dir/peer/quarantine/          items that were in the journal and do not fit, under the names they had
    state-dir/peer/targets.json         what this peer's own requests forget; never leaves it
    state-dir/peer/model.npz            model, round, and the corrections that the model includes: one file, so that
                                        a correction is added exactly once whenever the process dies
    state-dir/peer/refused.json         {sender: {"count": N, "last": REASON}}: what could not be accepted

Every change is durable when the call returns, except for refusals.
"""

import itertools
import json
import threading
from dataclasses import dataclass
from logging import getLogger
from pathlib import Path
from typing import Annotated, Any

from client.peer.gossip import GossipMessage
from unlearning.errors import CheckpointError, VersionMismatch
from unlearning.one_line import as_line
from unlearning.parameters import Vector
from unlearning.protocol import claim_directory
from unlearning.requests import Forget
from unlearning.runtime.archive import pack, unpack
from unlearning.runtime.durable_files import make_private, sync_directory, write_atomically
from unlearning.runtime.json_codec import Sorted, from_plain, to_plain
from unlearning.untrusted import reason_of

_log = getLogger(__name__)

_MAX_SENDERS = 100
_OTHERS = "(others)"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerModel:
    """A peer's model (d,), the rounds it has seen, and the ids of the corrections that it includes.

    has_trained: whether this peer's own examples ever took part in it.
    """

    round: int
    vector: Vector
    applied: Annotated[frozenset[str], Sorted] = frozenset()
    has_trained: bool = False


class Journal:
    """The journal in a peer's state directory; without one (simulation) nothing is written, and nothing comes back.

    targets: what this peer's own requests forget, by request id. model: the model that was kept last; None at first.

    Raises:
        CheckpointError: the targets or the model are damaged; training on would break a promise.
    """

    def __init__(self, state_dir: Path | None = None) -> None:
        self.targets: dict[str, Forget] = {}
        self.model: PeerModel | None = None
        self._directory: Path | None = None
        self._numbers: dict[str, int] = {}
        if state_dir is not None:
            claim_directory(state_dir)
            self._directory = state_dir / "peer"
            self.targets = _read_targets(self._directory / "targets.json")
            self.model = _read_model(self._directory / "model.npz")

    def items(self) -> list[GossipMessage]:
        """Return all items, in the order of arrival; put a file aside that cannot be read: neighbours send it again."""
        found: list[GossipMessage] = []
        for path in [] if self._directory is None else sorted((self._directory / "items").glob("*.npz")):
            try:
                item, number = unpack(GossipMessage, path.read_bytes()), int(path.stem)
            except VersionMismatch as exc:
                raise VersionMismatch(f"{path} cannot be read. {exc}") from exc
            except Exception as exc:  # noqa: BLE001 - anything may be wrong with a file
                _log.error("%s was moved to %s: %s", path, _move_aside(path), exc)
                continue
            self._numbers[item.id] = number
            found.append(item)
        return found

    def quarantine(self, item: GossipMessage) -> Path:
        """Move the file of one of `items` aside, for an operator to look at; return where it is then."""
        assert self._directory is not None
        return _move_aside(self._directory / "items" / f"{self._numbers.pop(item.id):06}.npz")

    def put(self, item: GossipMessage) -> None:
        """Keep an item, in the place of the one with the same id if there is one."""
        number = self._numbers.get(item.id, max(self._numbers.values(), default=-1) + 1)
        if self._directory is not None:
            write_atomically(self._directory / "items" / f"{number:06}.npz", pack(item))
            self._numbers[item.id] = number

    def put_target(self, request_id: str, forget: Forget) -> None:
        """Keep what a request forgets."""
        targets = {**self.targets, request_id: forget}
        if self._directory is not None:
            write_atomically(self._directory / "targets.json", json.dumps(to_plain(targets)).encode())
        self.targets = targets

    def put_model(self, model: PeerModel) -> None:
        """Keep the model, in the place of the last one."""
        if self._directory is not None:
            write_atomically(self._directory / "model.npz", pack(model))
        self.model = model


def _move_aside(path: Path) -> Path:
    directory = path.parent.parent / "quarantine"
    make_private(directory)
    kept = directory / path.name
    attempts = itertools.count(1)
    while kept.exists():
        kept = directory / f"{path.stem}-{next(attempts)}{path.suffix}"
    path.rename(kept)
    sync_directory(directory)
    sync_directory(path.parent)
    return kept


def _read_targets(path: Path) -> dict[str, Forget]:
    if not path.exists():
        return {}
    try:
        return from_plain(dict[str, Forget], json.loads(path.read_text(encoding="utf-8")))
    except ValueError as exc:
        raise CheckpointError(f"{path} is damaged ({exc}). Restore it; this peer must not train.") from exc


def _read_model(path: Path) -> PeerModel | None:
    if not path.exists():
        return None
    try:
        return unpack(PeerModel, path.read_bytes())
    except (OSError, CheckpointError) as exc:
        raise CheckpointError(f"{path} cannot be read ({exc}). Restore the state directory.") from exc


class Refusals:
    """How much of each sender a peer has refused; may be used from any thread.

    A sender that is refused repeatedly costs a line in the log and a write each time its count has doubled.
    """

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / "peer" / "refused.json"
        self._counts = read_refusals(state_dir)
        self._lock = threading.Lock()

    def add(self, sender: str, error: Exception) -> str:
        """Count a refusal of this sender; return the reason in one line."""
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
    """Return what was refused, by sender; nothing where the file is missing or damaged: it is for information."""
    try:
        values = json.loads((state_dir / "peer" / "refused.json").read_text(encoding="utf-8"))
        return {
            str(name): {"count": int(one["count"]), "last": str(one["last"])} for name, one in values.items()
        }
    except (AttributeError, KeyError, OSError, TypeError, ValueError):
        return {}
