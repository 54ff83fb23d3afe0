"""What methods that are prepared for change about a training round, and what they keep of it.

Under Flower's own `start()` it is kept in memory; the live loop keeps it in files (`server.federation.preparations`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from strategies.messages import by_preparation, name_for_preparations
from unlearning.methods.method import PreparedStore
from unlearning.methods.preparation import (
    FederatedRound,
    Preparation,
    all_take_part,
    combine_prepared,
    training_by,
)
from unlearning.parameters import Models, Vector
from unlearning.requests import Exclusions
from unlearning.runtime.stores import Arrays, MemoryStore, Store
from unlearning.secure_aggregation.addends import SecureTotal
from unlearning.tasks.task import Task


def own_arrays(name: str, done: FederatedRound) -> FederatedRound:
    """Return a round with those arrays alone that clients returned for the method `name`."""
    return replace(
        done, arrays={client: by_preparation(found).get(name, {}) for client, found in done.arrays.items()}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRules:
    """What the methods in `prepared`, by name, change about a training round; without any, nothing."""

    prepared: Mapping[str, Preparation] = field(default_factory=dict)

    @property
    def keeps_models(self) -> bool:
        """Whether the outcome holds every client's model and arrays: as much memory as all models of a round."""
        return bool(self.prepared)

    def combine(self, before: Vector, models: Models) -> Vector:
        """Make one model of the one before and the local ones, each with its number of examples.

        FedAvg's mean, unless a method trains in a way of its own.
        """
        return combine_prepared(self.prepared.values(), before, models)

    def model_of_sum(self, task: Task, before: Vector, total: SecureTotal) -> Vector:
        """Make one model (d,) of the one before and the sum over clients.

        Raises:
            NumericalError: the sum gives none.
        """
        return training_by(self.prepared.values()).model_of_sum(task, before, total)

    @property
    def averages(self) -> bool:
        """Whether `combine` is FedAvg's mean, so that a count is a client's weight in it."""
        return all(type(one).combine is Preparation.combine for one in self.prepared.values())

    def takes_part(self, client_id: str, number: int) -> bool:
        """Tell whether a client takes part in the training round `number`."""
        return all_take_part(self.prepared.values(), client_id, number)

    def check(self, sent: Arrays, returned: Arrays) -> None:
        """Refuse a client's answer that lacks what methods need for what they sent, or has it wrong.

        Raises:
            UpdateRefused: what is wrong.
        """
        answers = by_preparation(returned)
        for name, own in by_preparation(sent).items():
            self.prepared[name].check(own, answers.get(name, {}))

    def arrays_for(self, number: int, forgotten: Exclusions) -> dict[str, NDArray[Any]]:
        """Return what travels with the model in the training round `number`, where the rules keep it themselves."""
        return {}

    def keep(self, done: FederatedRound) -> None:
        """Keep what is needed of a training round, where the rules keep it themselves."""

    def kept_for(self, name: str) -> PreparedStore | None:
        """Return what the rules themselves have kept for the method `name`, if anything."""
        return None

    def forget(self, name: str, rewritten: Store) -> None:
        """Keep what the method `name` has rewritten, if anything, and nothing else that carries what is forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptInMemory(RoundRules):
    """Rules that keep in memory what the methods need, as long as this object lives."""

    stores: dict[str, Store] = field(default_factory=dict)

    def arrays_for(self, number: int, forgotten: Exclusions) -> dict[str, NDArray[Any]]:
        """Return what travels with the model, under the names it travels by.

        Raises:
            ConfigurationError: what a preparation's options name cannot be used on this machine.
        """
        return name_for_preparations(
            {name: one.send(number, self._store(name), forgotten) for name, one in self.prepared.items()}
        )

    def keep(self, done: FederatedRound) -> None:
        """Let every method keep what it needs of a training round.

        Raises:
            StoreFull: a bound of a method's options would be exceeded.
        """
        for name, one in self.prepared.items():
            one.keep(own_arrays(name, done), self._store(name))

    def kept_for(self, name: str) -> PreparedStore | None:
        """Return what was kept for a method; None where it is not prepared for."""
        if name not in self.prepared:
            return None
        return PreparedStore(
            preparation=self.prepared[name], store=self._store(name), next_store=MemoryStore()
        )

    def forget(self, name: str, rewritten: Store) -> None:
        """Keep what the method `name` has rewritten, if anything; what others keep still carries what is forgotten."""
        own = rewritten if rewritten.list_keys() else self._store(name)
        self.stores.clear()
        self.stores[name] = own

    def _store(self, name: str) -> Store:
        return self.stores.setdefault(name, MemoryStore())
