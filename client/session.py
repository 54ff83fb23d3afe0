"""A client's part of a session: one process that answers many messages, each as if it were its only one.

The data is loaded once. When something more is forgotten for good the process ends after its answer, so that nothing
of it stays in memory; the server invites the next one.
"""

from flwr.app import Context, Message, RecordDict

from client.answering import Handler
from client.handlers import (
    handle_measure,
    handle_notice,
    handle_train,
    handle_unlearn,
)
from client.memory import memory_of
from client.shadows import handle_fit_shadows, handle_train_shadows
from client.sites import SiteCache, Sites
from strategies.messages import MEASURE, NOTICE, TRAIN, UNLEARN, arrays_content, failure_values, told_values
from strategies.sessions.client_session import run_client_session
from strategies.sessions.payloads import INVITATION, Invitation
from strategies.shadow_rounds import FIT_SHADOWS, TRAIN_SHADOWS
from strategies.tls_files import TlsFiles
from unlearning.errors import FlowerUnlearningError, SessionError

HANDLERS: dict[str, Handler] = {
    TRAIN: handle_train,
    UNLEARN: handle_unlearn,
    MEASURE: handle_measure,
    NOTICE: handle_notice,
    TRAIN_SHADOWS: handle_train_shadows,
    FIT_SHADOWS: handle_fit_shadows,
}
"""What answers a message of each type that a session carries."""


def handle_session(message: Message, context: Context, sites: Sites) -> RecordDict:
    """Answer what the server asks over one stream, until it ends the session or something is forgotten for good."""
    memory, cache = memory_of(context), SiteCache(sites)
    known = memory.tombstones()

    def answer(told: Message) -> RecordDict:
        handler = HANDLERS.get(told.metadata.message_type)
        if handler is None:
            error = SessionError(
                f"There are no messages of type {told.metadata.message_type!r} in a session."
            )
            return arrays_content({}, failure_values(error))
        return handler(told, context, cache)

    try:
        run_client_session(
            Invitation.from_json(told_values(message.content).get(INVITATION, {})),
            answer,
            context.node_id,
            is_over=lambda: memory.tombstones() != known,
            tls=TlsFiles.from_settings(context.node_config),
        )
    except FlowerUnlearningError as exc:
        return arrays_content({}, failure_values(exc))
    return arrays_content({}, {})
