"""FedEraser: replay the stored history of training without the forgotten clients, calibrated by short training.

Source: Liu, Ma, Yang, Wang, Liu, "FedEraser: Enabling Efficient Client-Level Data Removal from Federated
Learning Models", IWQoS 2021, Algorithm 1 and Eq. 3-5; the authors' code for the option `per_layer_mean`.

    U_k  client k's stored update of a round      Û_k  what k's calibration training gives now
    n_k  its number of examples then              n_R  Σ n_k over those that count in the round

    first stored round    θ ← θ_0 + Σ_k (n_k/n_R) U_k
    each one after it     θ ← θ + Σ_k (n_k/n_R) C_k,   C_k = ‖U_k‖ Û_k/(‖Û_k‖ + 1e-12)

Norms are those of all parameters. Buffers are not calibrated: they become what the calibrations report, by examples.
`per_layer_mean` is the form of the authors' code: means that no number of examples weighs, and for each tensor l one
length for all, C_k,l = ‖mean U_l‖ Û_k,l/(‖mean Û_l‖ + 1e-12).

In one thing it is not their code. There the length of a round is ‖mean θ_k,l − θ_after,l‖, measured from the global
model that the round *ended* with; by its comments and by Algorithm 1 it should be the model that it began with, which
is what U_k is measured from here, in both forms. Their length is only how far the mean of the retained clients lies
from the mean of all: with many clients alike it is near 0, and a replay hardly moves after its first round.

The paper also keeps the global model of each stored round. Only the first is ever used, and that is the run's
initial model, which its seed decides; so no global model is kept, each of which would carry what is forgotten.
Lengths are those of the training that is undone. Late in it the U_k of clients with different data do not
vanish, they cancel, and they do so at the old model; so a long replay does not end where retraining would
(docs/explanation-prepared-methods.md). Recovery takes it from there.

The C_k take the place of the U_k, so the next deletion starts from this one's result.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeAlias, cast

import numpy as np
from pydantic import Field

from unlearning.buffers import without_buffers
from unlearning.errors import MethodFailed, StoreFull
from unlearning.methods.costs import Cost, CostSymbols, WorkDone
from unlearning.methods.method import (
    ClientSite,
    Instruction,
    Instructions,
    Method,
    MethodInfo,
    MethodParameters,
    Need,
    Problem,
    Replies,
    Reply,
    UnlearningState,
)
from unlearning.methods.preparation import FederatedRound, Preparation
from unlearning.methods.updates import mean_vector, none_keeps, trained_update, with_kept_buffers
from unlearning.parameters import Vector, accumulate, in_chunks, layout, norm
from unlearning.requests import Granularity
from unlearning.runtime.stores import Arrays, Store
from unlearning.training import initial_parameters, structure
from unlearning.verification.difference.holders import TargetSends

EPSILON = 1e-12
GIB = 2**30


class FedEraserParameters(MethodParameters):
    """Parameters of FedEraser."""

    calibration_ratio: float = Field(
        default=0.5, gt=0, le=1, description="epochs of a calibration by those of a round, rounded up"
    )
    per_layer_mean: bool = Field(
        default=False, description="the form of the authors' code: by tensors, on client means"
    )


class KeepUpdates(Preparation):
    """The server keeps every client's update of every round, or of one round in `every`."""

    from_the_start = True
    keeps = "the server each client's update of every round (or one in `every`)"

    every: int = Field(default=1, ge=1, description="keep one round in this many, the first one included")
    max_gib: float = Field(default=16.0, gt=0, description="the store may take so much room")

    def keep(self, done: FederatedRound, store: Store) -> None:
        """Keep U_k, n_k and the round's number, by client.

        Raises:
            StoreFull: the round would not fit; the history would have a gap from here on.
        """
        if (done.number - 1) % self.every:
            return
        needed = sum(model.nbytes for _, model in done.models.values())
        bound = self.max_gib * GIB
        used = store.num_bytes()
        if used + needed > bound:
            raise StoreFull(
                f"The stored updates take {used / GIB:.3g} GiB and round {done.number} {needed / GIB:.3g} more; "
                f"max_gib allows {self.max_gib:g}. Give more room, or keep one round in more (every=…)."
            )
        for client, (count, model) in sorted(done.models.items()):
            store.save(client, done.number, _entry(model - done.before, count, done.number))


_Problem: TypeAlias = Problem[FedEraserParameters, KeepUpdates]


class FedEraser(Method[FedEraserParameters, KeepUpdates]):
    """Calibrated replay. State: `rounds`, the stored rounds to replay; `missing`, by client in how many."""

    Parameters = FedEraserParameters
    info = MethodInfo(
        name="federaser",
        title="FedEraser",
        source="Liu et al., FedEraser: Enabling Efficient Client-Level Data Removal, Algorithm 1",
        target_sends=TargetSends.KEPT,
        granularities=frozenset({Granularity.CLIENT}),
        needs=frozenset({Need.HISTORY, Need.RETAINED_ONLINE}),
        cost_remark="the first stored round is replayed without asking any client",
        remark="one exchange for each stored round; far from retraining after long training on unlike clients",
        asks_everyone=True,
        preparation=KeepUpdates,
        assumes_fedavg="its calibrated replay adds stored updates as FedAvg's mean does",
    )

    def begin(self, problem: _Problem, parameters: Vector) -> UnlearningState:
        """Replay the first stored round, for which no client is needed: initial model and mean of retained updates.

        Raises:
            MethodFailed: no update of a client that stays is stored.
        """
        kept, own = self.kept(problem), problem.parameters
        clients = _retained(problem, kept.store)
        rounds = sorted({number for client in clients for number in kept.store.rounds(client)})
        if not rounds:
            if not problem.staying:
                raise none_keeps(self.info.title, problem)
            raise MethodFailed(
                "No update of a client that stays is stored; use retrain.",
                retryable=False,
                code="nothing-kept",
            )
        step, weights = np.zeros(parameters.size), 0
        for client in clients:  # one stored update at a time is in memory
            if rounds[0] in kept.store.rounds(client):
                entry = kept.store.load(client, rounds[0])
                kept.next_store.save(client, rounds[0], entry)
                weight = 1 if own.per_layer_mean else int(entry["num_examples"])
                accumulate(step, weight, entry["update"])
                weights += weight
        start = initial_parameters(problem.task, problem.schedule(rounds[0]).seed)
        state = UnlearningState(
            parameters=in_chunks(lambda first, moved: first + moved / weights, start, step),
            finished=len(rounds) == 1,
            values={"rounds": rounds, "missing": {}},
        )
        return _report(state, kept.store, replayed=1)

    def configure(self, problem: _Problem, state: UnlearningState) -> Instructions:
        """Let those that took part in the stored round and stay train shortly from the calibrated model."""
        own, store = problem.parameters, self.kept(problem).store
        number = state.values["rounds"][state.exchanges + 1]
        took_part = [client for client in _retained(problem, store) if number in store.rounds(client)]
        if not took_part:
            return {}
        ordinary = problem.schedule(int(store.load(took_part[0], number)["trained_in"]))
        training = replace(ordinary, epochs=math.ceil(own.calibration_ratio * ordinary.epochs))
        return {
            client: Instruction(operation="calibrate", model=state.parameters, training=training)
            for client in took_part
            if client in problem.retained
        }

    def client_step(self, instruction: Instruction, site: ClientSite) -> Reply:
        """Compute Û_k, the update of short local training."""
        return trained_update(instruction, site, site.retain)

    def aggregate(self, problem: _Problem, state: UnlearningState, replies: Replies) -> UnlearningState:
        """Go one stored round further; a client that gave no answer is left out of it, its stored update too.

        Raises:
            MethodFailed: no client that holds an example answered.
        """
        kept, own = self.kept(problem), problem.parameters
        rounds, missing = state.values["rounds"], dict(state.values["missing"])
        number = rounds[state.exchanges + 1]
        took_part = [c for c in _retained(problem, kept.store) if number in kept.store.rounds(c)]
        fresh = {c: replies[c].vector for c in took_part if c in replies and replies[c].num_examples}
        if not fresh:
            raise MethodFailed(
                f"No client calibrated stored round {number}; the replay cannot go on.",
                retryable=True,
                code="no-answer",
            )
        for client in set(took_part) - set(fresh):
            missing[client] = missing.get(client, 0) + 1
        factors = _factors(problem, kept.store, number, fresh) if own.per_layer_mean else None
        step, weights = np.zeros(state.parameters.size), 0
        for client in sorted(fresh):  # one stored update at a time is in memory
            stored = kept.store.load(client, number)
            update, count = _stored_update(problem, stored), int(stored["num_examples"])
            calibrated = (
                calibrate(update, fresh[client]) if factors is None else _scaled(fresh[client], factors)
            )
            weight = 1 if own.per_layer_mean else count
            accumulate(step, weight, calibrated)
            weights += weight
            rewritten = with_kept_buffers(problem.task, calibrated, {client: replies[client]})
            entry = _entry(rewritten, count, int(stored["trained_in"]))
            kept.next_store.save(client, problem.round, entry)
        model = in_chunks(lambda before, moved: before + moved / weights, state.parameters, step)
        model = with_kept_buffers(problem.task, model, {client: replies[client] for client in fresh})
        done = state.exchanges + 2
        state = replace(
            state.advance(model, finished=done == len(rounds)),
            values={"rounds": rounds, "missing": missing},
        )
        return _report(state, kept.store, replayed=done)

    def cost(
        self, given: CostSymbols, parameters: FedEraserParameters, preparation: KeepUpdates | None
    ) -> Cost:
        """Compute 2 P B C_r R_ret bytes, F N E_cal C_r R_ret FLOPs, C R_ret P B stored."""
        rounds = given.repeated_rounds
        return given.trips(
            given.num_retained * rounds,
            epochs=parameters.calibration_ratio * given.epochs,
            storage_bytes=given.num_clients * rounds * given.model_bytes,
        )


def calibrate(stored: Vector, fresh: Vector) -> Vector:
    """Compute ‖U‖ Û/(‖Û‖ + 1e-12), in float64: the new direction with the old length. Source: FedEraser, Eq. 4."""
    factor = norm(stored) / (norm(fresh) + EPSILON)
    return in_chunks(lambda direction: direction * factor, fresh)


def _factors(
    problem: Problem, store: Store, number: int, fresh: Mapping[str, Vector]
) -> list[tuple[slice, float]]:
    """Compute ‖mean U_l‖/(‖mean Û_l‖ + 1e-12) for each tensor l, with its place in the vector.

    In a round of the authors' form each tensor's part has one factor for all clients.
    """
    total = np.zeros(next(iter(fresh.values())).size)
    for client in sorted(fresh):  # one stored update at a time is in memory
        accumulate(total, 1 / len(fresh), _stored_update(problem, store.load(client, number)))
    mean = mean_vector([fresh[client] for client in sorted(fresh)])
    places = [slice(slot.start, slot.stop) for slot in layout(structure(problem.task))]
    return [(place, norm(total[place]) / (norm(mean[place]) + EPSILON)) for place in places]


def _scaled(vector: Vector, factors: Iterable[tuple[slice, float]]) -> Vector:
    """Return `vector` (d,) with each tensor's part times its factor."""
    found = np.empty_like(vector)
    for place, factor in factors:
        found[place] = in_chunks(lambda part, factor=factor: part * factor, vector[place])
    return found


def _stored_update(problem: Problem, entry: Arrays) -> Vector:
    """Return U_k as a direction."""
    return without_buffers(problem.task, cast(Vector, entry["update"]))


def _entry(update: Vector, num_examples: int, trained_in: int) -> Arrays:
    return {
        "update": update,
        "num_examples": np.array(num_examples),
        "trained_in": np.array(trained_in),  # decides the learning rate of its calibration
    }


def _retained(problem: Problem, store: Store) -> list[str]:
    """Return the clients with stored updates that stay. Nothing else of the store is ever read."""
    return [client for client in store.list_keys() if client not in problem.targets]


def _report(state: UnlearningState, store: Store, replayed: int) -> UnlearningState:
    """Return `state` with what is to be said of it after `replayed` rounds."""
    missing = state.values["missing"]
    exchanges = len(state.values["rounds"]) - 1
    left_out = [f"client {client} in {missing[client]} of {exchanges}" for client in sorted(missing)]
    findings = {
        "stored rounds replayed": replayed,
        "size of the stored updates in bytes": store.num_bytes(),
        "left out of calibrations, their stored updates not used": "; ".join(left_out) or "none",
    }
    return replace(state, findings=findings, work=WorkDone(rounds=replayed))
