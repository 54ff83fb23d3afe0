"""What a method does in ordinary training rounds, before anybody asks for a deletion.

Some methods can only forget what they prepared for: an auxiliary head beside the classifier, the clients'
updates kept by the server, the last local model kept by the client. Such a method has a `Preparation` in its
file and names it in its `MethodInfo`. It is switched on before training by the setting `prepare`:

    prepare = "federaser every=2; pga"

    server:  preparation.send(number, store, forgotten)   what travels with the model of a round, if anything
    client:  preparation.train(work, ordinary)            around (or in place of) ordinary local training
    server:  preparation.check(sent, returned)            before a client's model is accepted
    server:  preparation.keep(done, store)                after the updates of a round were accepted

A subclass of `Preparation` has the options as its fields, so what is switched on is one object with its options.

Both sides have a store of their own (`unlearning.runtime.stores`), one a method. Entries are kept by the round's
number; a round that is done again after a crash must write what it wrote before, so a preparation reads
entries of rounds before the present one only.
"""

from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError
from typing_extensions import TypeVar

from unlearning.optimizers import OPTIMIZER, keep_state, kept_state
from unlearning.parameters import Models, Vector, layout, travelling, weighted_mean
from unlearning.requests import Exclusions, Target
from unlearning.runtime.stores import Arrays, MemoryStore, Store
from unlearning.secure_aggregation.addends import SecureTotal, SumTerm
from unlearning.tasks.task import Examples, Task
from unlearning.training import Trained, TrainingSettings, model_with, structure, train


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseBudget:
    """The (ε, δ) that all deletions of a federation may use up together, and the σ of the noise on each.

    sensitivity: ‖unlearned − retrained‖ as measured elsewhere, where no bound is proven; None where it was not.
    """

    sigma: float
    epsilon: float
    delta: float
    sensitivity: float | None = None


def _listed(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return frozenset() if value == "all" else frozenset(part for part in value.split(",") if part)


Listed = Annotated[frozenset[str], BeforeValidator(_listed)]
"""Names divided by commas; `all` is read as an empty list, which of clients stands for every one."""


def truth_is_no_number(value: Any, read: Callable[[Any], Any]) -> Any:
    """Return what a field makes of a value; refuse true and false for a number, which pydantic reads as 1 and 0."""
    found = read(value)
    if isinstance(value, bool) and not isinstance(found, bool):
        raise PydanticCustomError("no_number", "Input should be a number")
    return found


no_truth_for_numbers = field_validator("*", mode="wrap")(truth_is_no_number)
"""The same for each field of a class of settings or parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRound:
    """One client's part of a training round.

    examples: all that this client may train on in this round.
    training: with the seed of this client and round.
    store: what this client keeps for the method.
    arrays: what the server sent for the method beside the model.
    returns: what goes back to the server beside the local model; `train` fills it in.
    """

    client_id: str
    number: int
    task: Task
    model: Vector
    examples: Examples
    training: TrainingSettings
    store: Store = field(default_factory=MemoryStore)
    arrays: Arrays = field(default_factory=dict)
    returns: MutableMapping[str, NDArray[Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FederatedRound:
    """A round whose updates were accepted and averaged.

    before, after: the global model (d,).
    models: by client, the number of examples and the local model θ_i (d,).
    arrays: by client, what it returned for the method beside its model.
    forgotten: what had been forgotten when the round began.
    refused: whose models were not accepted.
    task, training: what was learnt, and how the server had set it for this round; None where that is not known.
    """

    number: int
    before: Vector
    after: Vector
    models: Models
    arrays: Mapping[str, Arrays] = field(default_factory=dict)
    forgotten: Exclusions = field(default_factory=Exclusions)
    refused: frozenset[str] = frozenset()
    task: Task | None = None
    training: TrainingSettings | None = None


class Preparation(BaseModel):
    """Nothing on either side; a method overrides what it needs. The fields are its options, and it holds no state.

    from_the_start: whether it is of no use unless it was switched on before the first round.
    replaces_training: whether `train` does local training itself; at most one such can be switched on.
    has_own_retraining: whether its model is of another kind than ordinary training's, so that what retraining would
        give is a model of the same preparation that never had the forgotten data.
    stands_alone: whether no other can be switched on beside it.
    fixed: the options that decide what is kept of a round means; a federation that goes on cannot change them.
    keeps: what is kept where, in plain words, for `methods` and the documentation.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    _numbers = no_truth_for_numbers

    from_the_start: ClassVar[bool] = False
    replaces_training: ClassVar[bool] = False
    has_own_retraining: ClassVar[bool] = False
    stands_alone: ClassVar[bool] = False
    fixed: ClassVar[frozenset[str]] = frozenset()
    keeps: ClassVar[str] = ""

    @property
    def named_samples(self) -> frozenset[str]:
        """Return the ids of samples that the options name."""
        return frozenset()

    @property
    def noise_budget(self) -> NoiseBudget | None:
        """Return the budget that the options set for a method that draws noise; None where they set none."""
        return None

    def send(self, number: int, store: Store, forgotten: Exclusions) -> Arrays:
        """Return what every client gets beside the model in the round `number`; nothing, as a rule.

        Raises:
            ConfigurationError: what the options name cannot be used on this machine.
        """
        return {}

    def check(self, sent: Arrays, returned: Arrays) -> None:
        """Look at what a client returned for what it was sent; asked only where something was sent.

        Raises:
            UpdateRefused: it cannot be used, so neither can the client's model.
        """

    def train(self, work: LocalRound, ordinary: Callable[[], Trained]) -> Trained:
        """Train locally for one round, at the client; `ordinary` does it as without this preparation."""
        return ordinary()

    def keep(self, done: FederatedRound, store: Store) -> None:
        """Keep what is needed of a round, on the server.

        Raises:
            StoreFull: a bound of the options would be exceeded; from then on the method is not prepared.
        """

    def combine(self, before: Vector, models: Models) -> Vector:
        """Average a round's local models on the server, by numbers of examples (FedAvg).

        A preparation that trains in a way of its own may also average in a way of its own.
        before: the global model that they started from.
        """
        return weighted_mean(models)

    def sum_size(self, task: Task, model: Vector) -> int:
        """Return how many numbers a client adds to a round's sum (`MethodInfo.sums_suffice`)."""
        return model.size

    def sum_terms(self, update: Vector, num_examples: int, returned: Arrays) -> list[SumTerm]:
        """Return what a client adds to a round's sum, of its update (d,) and what it returns beside the model."""
        return [SumTerm(update=update, count=num_examples)]

    def model_of_sum(self, task: Task, before: Vector, total: SecureTotal) -> Vector:
        """Make a round's model (d,) of the one before and the sum.

        Raises:
            NumericalError: the sum gives none.
        """
        return total.applied_to(before)

    def takes_part(self, client_id: str, number: int) -> bool:
        """Return whether a client is asked in the training round `number`; one that trains in its own way
        may wait.
        """
        return True

    def prepared_task(self, task: Task) -> Task:
        """Return what is learnt in place of `task`."""
        return task

    def problems(self, task: Task, num_clients: int) -> list[str]:
        """Return why this cannot be switched on for such a task and this number of clients, one sentence each."""
        return []

    def check_examples(self, task: Task, examples: Examples) -> None:
        """Look at a site's data, or at the server's, before anything is trained.

        Raises:
            AppError: this cannot be prepared for with such a task.
        """

    def training_problems(self, training: TrainingSettings) -> list[str]:
        """Return why this cannot be switched on where clients train so, one sentence each."""
        if not (self.replaces_training and training.keep_optimizer):
            return []
        return [
            "keep-optimizer goes with ordinary training only, and a method of prepare trains in a way of its own. "
            "Leave one of them out."
        ]

    def erase(self, store: Store, forgotten: Exclusions, *, until: int, rewritten: bool) -> bool:
        """Erase on the server what was kept of what is forgotten, once a deletion is completed.

        Of a client of which only some examples are forgotten, everything from before the deletion goes: it was
        computed from them. A preparation that needs its history whole is lost with a class.
        until: the last round before the deletion. rewritten: whether the deletion was carried out by this very
        method, which has rewritten `store`. Returns whether requests can be served from now on.
        """
        for client in store.list_keys():
            if forgotten.is_forgotten(client):
                store.erase(client)
            elif forgotten.of(client):
                store.erase_rounds(client, until=until)
        return not (forgotten.classes and self.from_the_start)

    def survives(self, *, is_own: bool, moves_model: bool) -> bool:
        """Return whether what is kept is still right after a deletion, by the method that this prepares or
        by another.

        moves_model: whether that method moves the model itself, before recovery.
        """
        return True

    def refusal(self, target: Target) -> str:
        """Return why a target cannot be forgotten with what these options prepare for; empty if it can."""
        return ""


PreparationT = TypeVar("PreparationT", bound=Preparation, default=Any)
"""The preparation of a method."""


class ClientPreparation(Preparation):
    """A preparation that is made for some clients."""

    clients: Listed = Field(default=frozenset(), description="who may be forgotten, by commas; all")

    def has(self, client_id: str) -> bool:
        """Return whether this client may be forgotten."""
        return not self.clients or client_id in self.clients


def train_prepared(
    prepared: Mapping[str, Preparation],
    work: LocalRound,
    store_of: Callable[[str], Store],
    sent: Mapping[str, Arrays],
) -> tuple[Trained, dict[str, dict[str, NDArray[Any]]]]:
    """Train at one client, each method's preparation around the one before; what it returns for each is the second.

    store_of: gives what this client keeps for a method. sent: what the server sent for each.
    """
    returns: dict[str, dict[str, NDArray[Any]]] = {name: {} for name in prepared}
    kept = store_of(OPTIMIZER) if work.training.keep_optimizer else None
    step = partial(_train_on, work, kept)
    for name, one in prepared.items():
        own = replace(work, store=store_of(name), arrays=sent.get(name, {}), returns=returns[name])
        step = partial(one.train, own, step)
    return step(), returns


def _train_on(work: LocalRound, store: Store | None) -> Trained:
    """Train as without any preparation, with the optimiser of the round before, where there is a store for it."""
    if store is None:
        return _train_all(work)
    kind = work.training.optimizer
    kept = kept_state(store, kind, work.number)
    trained = _train_all(work, kept)
    keep_state(store, kind, work.number, trained.optimizer)
    return trained


def _train_all(work: LocalRound, kept: Arrays | None = None) -> Trained:
    """Train the shared part, from the round's model, and the site's own layers with it."""
    if not work.task.local_layers:
        return train(work.task, work.model, work.examples, work.training, kept=kept)
    whole, shared = replace(work.task, local_layers=()), travelling(structure(work.task))
    slots, state = layout(structure(whole)), model_with(work.task, work.model).state_dict()
    start = np.concatenate([state[slot.name].reshape(-1).numpy() for slot in slots])
    trained = train(whole, start, work.examples, work.training, kept=kept)
    parts = {slot.name: trained.parameters[slot.start : slot.stop].reshape(slot.shape) for slot in slots}
    together = np.concatenate([parts[name].reshape(-1) for name in shared])
    own = {name: part for name, part in parts.items() if name not in shared}
    return replace(trained, parameters=together, local=own)


def combine_prepared(prepared: Iterable[Preparation], before: Vector, models: Models) -> Vector:
    """Make one model (d,) of the local ones: FedAvg's mean, unless a method trains in a way of its own."""
    return training_by(prepared).combine(before, models)


def training_by(prepared: Iterable[Preparation]) -> Preparation:
    """Return the one that trains in a way of its own; without any, one that changes nothing."""
    return next((one for one in prepared if one.replaces_training), Preparation())


def all_take_part(prepared: Iterable[Preparation], client_id: str, number: int) -> bool:
    """Return whether a client is asked in the training round `number`."""
    return all(one.takes_part(client_id, number) for one in prepared)


def task_prepared(prepared: Iterable[Preparation], task: Task) -> Task:
    """Return what is learnt in the place of `task`: where SISA is prepared for, an ensemble."""
    return reduce(lambda learnt, one: one.prepared_task(learnt), prepared, task)
