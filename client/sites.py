"""A client's data as its app's own functions give it, without what it may never use again."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from client.memory import ClientMemory
from strategies.built_in import NO_TABLE, part_of
from strategies.settings.task_source import AppSettings, LoadSite, TaskSource
from unlearning.methods.method import ClientSite
from unlearning.pseudonyms import names_of, reveal
from unlearning.requests import Forget
from unlearning.tasks import drop_own_data
from unlearning.tasks.own_code import load_own_site
from unlearning.tasks.task import Examples, Task, forgotten_mask


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSite:
    """A client's data without what it may never use again, and what methods prepared of it.

    names: the ids of all its samples by their keyed hashes, where the server has given it a key.
    part: which part, of how many, of data that a built-in task deals out; None for data of its own.
    """

    task: Task
    train: Examples
    held_out: Examples
    names: Mapping[str, str]
    part: tuple[int, int] | None = None
    sites: dict[tuple[str, Forget, Forget], ClientSite] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SiteLoader:
    """The two functions of an app by which a client has a task and data."""

    source: TaskSource
    load_site: LoadSite

    def load(
        self, settings: AppSettings, node_config: Mapping[str, Any], memory: ClientMemory, forget: Forget
    ) -> LoadedSite:
        """Load the client's data; of what may never be used again only what `forget` speaks of, which is measured.

        Raises:
            AppError: one of the functions raised, or returned something else than it must.
            ConfigurationError: a method cannot be prepared for with such a task.
        """
        task = settings.run.prepared_task(self.source.task(settings))
        site = load_own_site(self.load_site, settings.own, node_config)
        names = names_of(memory.keys(), {*site.train.ids.tolist(), *site.test.ids.tolist()})
        gone = forgotten_mask(site.train, reveal(memory.tombstones(), names))
        memory.note_samples(site.train.ids[~gone].tolist())
        gone &= ~forgotten_mask(site.train, reveal(forget, names))
        return LoadedSite(
            task=task,
            train=site.train.select(~gone).compacted() if gone.any() else site.train,
            held_out=site.test,
            names=names,
            part=None if self.source.table != NO_TABLE else part_of(settings.own, node_config),
        )


class SiteCache:
    """What a process that answers many messages keeps between two of them."""

    _MOST = 2  # what training needs, and what a deletion under way needs

    def __init__(self, loader: "Sites") -> None:
        self.source: TaskSource = loader.source
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
