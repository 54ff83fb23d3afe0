"""The shadow federations on disk: one file, the state after their newest round.

    STATE_DIR/shadows/0000000017.npz    the models after round 17, and what they were trained without

They were trained on data that may be asked to be forgotten, so they count only as long as nothing was
forgotten since they began; `server.federation.shadow_federations` erases them with a deletion and they begin again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from logging import getLogger
from pathlib import Path

from server.federation.state import PhaseCost
from unlearning.errors import CheckpointError
from unlearning.parameters import Vector
from unlearning.requests import Exclusions
from unlearning.runtime.archive import pack, unpack
from unlearning.runtime.durable_files import sync_directory, write_atomically

_log = getLogger(__name__)

DIRECTORY = "shadows"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowState:
    """All shadow federations after `rounds` rounds.

    models: by their number, each (d,). seed: of the run that they belong to.
    exclusions: what was forgotten when they began.
    took_part: in how many rounds each client did.
    cost: what their training has cost so far.
    """

    models: tuple[Vector, ...]
    seed: int
    rounds: int = 0
    exclusions: Exclusions = field(default_factory=Exclusions)
    took_part: Mapping[str, int] = field(default_factory=dict)
    cost: PhaseCost = field(default_factory=PhaseCost)


class ShadowStore:
    """The newest state of the shadow federations in a state directory."""

    def __init__(self, state_dir: Path) -> None:
        self._directory = state_dir / DIRECTORY

    def rounds(self) -> int:
        """Return how many rounds the stored shadow federations have had; 0 where there are none."""
        return max((int(path.stem) for path in self._files()), default=0)

    def save(self, state: ShadowState) -> None:
        """Write `state` in the place of what is there; when this returns it survives a crash.

        Raises:
            OSError: the directory cannot be written to.
        """
        path = self._directory / f"{state.rounds:010d}.npz"
        write_atomically(path, pack(state))
        for older in self._files():
            if older != path:
                older.unlink(missing_ok=True)

    def load(self) -> ShadowState | None:
        """Return the stored state; None where there is none, or it is damaged, for they can be trained again."""
        for path in sorted(self._files(), reverse=True):
            try:
                return unpack(ShadowState, path.read_bytes())
            except CheckpointError as exc:
                _log.warning("The shadow models in %s cannot be read and are trained again: %s", path, exc)
        return None

    def erase(self) -> int:
        """Erase all that is there; returns how many files. When this returns they are gone permanently."""
        files = self._files()
        for path in files:
            path.unlink(missing_ok=True)
        if files:
            sync_directory(self._directory)
        return len(files)

    def _files(self) -> list[Path]:
        return list(self._directory.glob("[0-9]*.npz"))
