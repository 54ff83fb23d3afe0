"""Federated averaging in one process, with what methods prepare in its rounds."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from unlearning.errors import ConfigurationError, DataError, TrainingFailed, UpdateRefused
from unlearning.local.checks import (
    check_is_task,
    check_mapping,
    check_model,
    check_rounds,
    check_sites,
    checked_targets,
    checked_training,
)
from unlearning.methods.eligibility import unfit_preparations
from unlearning.methods.method import Need, PreparedStore
from unlearning.methods.preparation import (
    FederatedRound,
    LocalRound,
    Preparation,
    all_take_part,
    combine_prepared,
    task_prepared,
    train_prepared,
)
from unlearning.methods.registry import METHODS, preparations
from unlearning.optimizers import OPTIMIZER
from unlearning.parameters import Vector, check_finite, state_to_save
from unlearning.requests import NOTHING, Exclusions, Forget, Target
from unlearning.runtime.display import new_axes, table, with_progress
from unlearning.runtime.stores import Arrays, MemoryStore
from unlearning.task_contract import refuse_coupled
from unlearning.tasks.task import Examples, Task, forgotten_mask
from unlearning.training import Trained, TrainingSettings, local_seed, model_with, starting_parameters

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Sites = Mapping[str, Examples]
"""Each client's examples, by its id."""

Stores = Mapping[str, MemoryStore]
"""What is kept for each method, by its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """A model, and what else training has left of which a deletion makes use.

    A model from elsewhere is `Learnt(parameters=flatten(model), training=TrainingSettings(...))`.

    parameters: the model (d,). training: how the sites train; its seed is the one of the whole.
    rounds: how many the model has learnt in. exchanges: how many there were in deletions since.
    trained: by the number of each round, how the sites trained in it; `training` may be replaced between two rounds.
    losses: by the number of each round, the sites' mean training loss.
    num_examples: how many each client had when it last took part; without clients that are forgotten.
    prepared: the methods that are prepared for, by name. stores: what the server keeps for them; site_stores: what each
    client keeps. forgotten: what has been.
    """

    parameters: Vector
    training: TrainingSettings = field(default_factory=TrainingSettings)
    rounds: int = 0
    exchanges: int = 0
    trained: Mapping[int, TrainingSettings] = field(default_factory=dict)
    losses: Mapping[int, float] = field(default_factory=dict)
    num_examples: Mapping[str, int] = field(default_factory=dict)
    prepared: Mapping[str, Preparation] = field(default_factory=dict)
    stores: Stores = field(default_factory=dict)
    site_stores: Mapping[str, Stores] = field(default_factory=dict)
    forgotten: Exclusions = field(default_factory=Exclusions)

    def __post_init__(self) -> None:
        check_model(self.parameters)
        object.__setattr__(self, "training", checked_training(self.training))

    @property
    def next_round(self) -> int:
        """The number of the next round or exchange; seeds and what is kept go by it."""
        return self.rounds + self.exchanges + 1

    def schedule(self, number: int) -> TrainingSettings:
        """Return how the sites train in the round of a number, or trained in it."""
        return self.trained.get(number, self.training)

    def kept_for(self, method: str, next_store: MemoryStore) -> PreparedStore | None:
        """Return what the server keeps for a method, and where it may write what takes its place; None if nothing."""
        if method not in self.prepared:
            return None
        return PreparedStore(
            preparation=self.prepared[method], store=self.stores[method], next_store=next_store
        )

    def kept_at_sites(self, method: str) -> Stores:
        """Return what each client keeps for a method, by client."""
        return {client: found[method] for client, found in self.site_stores.items() if method in found}

    def learns(self, task: Task) -> Task:
        """Return what is learnt in the place of `task`: where SISA is prepared for, an ensemble."""
        return task_prepared(self.prepared.values(), task)

    def state_dict(self, task: Task) -> dict[str, Any]:
        """Return the whole model, its frozen part and buffers too, for `load_state_dict` of `task.build_model()`.

        Where SISA is prepared for, of `learnt.learns(task).build_model()`.
        """
        return state_to_save(model_with(self.learns(task), self.parameters))

    def _repr_html_(self) -> str:
        loss = [("training loss", f"{list(self.losses.values())[-1]:.4g}")] if self.losses else []
        rows = [
            ("parameters", f"{self.parameters.size:,}"),
            ("rounds", self.rounds),
            ("exchanges of deletions", self.exchanges),
            *loss,
            *((f"examples of {client}", f"{count:,}") for client, count in self.num_examples.items()),
            *(("prepared for", name) for name in self.prepared),
        ]
        return table("Model", (), rows)

    def plot(self) -> "Axes":
        """Draw the training loss by round; a gap is a deletion.

        Raises:
            ConfigurationError: matplotlib is not installed.
        """
        (axes,) = new_axes()
        last = self.next_round
        axes.plot(range(1, last), [self.losses.get(number, np.nan) for number in range(1, last)], marker="o")
        axes.set(xlabel="round", ylabel="training loss")
        return axes


def begin(task: Task, training: TrainingSettings, prepare: str | Mapping[str, Preparation] = "") -> Learnt:
    """Return the model before its first round.

    prepare: the methods to prepare for, as the setting of a run: "federaser every=2; pga".

    Raises:
        ConfigurationError: one of them is unknown, or cannot be prepared for as this says, or with such a task; a
            value of `training` is out of the range that a run's setting has.
        AppError: it is no task, or its model cannot be built.
    """
    check_is_task(task)
    training = checked_training(training)
    prepared = preparations(prepare) if isinstance(prepare, str) else prepare
    problems = unfit_preparations(task, [METHODS[name] for name in prepared if name in METHODS])
    for one in prepared.values():
        problems += one.training_problems(training)
    if problems:
        raise ConfigurationError(problems)
    stores = {name: MemoryStore() for name in prepared}
    start = Learnt(parameters=np.zeros(0), training=training, prepared=prepared, stores=stores)
    return replace(start, parameters=starting_parameters(start.learns(task), training.seed))


def learn(task: Task, sites: Sites, learnt: Learnt, *, rounds: int = 1) -> Learnt:
    """Train for `rounds` more rounds of federated averaging among all sites; `learnt` stays as it is.

    What is forgotten is left out, as a federation's clients leave it out.

    Raises:
        ConfigurationError: a method cannot be prepared for with such a task, or with this number of sites; `rounds` is
            no whole number of 1 or more.
        DataError: no site has an example, or a site's examples do not go with the task.
        TrainingFailed: a site's model is not finite any more.
        AppError: the task's functions do not fit the examples, or a method is prepared for that needs another loss.
    """
    rounds = check_rounds(rounds)
    sites = without(sites, learnt.forgotten)
    check_sites(task, learnt.learns(task), sites, learnt.parameters)
    if not any(len(examples) for examples in sites.values()):
        raise DataError("There is nothing to learn from: no site has an example.")
    if not learnt.rounds:
        _refuse_coupled(task, next(one for one in sites.values() if len(one)), learnt.prepared)
    problems = [
        problem
        for one in learnt.prepared.values()
        if not learnt.rounds  # later there may be fewer
        for problem in one.problems(task, len(sites))
    ]
    if problems:
        raise ConfigurationError(problems)
    for _ in with_progress(range(rounds), "Round"):
        learnt = _train_round(learnt.learns(task), sites, learnt)
    return learnt


def forget_sets(targets: Iterable[Target], clients: Collection[str]) -> dict[str, Forget]:
    """Return what each concerned client must forget; a class concerns all of them."""
    forgets: dict[str, Forget] = {}
    for target in targets:
        for client in clients if target.client_id is None else [target.client_id]:
            forgets[client] = forgets.get(client, NOTHING) | target.forget
    return forgets


def retained(sites: Sites, targets: Iterable[Target]) -> dict[str, Examples]:
    """Return what the sites hold once the targets are forgotten; a client with nothing left is left out."""
    left = without(sites, Exclusions().including(checked_targets(targets)))
    return {client: examples for client, examples in left.items() if len(examples)}


def without(sites: Sites, forgotten: Exclusions) -> dict[str, Examples]:
    """Return the clients that are not forgotten, each with the examples that are not; some may have none left."""
    check_mapping(sites)
    masks = {client: forgotten_mask(examples, forgotten.of(client)) for client, examples in sites.items()}
    return {
        client: examples.select(~masks[client]) if masks[client].any() else examples
        for client, examples in sites.items()
        if not forgotten.is_forgotten(client)
    }


def _train_round(task: Task, sites: Sites, learnt: Learnt) -> Learnt:
    """Train one round; `task` is what is learnt, an ensemble perhaps."""
    number, before = learnt.next_round, learnt.parameters
    stores = {name: learnt.stores[name].copy() for name in learnt.prepared}
    sent = {name: one.send(number, stores[name], learnt.forgotten) for name, one in learnt.prepared.items()}
    models: dict[str, tuple[int, Vector]] = {}
    returned: dict[str, dict[str, Arrays]] = {name: {} for name in learnt.prepared}
    site_stores, total = dict(learnt.site_stores), 0.0
    for client, examples in sorted(sites.items()):
        if not len(examples) or not all_take_part(learnt.prepared.values(), client, number):
            continue
        kept = site_stores.get(client, {})
        names = [*learnt.prepared, *([OPTIMIZER] if learnt.training.keep_optimizer else [])]
        site_stores[client] = {name: kept.get(name, MemoryStore()).copy() for name in names}
        work = LocalRound(
            client_id=client,
            number=number,
            task=task,
            model=before,
            examples=examples,
            training=replace(learnt.training, seed=local_seed(learnt.training.seed, client, number)),
        )
        trained, beside = train_prepared(learnt.prepared, work, site_stores[client].__getitem__, sent)
        _check_trained(client, number, trained)
        models[client] = (trained.num_examples, trained.parameters)
        total += trained.num_examples * trained.loss
        for name, arrays in beside.items():
            returned[name][client] = arrays
    after = combine_prepared(learnt.prepared.values(), before, models)
    for name, one in learnt.prepared.items():
        done = FederatedRound(
            number=number,
            before=before,
            after=after,
            models=models,
            arrays=returned[name],
            forgotten=learnt.forgotten,
            task=task,
            training=learnt.training,
        )
        one.keep(done, stores[name])
    counts = {**learnt.num_examples, **{client: count for client, (count, _) in models.items()}}
    return replace(
        learnt,
        parameters=after,
        rounds=learnt.rounds + 1,
        trained={**learnt.trained, number: learnt.training},
        losses={
            **learnt.losses,
            **({number: total / sum(count for count, _ in models.values())} if models else {}),
        },
        num_examples=counts,
        stores=stores,
        site_stores=site_stores,
    )


def _check_trained(client: str, number: int, trained: Trained) -> None:
    try:
        check_finite(trained.parameters)
    except UpdateRefused as exc:
        raise TrainingFailed(
            f"The model that client {client} has trained in round {number} cannot be used: {exc} Lower the learning "
            "rate, or look for inputs that are not finite.",
            code=exc.code,
        ) from exc


def _refuse_coupled(task: Task, examples: Examples, prepared: Iterable[str]) -> None:
    infos = [METHODS[name].info for name in prepared if name in METHODS]
    refuse_coupled(task, examples, [info.title for info in infos if Need.MEAN_LOSS in info.needs])
