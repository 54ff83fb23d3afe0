"""What a peer must not forget when it stops: the items it has, its own requests' targets, its model.

    state-dir/peer/items/NNNNNN.npz     one item each, in the order of arrival
    state-dir/peer/quarantine/          items that were in the journal and do not fit, under the names they had
    state-dir/peer/targets.json         what this peer's own requests forget; never leaves it
    state-dir/peer/model.npz            model, round, and the corrections that the model includes: one file, so that
                                        a correction is added exactly once whenever the process dies

Every change is durable when the call returns.
"""

import itertools
import json
from dataclasses import dataclass, field
from logging import getLogger
from pathlib import Path
from typing import Annotated, Protocol

from client.peer.gossip import GossipMessage
from unlearning.errors import CheckpointError, VersionMismatch
from unlearning.parameters import Vector
from unlearning.protocol import claim_directory
from unlearning.requests import Forget
from unlearning.runtime.archive import pack, unpack
from unlearning.runtime.durable_files import make_private, sync_directory, write_atomically
from unlearning.runtime.json_codec import Sorted, from_plain, to_plain

_log = getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerModel:
    """A peer's model (d,), the rounds it has seen, and the ids of the corrections that it includes.

    has_trained: whether this peer's own examples ever took part in it.
    """

    round: int
    vector: Vector
    applied: Annotated[frozenset[str], Sorted] = frozenset()
    has_trained: bool = False


class Journal(Protocol):
    """The place where a peer keeps these."""

    def items(self) -> list[GossipMessage]:
        """Return all items, in the order of arrival."""

    def put(self, item: GossipMessage) -> None:
        """Keep an item, in the place of the one with the same id if there is one."""

    def quarantine(self, item: GossipMessage) -> str:
        """Put an item aside for whoever wants to look at it; return where it is then."""

    def targets(self) -> dict[str, Forget]:
        """Return what this peer's own requests forget, by request id."""

    def put_target(self, request_id: str, forget: Forget) -> None:
        """Keep what a request forgets."""

    def model(self) -> PeerModel | None:
        """Return the model that was kept last; None at first."""

    def put_model(self, model: PeerModel) -> None:
        """Keep the model, in the place of the last one."""


@dataclass(slots=True)
class MemoryJournal:
    """A journal that lives as long as the object: for simulation."""

    _items: dict[str, GossipMessage] = field(default_factory=dict)
    _targets: dict[str, Forget] = field(default_factory=dict)
    _model: PeerModel | None = None

    def items(self) -> list[GossipMessage]:
        """Return all items, in the order of arrival."""
        return list(self._items.values())

    def put(self, item: GossipMessage) -> None:
        """Keep an item."""
        self._items[item.id] = item

    def quarantine(self, item: GossipMessage) -> str:
        """Drop the item."""
        del self._items[item.id]
        return "nowhere"

    def targets(self) -> dict[str, Forget]:
        """Return what this peer's own requests forget."""
        return dict(self._targets)

    def put_target(self, request_id: str, forget: Forget) -> None:
        """Keep what a request forgets."""
        self._targets[request_id] = forget

    def model(self) -> PeerModel | None:
        """Return the model that was kept last."""
        return self._model

    def put_model(self, model: PeerModel) -> None:
        """Keep the model."""
        self._model = model


class DirectoryJournal:
    """A journal in a peer's state directory."""

    def __init__(self, state_dir: Path) -> None:
        claim_directory(state_dir)
        self._directory = state_dir / "peer"
        self._numbers: dict[str, int] = {}

    def items(self) -> list[GossipMessage]:
        """Return all items, in the order of arrival; put a file aside that cannot be read: neighbours send it again."""
        found = []
        for path in sorted((self._directory / "items").glob("*.npz")):
            try:
                item, number = unpack(GossipMessage, path.read_bytes()), int(path.stem)
            except VersionMismatch as exc:
                raise VersionMismatch(f"{path} cannot be read. {exc}") from exc
            except Exception as exc:  # noqa: BLE001 - anything may be wrong with a file
                _log.error("%s was moved to %s: %s", path, self._aside(path), exc)
                continue
            self._numbers[item.id] = number
            found.append(item)
        return found

    def quarantine(self, item: GossipMessage) -> str:
        """Move the item's file aside."""
        number = self._numbers.pop(item.id)
        return str(self._aside(self._directory / "items" / f"{number:06}.npz"))

    def _aside(self, path: Path) -> Path:
        directory = self._directory / "quarantine"
        make_private(directory)
        kept = directory / path.name
        attempts = itertools.count(1)
        while kept.exists():
            kept = directory / f"{path.stem}-{next(attempts)}{path.suffix}"
        path.rename(kept)
        sync_directory(directory)
        sync_directory(path.parent)
        return kept

    def put(self, item: GossipMessage) -> None:
        """Keep an item."""
        number = self._numbers.get(item.id, max(self._numbers.values(), default=-1) + 1)
        write_atomically(self._directory / "items" / f"{number:06}.npz", pack(item))
        self._numbers[item.id] = number

    def targets(self) -> dict[str, Forget]:
        """Return what this peer's own requests forget.

        Raises:
            CheckpointError: the file is damaged; training on would break a promise.
        """
        path = self._directory / "targets.json"
        if not path.exists():
            return {}
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            return {request_id: from_plain(Forget, value) for request_id, value in values.items()}
        except (ValueError, AttributeError, TypeError) as exc:
            raise CheckpointError(
                f"{path} is damaged ({exc}). Restore it; this peer must not train."
            ) from exc

    def put_target(self, request_id: str, forget: Forget) -> None:
        """Keep what a request forgets."""
        values = {known: to_plain(value) for known, value in self.targets().items()}
        content = json.dumps({**values, request_id: to_plain(forget)}).encode()
        write_atomically(self._directory / "targets.json", content)

    def model(self) -> PeerModel | None:
        """Return the model that was kept last; None at first.

        Raises:
            CheckpointError: the file is damaged.
        """
        path = self._directory / "model.npz"
        if not path.exists():
            return None
        try:
            return unpack(PeerModel, path.read_bytes())
        except (OSError, CheckpointError) as exc:
            raise CheckpointError(f"{path} cannot be read ({exc}). Restore the state directory.") from exc

    def put_model(self, model: PeerModel) -> None:
        """Keep the model."""
        write_atomically(self._directory / "model.npz", pack(model))
