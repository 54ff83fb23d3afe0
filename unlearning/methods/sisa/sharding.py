"""SISA's part in training rounds: every client belongs to a shard and a slice, every shard is trained apart.

Source: Bourtoule et al., "Machine Unlearning", IEEE S&P 2021; the method itself is in `unlearning.methods.sisa.method`.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal

from pydantic import Field

from unlearning.errors import DataError
from unlearning.methods.preparation import FederatedRound, LocalRound, Preparation, PreparationOptions
from unlearning.methods.sisa.history import model_key, read_log, write_log
from unlearning.parameters import Vector, weighted_mean
from unlearning.requests import Exclusions
from unlearning.runtime.stores import Store
from unlearning.tasks.ensemble import part, shard_task
from unlearning.tasks.task import Task
from unlearning.training import Trained, train


class ShardingOptions(PreparationOptions):
    """How clients are dealt out, and how the ensemble predicts."""

    shards: int = Field(default=2, ge=1, le=1000)
    slices: int = Field(default=1, ge=1, le=1000, description="of each shard")
    slice_rounds: int = Field(default=1, ge=1, description="rounds between a slice and the next")
    vote: Literal["majority", "mean"] = "majority"

    def place(self, client_id: str) -> tuple[int, int]:
        """Return a client's shard and slice: round robin by ids that are numbers, by a hash of other ids."""
        if client_id.isascii() and client_id.isdecimal():
            number = int(client_id)
        else:
            number = int.from_bytes(hashlib.sha256(client_id.encode()).digest()[:8], "big")
        return number % self.shards, number // self.shards % self.slices

    def slice_of(self, number: int) -> int:
        """Return the last slice that takes part in round `number`."""
        return min((number - 1) // self.slice_rounds, self.slices - 1)


class Sharding(Preparation[ShardingOptions]):
    """Each shard is a federation of its own; the server keeps its model from before each slice."""

    Options = ShardingOptions
    from_the_start = True
    replaces_training = True
    has_own_retraining = True
    stands_alone = True
    fixed = frozenset({"shards", "slices", "slice_rounds"})
    keeps = "the server each shard's model as it was before each slice"

    def train(self, options: ShardingOptions, work: LocalRound, ordinary: Callable[[], Trained]) -> Trained:
        """Train the client's own shard; the others go back as they came.

        Raises:
            DataError: the model is no ensemble.
        """
        where = part(work.model, options.place(work.client_id)[0], options.shards)
        trained = train(task_of_shard(work.task), work.model[where], work.examples, work.training)
        vector = work.model.copy()
        vector[where] = trained.parameters
        return replace(trained, parameters=vector)

    def combine(
        self, options: ShardingOptions, before: Vector, models: Mapping[str, tuple[int, Vector]]
    ) -> Vector:
        """Average within each shard; a shard in which nobody trained stays. Who has trained, votes."""
        after = before.copy()
        for shard in range(options.shards):
            where = part(before, shard, options.shards)
            own = {
                client: (count, model[where])
                for client, (count, model) in models.items()
                if count and options.place(client)[0] == shard
            }
            if own:
                after[where] = weighted_mean(own)
                after[shard] = 1
        return after

    def keep(self, options: ShardingOptions, done: FederatedRound, store: Store) -> None:
        """Keep the shard models at the first round of a slice, and who trained in which round."""
        for shard in range(options.shards):
            kept = [number for number in store.rounds(model_key(shard)) if number < done.number]
            if not kept or options.slice_of(kept[-1]) < options.slice_of(done.number):
                model = done.before[part(done.before, shard, options.shards)]
                store.save(model_key(shard), done.number, {"parameters": model})
            trained = [c for c, (count, _) in done.models.items() if count and options.place(c)[0] == shard]
            if trained:
                log = read_log(store, shard, before=done.number)
                write_log(store, shard, done.number, log.after(done.number, trained))

    def takes_part(self, options: ShardingOptions, client_id: str, number: int) -> bool:
        """Return whether its slice has begun."""
        return options.place(client_id)[1] <= options.slice_of(number)

    def prepared_task(self, options: ShardingOptions, task: Task) -> Task:
        """Return an ensemble of the same model."""
        return shard_task(task, options.shards, options.vote)

    def problems(self, options: ShardingOptions, task: Task, num_clients: int) -> list[str]:
        """Say where there is no client for every shard."""
        if options.shards <= num_clients:
            return []
        return [f"prepare: sisa: {options.shards} shards, and num-clients is {num_clients}; use fewer."]

    def erase(
        self,
        options: ShardingOptions,
        store: Store,
        forgotten: Exclusions,
        *,
        until: int,
        rewritten: bool,
    ) -> bool:
        """Leave all: only SISA itself can forget in a federation of shards, and writes anew."""
        return True


def task_of_shard(task: Task) -> Task:
    """Return what one shard learns.

    Raises:
        DataError: the model is no ensemble.
    """
    if task.shard is None:
        raise DataError("SISA trains an ensemble of shards, and the model here is a single one.")
    return task.shard
