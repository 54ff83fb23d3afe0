"""What a client does with each message. All work is here, away from Flower's wiring in `client.app`."""

from dataclasses import replace
from typing import Any

from flwr.app import ArrayRecord, Context, Message, RecordDict
from numpy.typing import NDArray

from client.answering import Handler, add_site_requests, message_handler, record_past
from client.context_memory import memory_of
from client.last_answer import LastAnswer
from client.measurements import measure
from client.memory import ARRIVING, keep_values, state_dir_of, values_before
from client.sample_privacy import count_training, refuse_unhidden_method
from client.secure_rounds import answer_stage
from client.site_work import ClientWork, SiteCache, Sites, client_id_of
from strategies.messages import (
    CLIENT_ID,
    KNOWN,
    MEASURE,
    NOTICE,
    PART,
    RECHECK,
    SECURE_STAGE,
    SESSION,
    TRAIN,
    UNLEARN,
    WHOAMI,
    arrays_content,
    beside_the_model,
    by_preparation,
    config_beside,
    failure_values,
    instruction_of,
    name_for_preparations,
    records_of,
    reply_content,
    told_values,
    vector_of,
)
from strategies.sessions.client_session import run_client_session
from strategies.sessions.payloads import INVITATION, Invitation
from strategies.tls_files import TlsFiles
from unlearning.errors import DataError, FlowerUnlearningError, SecureAggregationError, SessionError
from unlearning.local_layers import at_site
from unlearning.methods.method import ClientSite, Instruction, Method, Reply
from unlearning.methods.preparation import LocalRound, train_prepared
from unlearning.methods.registry import method_named
from unlearning.pseudonyms import is_keyed
from unlearning.requests import Forget, KnownSamples
from unlearning.runtime.json_codec import from_plain, to_plain
from unlearning.runtime.spool import make_spool
from unlearning.tasks.task import Examples, forgotten_mask, unknown_ids
from unlearning.training import Trained, TrainingSettings
from unlearning.untrusted import reason_of


@message_handler
def handle_train(message: Message, local: ClientWork) -> RecordDict:
    """Train on everything that is not forgotten; the answer is the new model."""
    examples = local.examples_without(local.forget_named("withheld"))
    if "training" in local.values:
        training = TrainingSettings(**local.values["training"])
    else:  # a stock strategy sends none
        training = local.settings.training(local.server_round)
    training = replace(training, proximal_mu=_proximal_mu(message))
    account = count_training(local, training, examples)
    trained, beside = _train_locally(
        local, records_of(message.content, ArrayRecord)["arrays"], examples, local.training(training)
    )
    return reply_content(
        Reply(
            vector=trained.parameters,
            num_examples=trained.num_examples,
            metrics={"loss": trained.loss},
            arrays=beside,
        ),
        account if local.loaded.part is None else {PART: local.loaded.part, **account},
    )


def _proximal_mu(message: Message) -> float:
    """Return the weight of FedProx's term, which its strategy tells every client; 0 where it tells none."""
    value = config_beside(message.content).get("proximal-mu", 0.0)
    return float(value) if isinstance(value, int | float) else 0.0


def _train_locally(
    local: ClientWork, arrays: ArrayRecord, examples: Examples, training: TrainingSettings
) -> tuple[Trained, dict[str, NDArray[Any]]]:
    """Train locally, with what prepared methods do in it; return the result and what they return beside it."""
    model, received = vector_of(arrays), by_preparation(beside_the_model(arrays))
    task, number = local.loaded.task, local.server_round
    withheld = from_plain(Forget, local.values.get("withheld", {}))
    if task.local_layers:
        task = at_site(task, values_before(local.memory, withheld, number))
    work = LocalRound(
        client_id=str(local.values.get(CLIENT_ID, local.client_id)),
        number=number,
        task=task,
        model=model,
        examples=examples,
        training=training,
    )
    trained, returns = train_prepared(local.settings.preparations(), work, local.memory.store, received)
    if task.local_layers:
        keep_values(local.memory, withheld, number, trained.local)
    return trained, name_for_preparations(returns)


@message_handler
def handle_unlearn(message: Message, local: ClientWork) -> RecordDict:
    """Do one step of an unlearning method.

    Raises:
        DataError: the instruction names example ids that this client does not have.
    """
    name, instruction = instruction_of(message)
    forget = local.reveal(instruction.forget)
    method = method_named(name)
    instruction = replace(instruction, forget=forget, training=local.training(instruction.training))
    site = _site(local, method, instruction)
    refuse_unhidden_method(local, method.info)
    account = count_training(local, instruction.training, site.retain)
    return reply_content(method.client_step(instruction, site), account)


def _site(local: ClientWork, method: Method, instruction: Instruction) -> ClientSite:
    forget, had = instruction.forget, local.tombstones.sample_ids
    if not method.uses_forgotten(instruction):
        had |= local.loaded.removed
    missing = [one for one in unknown_ids(local.examples, forget.sample_ids) if one not in had]
    if missing:
        plain = [item for item in missing if not is_keyed(item)]
        named = f": {', '.join(plain[:5])}{', …' if len(missing) > 5 else ''}" if plain else ""
        raise DataError(
            f"{len(missing):,} of the {len(forget.sample_ids):,} sample ids are not among this client's examples"
            f"{named}."
        )
    withheld = local.forget_named("withheld")
    key = (method.info.name, forget, withheld)
    if key not in local.loaded.sites:
        available = local.examples_without()
        local.loaded.sites[key] = ClientSite(
            task=local.task,
            forget=available.select(forgotten_mask(available, forget)),
            retain=local.examples_without(withheld, forget),
            store=local.memory.store(method.info.name),
        )
    site = local.loaded.sites[key]
    return replace(site, task=local.task, memo={}) if local.task.local_layers else site


handle_measure = message_handler(measure)


@message_handler
def handle_known(_: Message, local: ClientWork) -> RecordDict:
    """Say which of some samples this client does not have, or no longer, and which it may never use again."""
    ids = from_plain(Forget, local.values["forget"]).sample_ids
    asked = {local.loaded.names.get(item, item): item for item in ids}
    tombstones = local.tombstones
    unknown = {*unknown_ids(local.examples, asked)}
    removed, erased = unknown & local.loaded.removed, unknown & tombstones.sample_ids
    of_these = forgotten_mask(local.examples, Forget(sample_ids=frozenset(asked)))
    gone = local.examples.select(of_these & forgotten_mask(local.examples, tombstones))
    labels = gone.targets.tolist() if gone.has_labels else [None] * len(gone)
    forgotten = dict.fromkeys(asked[item] for item in erased) | {
        asked[item]: label if label in tombstones.classes else None
        for item, label in zip(gone.ids.tolist(), labels, strict=True)
    }
    known = KnownSamples(
        unknown=frozenset(asked[item] for item in unknown - removed - erased),
        removed=frozenset(asked[item] for item in removed),
        forgotten=forgotten,
        moved=local.loaded.moved,
    )
    return arrays_content({}, to_plain(known))


def handle_notice(message: Message, context: Context, sites: Sites) -> RecordDict:  # noqa: ARG001 - as all handlers
    """Keep what every message carries; neither data nor model is needed for that."""
    memory = memory_of(context)
    record_past(message, memory)
    LastAnswer(context).erase()
    return add_site_requests(arrays_content({}, {}), memory)


def handle_whoami(message: Message, context: Context, sites: Sites) -> RecordDict:  # noqa: ARG001 - as all handlers
    """Return the client id that this node declares."""
    memory = memory_of(context)
    return add_site_requests(arrays_content({}, {"client-id": client_id_of(context)}), memory)


def handle_secure_stage(message: Message, context: Context, sites: Sites) -> RecordDict:  # noqa: ARG001 - as all handlers
    """Answer a stage of a round of secure aggregation; neither data nor model is needed for that."""
    memory = memory_of(context)
    try:
        content = answer_stage(message, context)
    except (FlowerUnlearningError, ValueError, KeyError) as exc:
        known = exc if isinstance(exc, FlowerUnlearningError) else SecureAggregationError(reason_of(exc))
        content = arrays_content({}, failure_values(known))
    return add_site_requests(content, memory)


IN_SESSIONS: dict[str, Handler] = {
    TRAIN: handle_train,
    UNLEARN: handle_unlearn,
    MEASURE: handle_measure,
    NOTICE: handle_notice,
    KNOWN: handle_known,
    SECURE_STAGE: handle_secure_stage,
}
"""What answers a message of each type that a session carries."""


def handle_session(message: Message, context: Context, sites: Sites) -> RecordDict:
    """Answer messages over one stream, until the server ends the session or something more is permanently forgotten.

    The data is loaded once, and the process ends after the answer to a message with new tombstones or to a recheck, so
    that nothing of what is forgotten stays in memory; the server invites the next process.
    """
    memory, cache, directory = memory_of(context), SiteCache(sites), state_dir_of(context.node_config)
    known, rechecked = memory.tombstones(), False

    def answer(received: Message) -> RecordDict:
        nonlocal rechecked
        rechecked = rechecked or RECHECK in told_values(received.content)
        handler = IN_SESSIONS.get(received.metadata.message_type)
        if handler is None:
            error = SessionError(
                f"There are no messages of type {received.metadata.message_type!r} in a session."
            )
            return arrays_content({}, failure_values(error))
        return handler(received, context, cache)

    try:
        run_client_session(
            Invitation.from_json(told_values(message.content).get(INVITATION, {})),
            answer,
            context.node_id,
            is_over=lambda: rechecked or memory.tombstones() != known,
            tls=TlsFiles.from_settings(context.node_config),
            spool=None if directory is None else make_spool(directory / ARRIVING),
        )
    except FlowerUnlearningError as exc:
        return arrays_content({}, failure_values(exc))
    return arrays_content({}, {})


HANDLERS: dict[str, Handler] = {**IN_SESSIONS, SESSION: handle_session, WHOAMI: handle_whoami}
"""What answers a message of each type that comes by Flower."""
