"""What a client does with each message. All work is here, away from Flower's wiring in `client.app`."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from logging import getLogger
from typing import Any, Protocol

import numpy as np
from flwr.app import ArrayRecord, Context, Message, RecordDict
from numpy.typing import NDArray

from client.last_answer import LastAnswer, key_of
from client.memory import ClientMemory, memory_of, requests_to_send
from client.planted_noise import note_score
from client.sites import LoadedSite, Sites
from strategies.joint_exchange import FAILED, MEASURE_TOO, join_answers
from strategies.messages import (
    CLIENT_ID,
    FROZEN_PART,
    PEAK_MEMORY,
    SUBJECT_KEY,
    arrays_content,
    beside_the_model,
    by_preparation,
    failure_values,
    instruction_of,
    name_for_preparations,
    reply_content,
    round_of,
    told_values,
    vector_of,
    with_values,
)
from strategies.run_config import RunSettings, local_seed
from unlearning.errors import DataError, FlowerUnlearningError, UpdateRefused
from unlearning.methods.method import ClientSite, Reply
from unlearning.methods.preparation import LocalRound
from unlearning.methods.registry import method_named
from unlearning.parameters import Vector
from unlearning.peak_memory import MemoryWatch
from unlearning.plain import from_plain, to_plain
from unlearning.pseudonyms import is_keyed, reveal
from unlearning.requests import Forget
from unlearning.tasks.own_code import name_of
from unlearning.tasks.task import Examples, Task, forgotten_mask, unknown_ids
from unlearning.training import Trained, TrainingSettings, check_frozen_part, train
from unlearning.untrusted import as_line
from unlearning.verification.observations import observe_model

_log = getLogger(__name__)


class Handler(Protocol):
    """What answers one kind of message."""

    def __call__(self, message: Message, context: Context, sites: Sites) -> RecordDict:
        """Return the answer; `sites` loads the client's data, and keeps it where more than one message is answered."""


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


def message_handler(handler: Callable[[Message, ClientWork], RecordDict]) -> Handler:
    """Open the site for `handler`; answer with the reason when something is refused, and with the memory it took.

    A message may ask beside for the measurement of the model that it carries (`strategies.joint_exchange`).
    """

    def handle(message: Message, context: Context, sites: Sites) -> RecordDict:
        memory, last, key = memory_of(context), LastAnswer.of(context), key_of(message, context)
        local: ClientWork | None = None
        with MemoryWatch() as watch:
            try:
                values = record_past(message, memory)
                again = last.find(key)
                if again is not None:
                    return again
                local = _open_site(values, message, context, memory, sites)
                content = handler(message, local)
            except UpdateRefused as exc:  # what the server sends fits the server's model
                made_by = name_of(sites.source.make_task)
                content = _refusal(UpdateRefused(f"The model of {made_by} on this machine: {exc}"))
            except FlowerUnlearningError as exc:
                content = _refusal(exc)
            except Exception as exc:
                if local is None or MEASURE_TOO not in local.values:
                    raise
                _log.exception("The work failed; the model is measured all the same.")
                content = _bug(exc)
        content = with_values(content, {PEAK_MEMORY: to_plain(watch.peak())})
        if local is not None and MEASURE_TOO in local.values:
            content = _and_measured(content, message, local)
        content = add_site_requests(content, memory)
        if local is not None and _may_be_kept(content, local):
            last.keep(key, message.metadata.message_type, content)
        return content

    return handle


def _may_be_kept(content: RecordDict, local: ClientWork) -> bool:
    """Tell whether an answer is one to the work, and says nothing of what is forgotten for good."""
    values = told_values(content)
    is_work = "error" not in values and FAILED not in values
    return is_work and not forgotten_mask(local.examples, local.tombstones).any()


def _refusal(error: FlowerUnlearningError) -> RecordDict:
    return arrays_content({}, failure_values(error))


def _bug(error: Exception) -> RecordDict:
    """Return the answer where one half of the work ended in what Flower would make an error of, were it alone."""
    return arrays_content({}, {"error": as_line(f"{type(error).__name__}: {error}")})


def _and_measured(work: RecordDict, message: Message, local: ClientWork) -> RecordDict:
    """Return the answer with the measurement of the message's model, or why there is none, beside it."""
    started = time.monotonic()
    with MemoryWatch() as watch:
        try:
            content = _measure(message, replace(local, values=local.values[MEASURE_TOO]))
        except FlowerUnlearningError as exc:
            content = _refusal(exc)
        except Exception as exc:  # noqa: BLE001 - whatever it is, the work is done
            _log.exception("The measurement failed; the work is done all the same.")
            content = _bug(exc)
    content = with_values(content, {PEAK_MEMORY: to_plain(watch.peak())})
    return join_answers(work, content, time.monotonic() - started)


def _open_site(
    values: Mapping[str, Any], message: Message, context: Context, memory: ClientMemory, sites: Sites
) -> ClientWork:
    """Return the opened site for a message with these `values`."""
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


def record_past(message: Message, memory: ClientMemory) -> dict[str, Any]:
    """Return a message's values; keep in `memory` what it says about the past."""
    values = told_values(message.content)
    memory.confirm(values.get("answers", {}))
    memory.add_tombstones(
        from_plain(Forget, values.get("excluded", {})), bytes.fromhex(values.get(SUBJECT_KEY, ""))
    )
    return values


def add_site_requests(content: RecordDict, memory: ClientMemory) -> RecordDict:
    """Return the answer with the requests that were filed at this site, those that wait longest first."""
    filed = requests_to_send(memory)
    return with_values(content, {"site-requests": filed}) if filed else content


@message_handler
def handle_train(message: Message, local: ClientWork) -> RecordDict:
    """Train on everything that is not forgotten; the answer is the new model."""
    examples = local.examples_without(local.forget_named("withheld"))
    if "training" in local.values:
        training = TrainingSettings(**local.values["training"])
    else:  # a stock strategy sends none
        training = local.settings.training(local.server_round)
    trained, beside = _train_locally(
        local, message.content.array_records["arrays"], examples, local.training(training)
    )
    return reply_content(
        Reply(
            vector=trained.parameters,
            num_examples=trained.num_examples,
            metrics={"loss": trained.loss},
            arrays=beside,
        ),
        {},
    )


def _train_locally(
    local: ClientWork, arrays: ArrayRecord, examples: Examples, training: TrainingSettings
) -> tuple[Trained, dict[str, NDArray[Any]]]:
    """Train locally, with what prepared methods do in it; return the result and what they return beside it."""
    model, received = vector_of(arrays), by_preparation(beside_the_model(arrays))
    step = partial(train, local.task, model, examples, training)
    returns: dict[str, dict[str, NDArray[Any]]] = {}
    for name, prepared in local.settings.preparations().items():
        work = LocalRound(
            client_id=str(local.values.get(CLIENT_ID, local.client_id)),
            number=local.server_round,
            task=local.task,
            model=model,
            examples=examples,
            training=training,
            store=local.memory.store(name),
            arrays=received.get(name, {}),
            returns=returns.setdefault(name, {}),
        )
        step = partial(prepared.preparation.train, prepared.options, work, step)
    trained = step()
    return trained, name_for_preparations(returns)


@message_handler
def handle_unlearn(message: Message, local: ClientWork) -> RecordDict:
    """Do one step of an unlearning method.

    Raises:
        DataError: the instruction names example ids that this client does not have.
    """
    name, instruction = instruction_of(message)
    forget = local.reveal(instruction.forget)
    site = _site(local, name, forget)
    instruction = replace(instruction, forget=forget, training=local.training(instruction.training))
    return reply_content(method_named(name).client_step(instruction, site), {})


def _site(local: ClientWork, method: str, forget: Forget) -> ClientSite:
    missing = unknown_ids(local.examples, forget.sample_ids)
    if missing:
        plain = [item for item in missing if not is_keyed(item)]
        named = f": {', '.join(plain[:5])}{', …' if len(missing) > 5 else ''}" if plain else ""
        raise DataError(
            f"{len(missing):,} of the {len(forget.sample_ids):,} sample ids are not among this client's examples"
            f"{named}."
        )
    withheld = local.forget_named("withheld")
    key = (method, forget, withheld)
    if key not in local.loaded.sites:
        available = local.examples_without()
        local.loaded.sites[key] = ClientSite(
            task=local.task,
            forget=available.select(forgotten_mask(available, forget)),
            retain=local.examples_without(withheld, forget),
            store=local.memory.store(method),
        )
    return local.loaded.sites[key]


def _measure(message: Message, local: ClientWork) -> RecordDict:
    """Measure the model on the retained, the forgotten and the held-out examples.

    Raises:
        DataError: this client was forgotten, and the measurement does not belong to its deletion.
    """
    forget = local.forget_named("forget")
    if local.memory.tombstones().everything and not forget:
        raise DataError("This client was forgotten; it answers no more.")
    mask = forgotten_mask(local.examples, forget)
    retained = ~(mask | forgotten_mask(local.examples, local.tombstones))
    model = vector_of(message.content.array_records["arrays"])
    note_score(local.node_config, local.task, model, local.server_round)
    arrays: dict[str, NDArray[Any]] = {}
    for name, examples in (
        ("retained", local.examples.select(retained)),
        ("forgotten", local.examples.select(mask)),
        ("test", local.held_out),
    ):
        if name == "test" and (forget | local.memory.tombstones()).everything:
            continue  # a client that leaves takes its held-out data with it
        if len(examples):
            # the attack on the change compares posteriors of forgotten with those of test examples
            arrays |= _observe(local, model, name, examples, with_outputs=name != "retained")
    return arrays_content(arrays, {})


handle_measure = message_handler(_measure)


def handle_notice(message: Message, context: Context, sites: Sites) -> RecordDict:  # noqa: ARG001 - as all handlers
    """Take in what every message says; neither data nor model is needed for that."""
    memory = memory_of(context)
    record_past(message, memory)
    LastAnswer.of(context).erase()
    return add_site_requests(arrays_content({}, {}), memory)


def _observe(
    local: ClientWork, model: Vector, name: str, examples: Examples, *, with_outputs: bool
) -> dict[str, NDArray[Any]]:
    """Compute one set's observations under the keys `name.…`; which examples are sampled depends on no model."""
    observations = observe_model(
        local.task,
        model,
        examples,
        max_samples=int(local.values.get("samples", local.settings.attack_samples)),
        generator=sampling_generator(local, name),
        with_outputs=with_outputs,
    )
    return {f"{name}.{key}": value for key, value in observations.to_arrays().items()}


def sampling_generator(local: ClientWork, name: str) -> np.random.Generator:
    """Return the generator that draws the sample of the set `name`: the same whenever and whatever is asked of it."""
    return np.random.default_rng(local_seed(local.settings.seed, f"{local.client_id}/{name}", 0))


def handle_whoami(message: Message, context: Context, sites: Sites) -> RecordDict:  # noqa: ARG001 - as all handlers
    """Return which client this node says it is."""
    memory = memory_of(context)
    return add_site_requests(arrays_content({}, {"client-id": client_id_of(context)}), memory)
