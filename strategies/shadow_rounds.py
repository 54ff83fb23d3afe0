"""Rounds of shadow federations: what travels, and what may enter a shadow model.

All shadow models of a round travel in one message, because each message starts a process at the client. A
client trains each on the examples that its number stands for (`unlearning.verification.shadow_membership`), so no
list of members travels. Round, sampling, learning rate and withheld data are those of ordinary training.

    to a client    shadow.0, shadow.1, ...    the models, each a flat array
    back           the same, each trained; `counts`, the number of examples behind each, 0 where there was none
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from strategies.exchange import read_each
from strategies.fedavg import FedAvg
from strategies.messages import MAX_EXAMPLES, named_arrays
from unlearning.buffers import without_buffers
from unlearning.errors import UpdateRefused
from unlearning.parameters import Vector, weighted_mean
from unlearning.verification.shadow_models import ShadowFits, join_fits

TRAIN_SHADOWS, FIT_SHADOWS = "train.shadows", "evaluate.shadows"
COUNTS = "counts"
HELD_OUT = "held-out"
"""Under this key a message says whether a client's held-out examples are compared with forgotten ones."""
_PREFIX = "shadow."

Local = Mapping[int, tuple[int, Vector]]
"""By shadow federation: number of examples and the model trained on them."""


def shadow_record(models: Sequence[Vector]) -> ArrayRecord:
    """Return shadow models (each (d,), by their number) for messages; share it between them."""
    return ArrayRecord({f"{_PREFIX}{number}": Array(model) for number, model in enumerate(models)})


def shadow_arrays(trained: Local, num_models: int) -> dict[str, NDArray[Any]]:
    """Return a client's answer to `TRAIN_SHADOWS`."""
    counts = np.array([trained[number][0] if number in trained else 0 for number in range(num_models)])
    return {f"{_PREFIX}{number}": model for number, (_, model) in trained.items()} | {COUNTS: counts}


def shadow_models(content: RecordDict) -> list[Vector]:
    """Return the shadow models in a message, by their number.

    Raises:
        UpdateRefused: there is none, one is missing between others, or one cannot be read.
    """
    arrays = named_arrays(content)
    models = [arrays[name] for number in range(len(arrays)) if (name := f"{_PREFIX}{number}") in arrays]
    if not models or len(models) != sum(name.startswith(_PREFIX) for name in arrays):
        raise UpdateRefused(
            f"Shadow models are numbered from 0, got the arrays {sorted(arrays)[:5]}.", code="shadow-numbers"
        )
    return models


def train_messages(
    fedavg: FedAvg, grid: Grid, number: int, models: Sequence[Vector], *, uses_held_out: bool
) -> dict[str, Message]:
    """Return the messages of the shadow round `number` (from 1) by client: that training round's sample."""
    wanted = fedavg.training(number, {HELD_OUT: uses_held_out})
    members = fedavg.choose(number, grid)
    return fedavg.plan.messages(TRAIN_SHADOWS, number, members, wanted, shadow_record(models))


def average_shadows(
    before: Sequence[Vector],
    replies: Mapping[str, RecordDict],
    own: Sequence[Local],
    fedavg: FedAvg,
) -> tuple[list[Vector], list[str], dict[str, str]]:
    """Average the shadow models of a round; the clients that took part in it, sorted; and who was refused and why.

    own: what the server trained on its test examples, each of which counts as one more client. An answer that may not
    enter is left out whole; a shadow model that no client trained stays as it is.
    """
    accepted, refused = read_each(
        replies, lambda client, content: _read_models(client, content, before, fedavg)
    )
    models: list[Vector] = []
    for number, start in enumerate(before):
        mine = {client: local[number] for client, local in accepted.items() if number in local}
        changes = {client: without_buffers(fedavg.task, model - start) for client, (_, model) in mine.items()}
        too_large = fedavg.limits.outliers(changes)
        entering = {client: pair for client, pair in mine.items() if client not in too_large}
        for part, local in enumerate(own):
            if number in local:
                entering[f" {part}"] = local[number]  # no client's id begins with a blank
        models.append(weighted_mean(entering) if entering else start)
    return models, sorted(accepted), refused


def collect_fits(
    replies: Mapping[str, RecordDict], name: str, clients: Iterable[str]
) -> tuple[ShadowFits | None, dict[str, str]]:
    """Read what the clients' shadow models say of their sets `name`, one after another, and who is refused and why."""
    among = set(clients)
    asked = {client: content for client, content in replies.items() if client in among}
    found, refused = read_each(asked, partial(_fits, name))
    fits = [one for one in found.values() if one is not None]
    return join_fits(fits) if fits else None, refused


def _fits(name: str, _client: str, content: RecordDict) -> ShadowFits | None:
    """Return what a client's shadow models say of its set `name`; None where it has none.

    Raises:
        DataError, UpdateRefused: it is malformed.
    """
    arrays = named_arrays(content)
    own = {key.removeprefix(f"{name}."): value for key, value in arrays.items() if key.startswith(f"{name}.")}
    return ShadowFits.from_arrays(own) if own else None


def _read_models(client: str, content: RecordDict, before: Sequence[Vector], fedavg: FedAvg) -> Local:
    """Read an answer's shadow models with their numbers of examples.

    Raises:
        UpdateRefused: what is wrong.
    """
    arrays = named_arrays(content)
    counts = arrays.pop(COUNTS, np.zeros(0))
    if (
        counts.shape != (len(before),)
        or not np.isfinite(counts).all()
        or (counts < 0).any()
        or (counts > MAX_EXAMPLES).any()
    ):
        raise UpdateRefused(f"It counts the examples of {counts.shape} models, asked were {len(before)}.")
    found: dict[int, tuple[int, Vector]] = {}
    for number in np.flatnonzero(counts >= 1).tolist():
        count, model = int(counts[number]), arrays.get(f"{_PREFIX}{number}")
        if model is None:
            raise UpdateRefused(f"The shadow model {number} is missing.")
        fedavg.limits.check_model(model, before[number])
        fedavg.check_count(client, count)
        found[number] = (count, model)
    return found
