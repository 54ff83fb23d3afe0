"""What a client has at hand for one message: its site, its settings, what it may never train on again."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from flwr.app import Context, Message

from client.memory import ClientMemory
from client.sites import LoadedSite, Sites
from strategies.joint_exchange import MEASURE_TOO
from strategies.messages import FROZEN_PART, round_of
from strategies.settings.run_config import RunSettings, local_seed
from unlearning.pseudonyms import reveal
from unlearning.requests import Forget
from unlearning.runtime.json_codec import from_plain
from unlearning.tasks.task import Examples, Task, forgotten_mask
from unlearning.training import TrainingSettings, check_frozen_part


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientWork:
    """What a client has at hand for one message."""

    client_id: str
    settings: RunSettings
    loaded: LoadedSite
    memory: ClientMemory
    values: Mapping[str, Any]
    node_config: Mapping[str, Any]
    server_round: int

    @property
    def task(self) -> Task:
        """What is learnt."""
        return self.loaded.task

    @property
    def examples(self) -> Examples:
        """All it owns, but what was forgotten for good and is not spoken of now."""
        return self.loaded.train

    @property
    def held_out(self) -> Examples:
        """Its test data."""
        return self.loaded.held_out

    def reveal(self, forget: Forget) -> Forget:
        """Return `forget` by the ids of this client's samples."""
        return reveal(forget, self.loaded.names)

    def forget_named(self, name: str) -> Forget:
        """Return what the message says under `name`, by the ids of this client's samples."""
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
    """Open the site for a message with these `values`."""
    settings = sites.source.read(context.run_config)
    forget = _to_measure(values) | _to_measure(values.get(MEASURE_TOO, {}))
    loaded = sites.load(settings, context.node_config, memory, forget)
    check_frozen_part(loaded.task, str(values.get(FROZEN_PART, "")))
    return ClientWork(
        client_id=client_id_of(context),
        settings=settings.run,
        loaded=loaded,
        memory=memory,
        values=values,
        node_config=context.node_config,
        server_round=round_of(message),
    )


def _to_measure(values: Mapping[str, Any]) -> Forget:
    """Return what a message counts as forgotten."""
    return from_plain(Forget, values.get("forget", {}))
