"""What a client does for shadow federations: train each on its half, and say what they make of examples.

A client keeps nothing of them. What was forgotten, or waits to be, takes no part in their training.
"""

from typing import Any

from flwr.app import Message, RecordDict
from numpy.typing import NDArray

from client.answering import message_handler
from client.measuring import measured_sets, sampling_generator
from client.work import ClientWork
from strategies.messages import CLIENT_ID, arrays_content
from strategies.shadow_rounds import HELD_OUT, shadow_arrays, shadow_models
from unlearning.errors import DataError
from unlearning.parameters import Vector
from unlearning.tasks.task import Examples, forgotten_mask, join
from unlearning.training import TrainingSettings
from unlearning.verification.shadow_models import fit_models, train_models


@message_handler
def handle_train_shadows(message: Message, local: ClientWork) -> RecordDict:
    """Train every shadow model on the examples that its number stands for.

    Raises:
        DataError: this client was forgotten.
    """
    if local.memory.tombstones().everything:
        raise DataError("This client was forgotten; it trains no more.")
    models = shadow_models(message.content)
    withheld = local.forget_named("withheld")
    examples = local.examples_without(withheld)
    if local.values.get(HELD_OUT):
        forgotten = local.tombstones | withheld
        held_out = local.held_out
        examples = join(examples, held_out.select(~forgotten_mask(held_out, forgotten)))
    trained = train_models(
        local.task,
        models,
        examples,
        TrainingSettings(**local.values["training"]),
        seed=local.settings.seed,
        holder=str(local.values.get(CLIENT_ID, local.client_id)),
        number=local.server_round,
    )
    return arrays_content(shadow_arrays(trained, len(models)), {})


@message_handler
def handle_fit_shadows(message: Message, local: ClientWork) -> RecordDict:
    """Compute what the shadow models make of the forgotten examples and of held-out ones, of each set a sample.

    The sample and its handles are those of the measurements (`client.handlers.handle_measure`).

    Raises:
        DataError: this client was forgotten, and this does not belong to its deletion.
    """
    sets, models = measured_sets(local), shadow_models(message.content)
    arrays: dict[str, NDArray[Any]] = {}
    for name in ("forgotten", "test") if local.values.get(HELD_OUT) else ("forgotten",):
        if name in sets:
            arrays |= _fit(local, models, name, sets[name])
    return arrays_content(arrays, {})


def _fit(local: ClientWork, models: list[Vector], name: str, examples: Examples) -> dict[str, NDArray[Any]]:
    fits = fit_models(
        local.task,
        models,
        examples,
        seed=local.settings.seed,
        max_samples=int(local.values.get("samples", local.settings.attack_samples)),
        generator=sampling_generator(local, name),
    )
    return {f"{name}.{key}": value for key, value in fits.to_arrays().items()}
