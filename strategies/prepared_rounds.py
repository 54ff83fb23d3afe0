"""What methods that are prepared for change about a training round: the part that both drivers share.

The live loop keeps what they need in files (`server.federation.preparations`), Flower's stock `start()` in memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from strategies.messages import by_preparation, name_for_preparations
from strategies.round_plan import RoundRules
from unlearning.methods.method import PreparedStore
from unlearning.methods.preparation import FederatedRound, Prepared
from unlearning.parameters import Vector, weighted_mean
from unlearning.requests import Exclusions
from unlearning.stores import Arrays, MemoryStore, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRounds(RoundRules):
    """Rules of the methods in `prepared`, by name."""

    prepared: Mapping[str, Prepared]

    @property
    def keeps_models(self) -> bool:
        """Whether a method may want every client's model of a round."""
        return bool(self.prepared)

    def combine(self, before: Vector, models: Mapping[str, tuple[int, Vector]]) -> Vector:
        """Make one model of a round's local ones: FedAvg's mean, unless a method trains in a way of its own."""
        for prepared in self.prepared.values():
            if prepared.preparation.replaces_training:
                return prepared.preparation.combine(prepared.options, before, models)
        return weighted_mean(models)

    def takes_part(self, client_id: str, number: int) -> bool:
        """Tell whether a client is asked in the training round `number`."""
        return all(
            prepared.preparation.takes_part(prepared.options, client_id, number)
            for prepared in self.prepared.values()
        )

    def check(self, sent: Arrays, returned: Arrays) -> None:
        """Refuse a client's answer that lacks what methods need for what they sent, or has it wrong.

        Raises:
            UpdateRefused: what is wrong.
        """
        answers = by_preparation(returned)
        for name, own in by_preparation(sent).items():
            prepared = self.prepared[name]
            prepared.preparation.check(prepared.options, own, answers.get(name, {}))


def own_arrays(name: str, done: FederatedRound) -> FederatedRound:
    """Return a round with those arrays alone that clients returned for the method `name`."""
    return replace(
        done, arrays={client: by_preparation(found).get(name, {}) for client, found in done.arrays.items()}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptInMemory(PreparedRounds):
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
