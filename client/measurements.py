"""What a client measures of a model on its own examples."""

from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from numpy.typing import NDArray

from client.planted_noise import note_score
from client.site_work import ClientWork, may_measure
from strategies.messages import RECHECK, arrays_content, records_of, vector_of
from strategies.settings.run_config import local_seed
from unlearning.errors import DataError
from unlearning.parameters import Vector
from unlearning.runtime.json_codec import to_plain
from unlearning.tasks.task import Examples, forgotten_mask
from unlearning.verification.observations import observe_model


def measure(message: Message, local: ClientWork) -> RecordDict:
    """Measure the model on the retained, the forgotten and the held-out examples.

    Raises:
        DataError: this client was forgotten, and the measurement does not belong to its deletion; or it is a recheck,
            and the owner has not agreed to any.
    """
    model = vector_of(records_of(message.content, ArrayRecord)["arrays"])
    planted = note_score(local.node_config, local.task, model, local.server_round)
    if not may_measure(local.values, local.node_config):
        raise DataError("Its owner has not agreed to rechecks (node config answer-rechecks).")
    sets = _measured_sets(local)
    arrays: dict[str, NDArray[Any]] = {}
    for name, examples in sets.items():
        # the attack on the change compares posteriors of forgotten with those of test examples
        arrays |= _observe(local, model, name, examples, with_outputs=name != "retained")
    said = {} if planted is None or RECHECK not in local.values else {RECHECK: to_plain(planted)}
    return arrays_content(arrays, said)


def _measured_sets(local: ClientWork) -> dict[str, Examples]:
    """Return the examples of the sets "retained", "forgotten" and "test", those that have any.

    Raises:
        DataError: this client was forgotten, and the measurement does not belong to its deletion.
    """
    forget, tombstones = local.forget_named("forget"), local.memory.tombstones()
    if tombstones.everything and not forget:
        raise DataError("This client was forgotten; it answers no more.")
    mask = forgotten_mask(local.examples, forget)
    retained = ~(mask | forgotten_mask(local.examples, local.tombstones))
    sets = {"retained": local.examples.select(retained), "forgotten": local.examples.select(mask)}
    if not (forget | tombstones).everything:  # a client that leaves takes its held-out data with it
        sets["test"] = local.held_out
    return {name: examples for name, examples in sets.items() if len(examples)}


def _observe(
    local: ClientWork, model: Vector, name: str, examples: Examples, *, with_outputs: bool
) -> dict[str, NDArray[Any]]:
    """Compute one set's observations under the keys `name.…`; which examples are sampled depends on no model."""
    observations = observe_model(
        local.task,
        model,
        examples,
        max_samples=int(local.values.get("samples", local.settings.attack_samples)),
        generator=np.random.default_rng(local_seed(local.settings.seed, f"{local.client_id}/{name}", 0)),
        with_outputs=with_outputs,
    )
    return {f"{name}.{key}": value for key, value in observations.to_arrays().items()}
