"""What methods that are prepared for keep of training rounds: in memory, under Flower's stock `start()`.

The live loop keeps what they need in files (`server.federation.preparations`).
"""

from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from strategies.messages import by_preparation, name_for_preparations
from strategies.round_plan import RoundRules
from unlearning.methods.method import PreparedStore
from unlearning.methods.preparation import FederatedRound
from unlearning.requests import Exclusions
from unlearning.runtime.stores import MemoryStore, Store


def own_arrays(name: str, done: FederatedRound) -> FederatedRound:
    """Return a round with those arrays alone that clients returned for the method `name`."""
    return replace(
        done, arrays={client: by_preparation(found).get(name, {}) for client, found in done.arrays.items()}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptInMemory(RoundRules):
    """Rules that keep in memory what the methods need, as long as this object lives."""

    stores: dict[str, Store] = field(default_factory=dict)

    def to_send(self, number: int, forgotten: Exclusions) -> dict[str, NDArray[Any]]:
        """Return what travels with the model in the training round `number`, under the names it travels by.

        Raises:
            ConfigurationError: what a preparation's options name cannot be used on this machine.
        """
        return name_for_preparations(
            {
                name: prepared.preparation.send(prepared.options, number, self._store(name), forgotten)
                for name, prepared in self.prepared.items()
            }
        )

    def keep(self, done: FederatedRound) -> None:
        """Let every method keep what it needs of a training round.

        Raises:
            StoreFull: a bound of a method's options would be exceeded.
        """
        for name, prepared in self.prepared.items():
            prepared.preparation.keep(prepared.options, own_arrays(name, done), self._store(name))

    def kept_for(self, name: str) -> PreparedStore | None:
        """Return what was kept for a method; None where it is not prepared for."""
        if name not in self.prepared:
            return None
        return PreparedStore(
            options=self.prepared[name].options, store=self._store(name), next_store=MemoryStore()
        )

    def forget(self, name: str, rewritten: Store) -> None:
        """Keep what the method `name` has rewritten, if anything; what others keep still carries what is forgotten."""
        own = rewritten if rewritten.list_keys() else self._store(name)
        self.stores.clear()
        self.stores[name] = own

    def _store(self, name: str) -> Store:
        return self.stores.setdefault(name, MemoryStore())
