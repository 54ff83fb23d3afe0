"""The round of secure aggregation that was asked last, in a file: sites answer none twice, whatever becomes of it."""

from dataclasses import replace
from pathlib import Path

from server.federation.state import FederationState
from unlearning.runtime.durable_files import write_atomically


class AskedRound:
    """The number of a round, in a file from its first message until a checkpoint has what came of it.

    What is not in a checkpoint (this process died, nothing could be saved, a deletion's attempt failed) is asked for
    again under the next number, for sites may have answered this one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._number = 0

    def resume(self, state: FederationState) -> None:
        """Read the file, before going on from a checkpoint's `state`: where there is one its round was not ended."""
        if self._path.exists():
            text = self._path.read_text(encoding="ascii", errors="replace")
            self._number = max(state.round + 1, int(text) if text.isdecimal() else 0)

    def begin(self, number: int) -> None:
        """Note that the round `number` is asked from now on.

        Raises:
            OSError: the file cannot be written.
        """
        write_atomically(self._path, str(number).encode())
        self._number = number

    def end(self, saved: FederationState) -> None:
        """Erase the file of a round, if the `saved` state has what came of it."""
        if 0 < self._number <= saved.round:
            self._path.unlink(missing_ok=True)
            self._number = 0

    def skip(self, state: FederationState) -> FederationState:
        """Return `state` with a number after which none was asked yet."""
        return state if state.round >= self._number else replace(state, round=self._number)
