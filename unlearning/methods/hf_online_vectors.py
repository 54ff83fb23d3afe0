"""Vectors of whole clients, carried through every training round: what HF-online is prepared by.

    a_u     client u's vector (d,), see `unlearning.certified.unit_vectors`
    J_i     the derivative of client i's local training: how its model moves when its start is moved

    server → client i     the model, and the vectors of the k clients that may be forgotten (k, d)
    client i → server     its local model, and J_i a for each of them (k, d)
    server keeps          each vector after the round, and that of the round before

Client u's own part in its vector needs no derivative: it is its local model beside the average. The first round
sends no vector, for all are zero; a client that joins later begins with a vector of zeros, which is exact.
"""

from collections.abc import Callable
from typing import cast

import numpy as np

from unlearning.certified.linear_head import feature_norm
from unlearning.certified.sealed_vectors import seal
from unlearning.certified.tangents import Weights, check_memory, train_with_tangents, vector_bytes
from unlearning.certified.unit_vectors import vector_after_round
from unlearning.errors import (
    AppError,
    ConfigurationError,
    DataError,
    NumericalError,
    StoreFull,
    UpdateRefused,
)
from unlearning.methods.hf_online_kept import (
    GIB,
    LENGTHS_KEY,
    CarriedVectorOptions,
    kept_clients,
    kept_records,
    mark_lost,
    vectors_before,
)
from unlearning.methods.hf_online_records import WORK, append_round, has_trained, work_of
from unlearning.methods.preparation import FederatedRound, LocalRound
from unlearning.parameters import Vector, norm
from unlearning.requests import Exclusions, Target
from unlearning.runtime.stores import Arrays, Store, keep_newest, newest
from unlearning.task_contract import few_of
from unlearning.tasks.task import Examples, Task
from unlearning.training import Trained, TrainingSettings, structure, untrained_parameters

VECTORS = "vectors"
LARGEST_GROWTH = 1e6
"""A vector that comes back, beside the one that was sent, or that is kept, beside the model, more than this many times
as long has diverged."""


class CarryVectors(CarriedVectorOptions):
    """The server keeps a vector for each forgettable client, and clients carry all of them through training.

    Of a client that took part while it had no vector, or of which samples were forgotten, a mark is kept
    instead: a vector that begins in the middle would forget a part only.
    """

    from_the_start = True
    replaces_training = True
    fixed = frozenset({"weighting"})
    keeps = "the server the last two vectors of each forgettable client, each as large as the model"

    def send(self, number: int, store: Store, forgotten: Exclusions) -> Arrays:
        """Return the vectors (k, d) in the order of client ids, which are not told.

        Raises:
            ConfigurationError: the key file cannot be used.
        """
        vectors = list(vectors_before(self, number, store, forgotten).values())
        return {VECTORS: np.stack(vectors)} if vectors else {}

    def train(self, work: LocalRound, ordinary: Callable[[], Trained]) -> Trained:
        """Train as without this, to the bit, and compute J_i a for each vector.

        Raises:
            DataError: an input is larger than the declared `feature_norm`.
        """
        if self.feature_norm:
            _check_features(work, self.feature_norm)
        work.returns[WORK] = work_of(len(work.examples), work.training, self.feature_norm)
        vectors = work.arrays.get(VECTORS)
        if vectors is None:
            return ordinary()
        trained, work.returns[VECTORS] = train_with_tangents(
            work.task, work.model, work.examples, work.training, vectors
        )
        return trained

    def check(self, sent: Arrays, returned: Arrays) -> None:
        """Refuse anything but as many vectors as were sent, of the same type, finite and of a length training can give.

        Raises:
            UpdateRefused: they are not.
        """
        expected, found = sent[VECTORS], returned.get(VECTORS)
        if found is None or found.shape != expected.shape or found.dtype != expected.dtype:
            got = "none" if found is None else f"an array {found.shape} of {found.dtype}"
            raise UpdateRefused(
                f"It was sent {len(expected)} vectors for hf-online, shape {expected.shape} of {expected.dtype}, "
                f"and returned {got}. Check that it runs the same version and settings."
            )
        if not np.isfinite(found).all():
            raise UpdateRefused("A vector that it returned for hf-online is not finite.")
        for before, after in zip(map(norm, expected), map(norm, found), strict=True):
            if after > LARGEST_GROWTH * before:
                raise UpdateRefused(
                    f"A vector of length {before:.3g} that it was sent for hf-online came back {after:.3g} long; over "
                    f"{LARGEST_GROWTH:g} times is no derivative of local training."
                )

    def keep(self, done: FederatedRound, store: Store) -> None:
        """Keep each vector as it is after the round.

        Raises:
            ConfigurationError: the key file cannot be used.
            StoreFull: a client more has come than there is room for.
        """
        key = self.key()
        earlier = kept_records(store, key, before=done.number)
        had_trained = has_trained(earlier, done.number)
        for client in sorted({*kept_clients(store), *done.models}):
            is_lost = client in had_trained and newest(store, client, before=done.number) is None
            if is_lost or not self.has(client):
                mark_lost(store, client, done.number)
        known = vectors_before(self, done.number, store, done.forgotten)
        text = append_round(earlier, done, known, weighting=self.weighting, feature_norm=self.feature_norm)
        content = np.frombuffer(text.encode(), dtype=np.uint8)
        keep_newest(store, LENGTHS_KEY, done.number, seal(cast(Vector, content), LENGTHS_KEY, key))
        new = [c for c in sorted(done.models) if newest(store, c, before=done.number + 1) is None]
        needed = (len(known) + len(new)) * done.before.nbytes
        if needed > self.max_gib * GIB:
            raise StoreFull(
                f"With client(s) {', '.join(new)} the vectors would take {needed / GIB:.3g} GiB; max_gib allows "
                f"{self.max_gib:g}. Name who may be forgotten (clients=…), or give more room, and train again."
            )
        rows = {unit: row for row, unit in enumerate(known)}
        nothing = np.zeros_like(done.before)
        for unit in sorted({*known, *new}):
            carried = {
                client: done.arrays[client][VECTORS][rows[unit]] if unit in rows else nothing
                for client in done.models
            }
            with np.errstate(over="ignore", invalid="ignore"):
                vector = vector_after_round(
                    known.get(unit, nothing),
                    carried,
                    done.models,
                    unit=unit,
                    before=done.before,
                    after=done.after,
                    weighting=self.weighting,
                )
            # Of one that overflows no client could return a derivative, and every client's model would be refused.
            if not norm(vector) <= LARGEST_GROWTH * max(1.0, norm(done.after)):
                mark_lost(store, unit, done.number)
                continue
            keep_newest(store, unit, done.number, seal(vector, unit, key))

    def problems(self, task: Task, num_clients: int) -> list[str]:
        """Say where the vectors have no room, or the model no derivative."""
        units = len(self.clients) or num_clients
        try:
            dimension = Weights(structure(task)).dimension
            needed = vector_bytes(dimension=dimension, num_units=units, dtype=task.dtype)
            check_memory(needed, int(self.max_gib * GIB), units)
        except NumericalError as exc:
            return [f"prepare: hf-online: {exc}"]
        except ConfigurationError as exc:
            advice = "In a federation: name them with clients=…, or raise max_gib."
            return [f"prepare: hf-online: {problem} {advice}" for problem in exc.problems]
        return []

    def check_examples(self, task: Task, examples: Examples) -> None:
        """Refuse a model without second derivatives, with which each round would fail from the second on."""
        if not len(examples):
            return
        model, few = untrained_parameters(task, seed=0), few_of(examples)
        try:
            train_with_tangents(
                task, model, few, TrainingSettings(batch_size=len(few)), np.ones((1, model.size), model.dtype)
            )
        except NumericalError as exc:
            raise AppError(f"hf-online cannot be prepared for. {exc}", code=exc.code) from exc

    def training_problems(self, training: TrainingSettings) -> list[str]:
        """Refuse other optimizers than SGD, with or without momentum."""
        if training.optimizer == "sgd":
            return super().training_problems(training)
        return [
            f"prepare: hf-online carries vectors through SGD (momentum and weight decay included), whose steps "
            f"have a derivative in closed form; the optimizer is {training.optimizer!r}. Set optimizer to sgd."
        ]

    def erase(self, store: Store, forgotten: Exclusions, *, until: int, rewritten: bool) -> bool:
        """Erase a forgotten client's vector; where samples are forgotten put a mark in its place.

        The others' vectors stay: what a deletion changes in them is of second order.
        """
        for client in kept_clients(store):
            if forgotten.is_forgotten(client):
                store.erase(client)
            elif forgotten.of(client) and store.rounds(client):
                mark_lost(store, client, store.rounds(client)[-1])
        return not forgotten.classes

    def survives(self, *, is_own: bool, moves_model: bool) -> bool:
        """Return whether the vectors followed the model: through their own deletions and training, nothing else.

        What another method does to the model has a derivative that is not carried; retraining starts again.
        """
        return is_own or not moves_model

    def refusal(self, target: Target) -> str:
        """Refuse clients that were not named before training."""
        if target.client_id is None or self.has(target.client_id):
            return ""
        named = ",".join(sorted({*self.clients, target.client_id}))
        return (
            f"vectors are carried for client(s) {', '.join(sorted(self.clients))} only. That would need "
            f'prepare = "hf-online clients={named}" from before the first round.'
        )


def _check_features(work: LocalRound, limit: float) -> None:
    found = feature_norm(work.task, work.examples)
    if found > limit * (
        1 + 1e-6
    ):  # a limit that was taken from these very data must not fail by its last digit
        raise DataError(
            f"Client {work.client_id} has an example with ‖(x, 1)‖ = {found:.4g} before the linear layer, and the "
            f"federation has declared feature_norm={limit:g}, on which its certificates rest. Scale the inputs (or the "
            "features), or declare more."
        )
