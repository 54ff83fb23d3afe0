"""What a client has at hand for one message: its data without what it may never use again, its task, its settings."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from logging import getLogger
from typing import Any, TypeAlias

import numpy as np
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp.typing import Mod

from client.memory import ClientMemory, newest_values, state_dir_of
from client.sample_places import check_places
from strategies.built_in import NO_TABLE, part_of
from strategies.held_arrays import num_bytes
from strategies.joint_exchange import MEASURE_TOO
from strategies.messages import ARRAYS, FROZEN_PART, KNOWN, RECHECK, records_of, round_of
from strategies.settings.run_config import RunSettings, local_seed
from strategies.settings.task_source import AppSettings, LoadSite, TaskSource
from unlearning.errors import AppError, DataError
from unlearning.local_layers import at_site
from unlearning.methods.method import ClientSite, Need
from unlearning.pseudonyms import names_of, reveal
from unlearning.requests import NOTHING, Forget
from unlearning.runtime.json_codec import from_plain
from unlearning.runtime.peak_memory import GB, free_memory
from unlearning.task_contract import check_task, refuse_coupled, unhidden
from unlearning.tasks import drop_own_data
from unlearning.tasks.own_code import load_own_site
from unlearning.tasks.task import Examples, Site, Task, forgotten_mask
from unlearning.training import TrainingSettings, check_frozen_part

_log = getLogger(__name__)

MODELS_HELD = 3
"""What a site must have free, in models: parameters and gradients, later parameters, the answer and its message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSite:
    """A client's data without what it may never use again, and what methods prepared of it.

    names: the ids of all its samples by their keyed hashes, where the server has given it a key.
    part: which part, of how many, of data that a built-in task deals out; None for data of its own.
    moved: why ids may not name the samples that they did at first (`client.sample_places`); empty where they do.
    removed: the ids of samples that could be trained on before and are no longer there; the model may know them.
    """

    task: Task
    train: Examples
    held_out: Examples
    names: Mapping[str, str]
    part: tuple[int, int] | None = None
    moved: str = ""
    removed: frozenset[str] = frozenset()
    sites: dict[tuple[str, Forget, Forget], ClientSite] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SiteLoader:
    """The two functions of an app by which a client has a task and data, and its mods (`client.mods`)."""

    source: TaskSource
    load_site: LoadSite
    mods: tuple[Mod, ...] = ()

    def load(
        self, settings: AppSettings, node_config: Mapping[str, Any], memory: ClientMemory, forget: Forget
    ) -> LoadedSite:
        """Load the client's data; of what may never be used again only what `forget` names, which is measured.

        Raises:
            AppError: one of the functions raised, or returned something else than it must.
            ConfigurationError: a method cannot be prepared for with such a task.
            DataError: something of the task gets past the noise of training with privacy for single samples; or samples
                that are known by their positions have moved.
        """
        own = self.source.task(settings)
        task = settings.run.prepared_task(own)
        site = load_own_site(self.load_site, settings.own, node_config)
        if self.source.table != NO_TABLE:
            check_task(own, site.train)
            refuse_coupled(own, site.train, settings.run.preparing(Need.MEAN_LOSS))
            for one in settings.run.preparations().values():
                one.check_examples(own, site.train)
        if settings.run.hides_samples and (wrong := unhidden(task, site.train)):
            raise DataError(" ".join(wrong))
        directory, tombstones = state_dir_of(node_config), memory.tombstones()
        moved = ""
        if directory is not None:
            moved = check_places(directory, site.train, are_some_forgotten=bool(tombstones.sample_ids))
        names = names_of(memory.keys(), {*site.train.ids.tolist(), *site.test.ids.tolist()})
        gone = forgotten_mask(site.train, reveal(tombstones, names))
        usable = site.train.ids[~gone].tolist()
        removed = memory.no_longer_there(usable, site.train.ids)
        names |= names_of(memory.keys(), removed)
        tombstones = reveal(tombstones, names)
        removed = [one for one in removed if not (tombstones.everything or one in tombstones.sample_ids)]
        memory.note_samples(usable, removed)
        gone &= ~forgotten_mask(site.train, reveal(forget, names))
        return LoadedSite(
            task=task,
            train=site.train.select(~gone).compacted() if gone.any() else site.train,
            held_out=site.test if moved else _unseen(site, tombstones.sample_ids.union(removed)),
            names=names,
            part=None if self.source.table != NO_TABLE else part_of(settings.own, node_config),
            moved=moved,
            removed=frozenset(removed),
        )


def _unseen(site: Site, seen: frozenset[str]) -> Examples:
    """Return the held-out examples but those of `seen`, which could be trained on before, or are forgotten.

    A split that is drawn by chance is another one once data comes or goes. What the model has learnt would then be
    measured as what it has never seen. Ids that both parts have are each part's own, and tell nothing.
    """
    held_out = site.test.ids.tolist()
    late = seen.intersection(held_out)
    if not late or not set(held_out).isdisjoint(site.train.ids.tolist()):
        return site.test
    _log.warning(
        "Left out of all measurements: %s of this site's %s held-out samples, which were training samples before. "
        "Choose what is held out so that it stays when data comes or goes, by a hash of the id for instance. If the "
        "model was begun since they changed, remove removed-samples from this site's state directory.",
        f"{len(late):,}",
        f"{len(site.test):,}",
    )
    return site.test.select(~np.isin(site.test.ids, sorted(late)))


class SiteCache:
    """The loaded data of a process that answers many messages."""

    _MOST = 2  # what training needs, and what a deletion under way needs

    def __init__(self, loader: "Sites") -> None:
        self.source: TaskSource = loader.source
        self.mods: tuple[Mod, ...] = loader.mods
        self._load = loader.load
        self._loaded: dict[Hashable, LoadedSite] = {}

    def load(
        self, settings: AppSettings, node_config: Mapping[str, Any], memory: ClientMemory, forget: Forget
    ) -> LoadedSite:
        """Return what was loaded for the same settings and what is forgotten, loading it where it is not at hand.

        Raises:
            AppError: one of the functions raised, or returned something else than it must.
        """
        key = (
            settings.run,
            *sorted(settings.own.items()),
            *sorted(node_config.items()),
            memory.tombstones(),
            memory.keys(),  # `names` are by these, and the first comes with the first samples to leave out
            forget,
        )
        if key not in self._loaded:
            while len(self._loaded) >= self._MOST:
                del self._loaded[next(iter(self._loaded))]
            self._loaded[key] = self._load(settings, node_config, memory, forget)
            drop_own_data()  # it is whole, with what was forgotten
        return self._loaded[key]


Sites: TypeAlias = SiteLoader | SiteCache
"""What loads a client's data for a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientWork:
    """What a client has at hand for one message; the task is with its own values of local layers."""

    client_id: str
    task: Task
    settings: RunSettings
    loaded: LoadedSite
    memory: ClientMemory
    values: Mapping[str, Any]
    node_config: Mapping[str, Any]
    server_round: int

    @property
    def examples(self) -> Examples:
        """The client's training examples without the tombstoned ones; those that the message measures are included."""
        return self.loaded.train

    @property
    def held_out(self) -> Examples:
        """Its test data."""
        return self.loaded.held_out

    def reveal(self, forget: Forget) -> Forget:
        """Return `forget` by the ids of this client's samples."""
        return reveal(forget, self.loaded.names)

    def forget_named(self, name: str) -> Forget:
        """Return what the message has under `name`, by the ids of this client's samples."""
        return self.reveal(from_plain(Forget, self.values.get(name, {})))

    @property
    def tombstones(self) -> Forget:
        """What may never be trained on again, by the ids of this client's samples."""
        return self.reveal(self.memory.tombstones())

    def examples_without(self, *forgets: Forget) -> Examples:
        """Return the examples that no tombstone and none of `forgets` speaks of."""
        mask = forgotten_mask(self.examples, self.tombstones)
        for forget in forgets:
            mask |= forgotten_mask(self.examples, forget)
        return self.examples.select(~mask) if mask.any() else self.examples

    def training(self, training: TrainingSettings) -> TrainingSettings:
        """Return these settings with this client's seed of this round."""
        return replace(training, seed=local_seed(training.seed, self.client_id, self.server_round))


def client_id_of(context: Context) -> str:
    """Return the id that this node declares; a node registered with a key is known by its name instead."""
    declared = context.node_config.get("client-id", context.node_config.get("partition-id", context.node_id))
    return str(declared)


def open_work(
    values: Mapping[str, Any], message: Message, context: Context, memory: ClientMemory, sites: Sites
) -> ClientWork:
    """Open the site for a message with these `values`.

    Raises:
        AppError: there is no memory for its model; the app's functions raised, or returned what they must not.
        DataError: the message names samples by ids that may be others' now.
    """
    check_memory(message)
    settings = sites.source.read(context.run_config)
    named = _to_measure(values)
    forget = named | _to_measure(values.get(MEASURE_TOO, {}))
    if not may_measure(values, context.node_config):
        forget = NOTHING  # then it is not even read
    loaded = sites.load(settings, context.node_config, memory, forget)
    if loaded.moved and named.sample_ids and message.metadata.message_type != KNOWN:
        raise DataError(loaded.moved)
    check_frozen_part(loaded.task, str(values.get(FROZEN_PART, "")))
    return ClientWork(
        client_id=client_id_of(context),
        task=at_site(loaded.task, newest_values(memory)) if loaded.task.local_layers else loaded.task,
        settings=settings.run,
        loaded=loaded,
        memory=memory,
        values=values,
        node_config=context.node_config,
        server_round=round_of(message),
    )


def check_memory(message: Message) -> None:
    """Refuse a model that cannot be worked with here, before the kernel ends the process for it.

    Raises:
        AppError: this process can take less than `MODELS_HELD` times the message's arrays.
    """
    arrays = records_of(message.content, ArrayRecord).get(ARRAYS, ArrayRecord())
    needed, free = MODELS_HELD * sum(map(num_bytes, arrays.values())), free_memory()
    if needed > free:
        raise AppError(
            f"To work with this model takes {needed / GB:.2g} GB of memory, and this site can take {free / GB:.2g} GB "
            "more. Give it more, end other programs, or train a smaller model.",
            code="too-little-memory",
        )


def may_measure(values: Mapping[str, Any], node_config: Mapping[str, Any]) -> bool:
    """Return whether a site measures what a message counts as forgotten.

    While a deletion runs it does. Afterwards its owner must have agreed, in the node's own configuration; a simulated
    client has none, and nothing that outlives the run.
    """
    return (
        RECHECK not in values
        or not node_config.get("state-dir")
        or node_config.get("answer-rechecks") in (True, "true")
    )


def _to_measure(values: Mapping[str, Any]) -> Forget:
    """Return what a message counts as forgotten."""
    return from_plain(Forget, values.get("forget", {}))
