"""What the server keeps for methods that are prepared for during training, and since when.

    STATE_DIR/kept/METHOD/GENERATION/CLIENT/ROUND.npz

A method whose unlearning rewrites history writes a new generation. With the unlearned model every store goes on in a
new generation, the rewritten one or a copy, for the model may still be held by the gate and all go back. What counts is
what the checkpoint names. So neither a failed attempt nor a crash leaves a trace. What is kept of a client is
erased when the deletion of its data completes.
"""

import os
import shutil
from dataclasses import dataclass, replace
from logging import getLogger
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from server.federation.state import FIRST, ActiveDeletion, FederationState
from strategies.messages import name_for_preparations
from strategies.round_rules import RoundRules, own_arrays
from unlearning.errors import CheckpointError, ConfigurationError, StoreFull
from unlearning.methods.method import PreparedStore
from unlearning.methods.preparation import FederatedRound
from unlearning.requests import Exclusions
from unlearning.runtime.stores import DirectoryStore
from unlearning.untrusted import reason_of

_log = getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparations(RoundRules):
    """The server's half of what the setting `prepare` switches on; `directory` is that of all stores."""

    directory: Path

    def resume(self, state: FederationState) -> FederationState:
        """Return `state` as a run begins with it: what is newly switched on counts from now, what is off is erased.

        Entries of rounds that no checkpoint knows are erased, those rounds will be done again; so is what an
        attempt has left that is not under way any more.
        """
        for path in self.directory.glob("*"):
            if path.name not in self.prepared or path.name not in state.prepared_since:
                shutil.rmtree(path)
        since = {name: state.prepared_since.get(name, state.training_rounds) for name in self.prepared}
        generations = {name: state.generations[name] for name in self.prepared if name in state.generations}
        state = replace(state, prepared_since=since, generations=generations)
        for name in self.prepared:
            store = self.store(name, state.generation_of(name))
            needed = {store.directory}
            if state.deletion is not None:
                needed.add(self._next(state.deletion))
                before = state.deletion.before
                needed |= {self.directory / name / before.generations.get(name, FIRST)} if before else set()
            for path in (self.directory / name).glob("*"):
                if path not in needed:
                    shutil.rmtree(path)
            for client in store.list_keys():
                store.erase_rounds(client, beyond=state.round)
        return state

    def store_for(self, deletion: ActiveDeletion, generation: str | None) -> PreparedStore | None:
        """Return what the deletion's method can use; None where it is not prepared for, and has no `generation`."""
        if deletion.method not in self.prepared or generation is None:
            return None
        return PreparedStore(
            preparation=self.prepared[deletion.method],
            store=self.store(deletion.method, generation),
            next_store=DirectoryStore(self._next(deletion)),
        )

    def discard(self, deletion: ActiveDeletion) -> None:
        """Erase what this attempt has written: it begins again, or has failed."""
        for path in (self._next(deletion), *(self._copy(deletion, name) for name in self.prepared)):
            shutil.rmtree(path, ignore_errors=True)

    def to_send(self, state: FederationState, number: int) -> dict[str, NDArray[Any]]:
        """Return what travels with the model in the training round `number`, under the names it travels by.

        Raises:
            ConfigurationError: what a preparation's options name cannot be used on this machine.
        """
        return name_for_preparations(
            {
                name: one.send(number, self.store(name, state.generation_of(name)), state.left_out)
                for name, one in self.prepared.items()
                if name in state.prepared_since
            }
        )

    def after_round(self, state: FederationState, done: FederatedRound) -> FederationState:
        """Let every method keep what it needs of a round that the next checkpoint will know."""
        for name, prepared in self.prepared.items():
            if name not in state.prepared_since:
                continue
            try:
                store = self.store(name, state.generation_of(name))
                prepared.keep(own_arrays(name, done), store)
            except (ConfigurationError, CheckpointError, OSError):
                raise  # the operator's to mend; what was kept is whole
            except Exception as exc:  # noqa: BLE001 - an answer that passed `check` may still be none that it can use
                is_foreseen = isinstance(exc, StoreFull)
                _log.error("%s can no longer be served: %s", name, reason_of(exc), exc_info=not is_foreseen)
                since = {key: value for key, value in state.prepared_since.items() if key != name}
                state = replace(state, prepared_since=since)
        return state

    def branch(self, state: FederationState, deletion: ActiveDeletion) -> FederationState:
        """Return `state` with the unlearned model and new stores: what its method wrote, if anything; else copies."""
        generations = dict(state.generations)
        for name in self.prepared:
            if name == deletion.method and DirectoryStore(self._next(deletion)).list_keys():
                generations[name] = self._next(deletion).name
                continue
            copy = self._copy(deletion, name)
            current = self.store(name, state.generations.get(name)).directory
            shutil.rmtree(copy, ignore_errors=True)
            if current.exists():
                shutil.copytree(current, copy, copy_function=_link)
            generations[name] = copy.name
        return replace(state, generations=generations)

    def erase(self, state: FederationState, *, moves_model: bool) -> FederationState:
        """Erase what was kept of what the deletion forgets, and generations that no longer count.

        A method that says that it has lost what it needs is not prepared any more. moves_model: whether the deletion's
        method changes the model.
        """
        assert state.deletion is not None, "only a deletion erases"
        before = self.num_bytes()
        forgotten = Exclusions().including(state.deletion.targets)
        since = dict(state.prepared_since)
        for name, prepared in self.prepared.items():
            current = self.store(name, state.generations.get(name))
            if not prepared.survives(is_own=name == state.deletion.method, moves_model=moves_model):
                shutil.rmtree(self.directory / name, ignore_errors=True)
                since.pop(name, None)
                continue
            for path in (self.directory / name).glob("*"):
                if path != current.directory:
                    shutil.rmtree(path)
            is_prepared = prepared.erase(
                current,
                forgotten,
                until=state.deletion.started_round,
                rewritten=current.directory == self._next(state.deletion),
            )
            if not is_prepared:
                since.pop(name, None)
        _log.info("%d byte(s) erased that were kept for methods.", before - self.num_bytes())
        return replace(state, prepared_since=since)

    def num_bytes(self, name: str = "") -> int:
        """Return how much room the stores take on disk, all together or one method's."""
        return sum(path.stat().st_size for path in (self.directory / name).glob("**/*.npz"))

    def store(self, name: str, generation: str | None) -> DirectoryStore:
        """Return one generation of a method's store; the first where none is named."""
        return DirectoryStore(self.directory / name / (generation or FIRST))

    def _next(self, deletion: ActiveDeletion) -> Path:
        return self.directory / deletion.method / f"{deletion.started_round}-{deletion.attempt}"

    def _copy(self, deletion: ActiveDeletion, name: str) -> Path:
        return self.directory / name / f"{deletion.started_round}-{deletion.attempt}-copy"


def _link(source: str, destination: str) -> None:
    """Give a file a second name: entries are replaced and never changed, until a deletion that counts erases all."""
    try:
        os.link(source, destination)
    except OSError:  # a file system without links
        shutil.copy2(source, destination)
