"""SISA: train shards of clients apart, forget by training one shard again from before the data came in.

Source: Bourtoule et al., "Machine Unlearning", IEEE S&P 2021 (sharded, isolated, sliced, aggregated training),
with clients in place of data points.

    S  shards, each a model of its own     R  slices of each shard     θ_s  the model of shard s

Every client belongs to one shard and one slice. The clients of slice r take part from round r · slice_rounds + 1
on. Each round is FedAvg within each shard; the server keeps θ_s as it was before each slice. The prediction is
the shards' vote (`unlearning.tasks.ensemble`).

To forget something of a client, its shard alone goes back to the last kept model from before the client first
took part, and the rounds since are done again without what is forgotten: with the same clients, settings and seeds.
So the result is what training without it would have given, to the bit where the same clients answer in each
round. Within a client there are no slices: its samples are forgotten by going back to before it took part.
"""

import math
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from unlearning.errors import MethodFailed
from unlearning.methods.costs import Cost, CostSymbols, WorkDone
from unlearning.methods.method import (
    ClientSite,
    Instruction,
    Instructions,
    Method,
    MethodInfo,
    MethodParameters,
    Need,
    PreparedStore,
    Problem,
    Replies,
    Reply,
    UnlearningState,
)
from unlearning.methods.sisa_sharding import (
    Sharding,
    ShardLog,
    copy_models,
    model_before,
    model_key,
    read_log,
    rewrite_log,
    task_of_shard,
)
from unlearning.parameters import Vector, check_length, weighted_mean
from unlearning.requests import NOTHING
from unlearning.runtime.stores import Store
from unlearning.tasks.ensemble import part
from unlearning.training import local_seed, train
from unlearning.verification.difference.holders import TargetSends

_Problem: TypeAlias = Problem[MethodParameters, Sharding]


class Sisa(Method[MethodParameters, Sharding]):
    """Train the touched shards again.

    values: `pending`, by shard the rounds still to be done again; `done`, by shard the last round that was.
    """

    Parameters = MethodParameters
    info = MethodInfo(
        name="sisa",
        title="SISA",
        source="Bourtoule et al., Machine Unlearning, IEEE S&P 2021; shards of clients",
        target_sends=TargetSends.KEPT,
        needs=frozenset({Need.RETAINED_ONLINE, Need.PREPARATION}),
        remark="exact, by training again one shard instead of all; a class concerns every shard",
        is_exact=True,
        replies_are_updates=False,
        replies_have_any_length=True,
        replies_are_models=True,
        asks_everyone=True,
        preparation=Sharding,
        assumes_fedavg="its shards are FedAvg's means of their own clients",
    )

    def begin(self, problem: _Problem, parameters: Vector) -> UnlearningState:
        """Begin with the touched shards as they were before they learnt what is forgotten.

        Raises:
            MethodFailed: the federation was not prepared, or no shard has learnt anything of the target.
        """
        kept = self.kept(problem)
        sharding = kept.preparation
        vector, pending, done = parameters.copy(), {}, {}
        for shard in range(sharding.shards):
            log = read_log(kept.store, shard)
            learnt = [first for client, first in log.since.items() if _forgets(problem, client)]
            if not learnt:
                copy_models(kept.store, shard, into=kept.next_store)
                rewrite_log(kept.store, shard, log, into=kept.next_store)
                continue
            start = _start(kept.store, shard, min(learnt))
            stays = log.without({c for c, forget in problem.targets.items() if forget.everything})
            again = [
                n for n in log.rounds if n >= start and any(first <= n for first in stays.since.values())
            ]
            earlier = [n for n in log.rounds if n < start]
            vector[part(vector, shard, sharding.shards)] = model_before(kept.store, shard, start)
            vector[shard] = 1 if earlier else 0
            copy_models(kept.store, shard, into=kept.next_store, until=start)
            rewritten = ShardLog(rounds=(*earlier, *again), since=stays.since)
            rewrite_log(kept.store, shard, rewritten, into=kept.next_store)
            pending[str(shard)], done[str(shard)] = again, start - 1
        if not pending:
            raise MethodFailed(
                "No shard was trained on what is to be forgotten; there is nothing to unlearn.",
                retryable=False,
                code="nothing-to-forget",
            )
        state = UnlearningState(parameters=vector, values={"pending": pending, "done": done})
        repeated = max(len(rounds) for rounds in pending.values())
        return replace(
            state,
            finished=not any(pending.values()),
            findings={
                "shards trained again": ", ".join(pending),
                "shards in all": sharding.shards,
                "rounds done again": repeated,
                "size of the kept shard models in bytes": kept.store.num_bytes(),
            },
            work=WorkDone(rounds=repeated),
        )

    def configure(self, problem: _Problem, state: UnlearningState) -> Instructions:
        """Ask in each shard those that took part in its next round and stay, with the seeds that they had in it."""
        kept = self.kept(problem)
        sharding = kept.preparation
        present = sorted({*problem.retained, *problem.partial})
        instructions: dict[str, Instruction] = {}
        for name, rounds in state.values["pending"].items():
            if not rounds:
                continue
            shard, number = int(name), rounds[0]
            since = read_log(kept.store, shard).since
            model = state.parameters[part(state.parameters, shard, sharding.shards)]
            training = problem.schedule(number)
            for client in present:
                if sharding.place(client)[0] == shard and since.get(client, math.inf) <= number:
                    instructions[client] = Instruction(
                        operation="train",
                        model=model,
                        training=training,
                        forget=problem.targets.get(client, NOTHING),
                        values={"seed": local_seed(training.seed, client, number)},
                    )
        return instructions

    def client_step(self, instruction: Instruction, site: ClientSite) -> Reply:
        """Train the shard model (d,) for one round on what is retained; the answer is the model.

        Raises:
            DataError: the model is no ensemble.
        """
        task = task_of_shard(site.task)
        if len(site.retain) == 0:
            return Reply(vector=instruction.model, num_examples=0)
        training = replace(instruction.training, seed=int(instruction.values["seed"]))
        trained = train(task, instruction.model, site.retain, training)
        return Reply(
            vector=trained.parameters, num_examples=trained.num_examples, metrics={"loss": trained.loss}
        )

    def aggregate(self, problem: _Problem, state: UnlearningState, replies: Replies) -> UnlearningState:
        """Go one round further in each touched shard; what the shard was before a slice is kept again.

        Raises:
            MethodFailed: no client of a shard answered.
            UpdateRefused: a model has another length than a shard's.
        """
        kept = self.kept(problem)
        sharding = kept.preparation
        vector, pending, done = state.parameters.copy(), {}, dict(state.values["done"])
        for name, rounds in state.values["pending"].items():
            pending[name] = rounds[1:]
            if not rounds:
                continue
            shard, number = int(name), rounds[0]
            where = part(vector, shard, sharding.shards)
            own = {client: reply for client, reply in replies.items() if sharding.place(client)[0] == shard}
            if not own:
                raise MethodFailed(
                    f"No client of shard {shard} answered; its round {number} cannot be done again. Bring one of "
                    f"them online: {', '.join(sorted(read_log(kept.next_store, shard).since))}.",
                    retryable=True,
                    code="no-answer",
                )
            marks = [n for n in kept.store.rounds(model_key(shard)) if n > done[name]]
            _keep(kept, shard, [n for n in marks if n <= number], vector[where])
            models = {c: (reply.num_examples, reply.vector) for c, reply in own.items() if reply.num_examples}
            for _, model in models.values():
                check_length(model, vector[where].size)
            if models:
                vector[where] = weighted_mean(models)
                vector[shard] = 1
            if not pending[name]:
                _keep(kept, shard, [n for n in marks if n > number], vector[where])
            done[name] = number
        state = state.advance(vector, finished=not any(pending.values()))
        return replace(state, values={"pending": pending, "done": done})

    def cost(self, given: CostSymbols, parameters: MethodParameters, preparation: Sharding | None) -> Cost:
        """Compute 2 P B C_s R_ret bytes, F N E C_s R_ret / S FLOPs, L P B stored: C_s stay in the touched shards.

        P is of all S shards' models, which every message carries, and F too; a client trains its own shard's. Of a
        deletion that has finished all that took part are C_s. One that is planned touches one shard, of which the
        clients are dealt out evenly, but that of a class touches all.
        """
        sharding = preparation or Sharding(shards=1)
        staying = given.num_staying
        if given.work is None and sharding.shards > 1 and given.num_retained:
            of_the_shard = round(given.num_clients / sharding.shards)
            staying = max(1, of_the_shard - given.num_targets + given.num_partial)
        return given.trips(
            staying * given.repeated_rounds,
            epochs=given.epochs / sharding.shards,
            storage_bytes=sharding.slices * given.model_bytes,
        )


def _keep(kept: PreparedStore, shard: int, numbers: list[int], model: Vector) -> None:
    for number in numbers:
        kept.next_store.save(model_key(shard), number, {"parameters": np.array(model)})


def _start(store: Store, shard: int, first: int) -> int:
    """Return the last round that the shard's model is kept of from before the round `first`'s training.

    Raises:
        MethodFailed: there is none.
    """
    numbers = [number for number in store.rounds(model_key(shard)) if number <= first]
    if not numbers:
        raise MethodFailed(
            f"No model of shard {shard} from before round {first} is kept; use retrain.",
            retryable=False,
            code="nothing-kept",
        )
    return numbers[-1]


def _forgets(problem: Problem, client: str) -> bool:
    """Return whether something of this client is forgotten; of a class everybody may have had examples,
    online or not.
    """
    has_class = any(forget.classes for forget in problem.targets.values())
    return has_class or bool(problem.targets.get(client, NOTHING))
