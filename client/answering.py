"""How a client answers any message: its statements about the past are kept first, then a handler does the work.

A refusal is an answer with the reason. Every answer carries the memory that the work took and the requests filed at the
site. A site that cannot take part reports that before anything else, in a form that every version reads.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from logging import getLogger
from typing import Any, Protocol

from flwr.app import Context, Message, RecordDict

from client.context_memory import memory_of
from client.last_answer import LastAnswer, key_of
from client.measurements import measure
from client.memory import ClientMemory, requests_to_send
from client.mods import work_through_mods
from client.node_config import node_problems
from client.secure_rounds import is_secure, masked, refuse_in_the_clear
from client.site_work import ClientWork, Sites, client_id_of, open_work
from strategies.built_in import NO_TABLE
from strategies.joint_exchange import FAILED, MEASURE_TOO, join_answers
from strategies.messages import (
    AHEAD,
    CLIENT_ID,
    LASTING,
    LEDGER,
    OBSTACLE,
    PEAK_MEMORY,
    PROBLEM,
    SUBJECT_KEY,
    WHOAMI,
    arrays_content,
    failure_values,
    text_of,
    told_values,
    with_values,
)
from unlearning.errors import ConfigurationError, FlowerUnlearningError, UpdateRefused, VersionMismatch
from unlearning.one_line import as_line
from unlearning.protocol import PROTOCOL, check_protocol
from unlearning.requests import Forget
from unlearning.runtime.json_codec import from_plain, to_plain
from unlearning.runtime.peak_memory import MemoryWatch
from unlearning.tasks.own_code import name_of
from unlearning.tasks.task import forgotten_mask

_log = getLogger(__name__)


class Handler(Protocol):
    """What answers one kind of message."""

    def __call__(self, message: Message, context: Context, sites: Sites) -> RecordDict:
        """Return the answer; `sites` loads the client's data, and keeps it where more than one message is answered."""


def answer(handle: Handler, message: Message, context: Context, sites: Sites) -> RecordDict:
    """Return the answer of `handle` to a message that came by Flower, or why this site can do nothing of the kind."""
    why = _obstacle(message, context, sites)
    if why:
        _log.error("This site cannot take part: %s", why)
        is_whoami = message.metadata.message_type == WHOAMI
        found = (
            {CLIENT_ID: client_id_of(context), OBSTACLE: why} if is_whoami else {"error": why, LASTING: True}
        )
        return arrays_content({}, found)
    return handle(message, context, sites)


def _obstacle(message: Message, context: Context, sites: Sites) -> str:
    """Say why this site can do nothing that this server's run asks for; empty if it can."""
    try:
        memory = memory_of(context)
    except (ConfigurationError, VersionMismatch) as exc:
        return str(exc)
    try:
        if text_of(message.content):  # a stock strategy of Flower sends none
            found = told_values(message.content).get(PROTOCOL)
            check_protocol(found, other="the server", own="this site")
        sites.source.read(context.run_config)
        wrong = node_problems(context.node_config, is_built_in=sites.source.table == NO_TABLE)
    except VersionMismatch as exc:
        why = str(exc)
    except ConfigurationError as exc:
        why = f"The program of this site cannot read the settings of the run: {exc}"
    else:
        why = str(ConfigurationError(wrong)) if wrong else ""
    if why:
        memory.note_problem(why)
    return why


def message_handler(handler: Callable[[Message, ClientWork], RecordDict]) -> Handler:
    """Open the site for `handler`; answer with the reason when something is refused, and with the memory it took.

    A message may ask beside for the measurement of the model that it carries (`strategies.joint_exchange`).
    """

    def handle(message: Message, context: Context, sites: Sites) -> RecordDict:
        memory, last, key = memory_of(context), LastAnswer(context), key_of(message, context)
        local: ClientWork | None = None
        values: dict[str, Any] = {}
        with MemoryWatch() as watch:
            try:
                refuse_in_the_clear(message, context.node_config)
                values = record_past(message, memory)
                again = last.find(key)
                if again is not None:
                    return again
                local = opened = open_work(values, message, context, memory, sites)
                content = work_through_mods(
                    sites.mods, lambda received: handler(received, opened), message, context
                )
                if is_secure(message):
                    content = masked(content, message, opened, context)
            except UpdateRefused as exc:  # what the server sends fits the server's model
                made_by = name_of(sites.source.make_task)
                content = _refusal(UpdateRefused(f"The model of {made_by} on this machine: {exc}"))
            except FlowerUnlearningError as exc:
                content = _refusal(exc)
                if local is None:  # its data cannot be loaded, so it can answer no message
                    memory.note_problem(str(exc))
            except Exception as exc:
                if local is None or MEASURE_TOO not in local.values:
                    raise
                _log.exception("The work failed; the model is measured all the same.")
                content = _bug(exc)
        if not is_secure(message):  # it grows with the number of examples
            content = with_values(content, {PEAK_MEMORY: to_plain(watch.peak())})
        if local is not None and MEASURE_TOO in local.values:
            content = _and_measured(content, message, local)
        if values.get(AHEAD):
            content = with_values(content, {AHEAD: True})
        content = add_site_requests(content, memory)
        if local is not None and _may_be_kept(content, local):
            content = last.keep(key, message.metadata.message_type, content)
        return content

    return handle


def _may_be_kept(content: RecordDict, local: ClientWork) -> bool:
    """Return whether an answer is one to the work, and contains nothing of permanently forgotten examples."""
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
            content = measure(message, replace(local, values=local.values[MEASURE_TOO]))
        except FlowerUnlearningError as exc:
            content = _refusal(exc)
        except Exception as exc:  # noqa: BLE001 - whatever it is, the work is done
            _log.exception("The measurement failed; the work is done all the same.")
            content = _bug(exc)
    content = with_values(content, {PEAK_MEMORY: to_plain(watch.peak())})
    return join_answers(work, content, time.monotonic() - started)


def record_past(message: Message, memory: ClientMemory) -> dict[str, Any]:
    """Return a message's values, and as `AHEAD` whether its ledger says less than before.

    `memory` keeps its tombstones, its answers to requests and the site's problem.
    """
    values = told_values(message.content)
    memory.confirm(values.get("answers", {}))
    memory.note_problem(str(values.get(PROBLEM, "")))
    excluded = from_plain(Forget, values.get("excluded", {}))
    memory.add_tombstones(excluded, bytes.fromhex(values.get(SUBJECT_KEY, "")))
    values[AHEAD] = LEDGER in values and memory.note_excluded(str(values[LEDGER]), excluded)
    return values


def add_site_requests(content: RecordDict, memory: ClientMemory) -> RecordDict:
    """Return the answer with the requests that were filed at this site, those that wait longest first."""
    filed = requests_to_send(memory)
    return with_values(content, {"site-requests": filed}) if filed else content
