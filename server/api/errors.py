"""The one table from this project's errors to gRPC's, and the way back.

an error on the server ──► status code + message + trailing metadata with the error's name
                       ──► the same error at the client
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from uuid import uuid4

import grpc

from server.ledger import LedgerUnavailable
from unlearning.errors import (
    AlreadyForgotten,
    ConflictingRequest,
    FlowerUnlearningError,
    IllegalMove,
    InvalidRequest,
    RequestError,
    RequestNotFound,
    UnknownClient,
    UnknownMethod,
    UnsupportedRequest,
)

log = logging.getLogger(__name__)

ERROR_NAME = "flower-unlearning-error"
# The trailing headers of a call may hold 8 KiB, and escaping can triple a message.
MAX_MESSAGE_BYTES = 2000

STATUS_OF: Mapping[type[FlowerUnlearningError], grpc.StatusCode] = {
    RequestError: grpc.StatusCode.FAILED_PRECONDITION,
    InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    UnknownClient: grpc.StatusCode.NOT_FOUND,
    UnknownMethod: grpc.StatusCode.NOT_FOUND,
    UnsupportedRequest: grpc.StatusCode.FAILED_PRECONDITION,
    AlreadyForgotten: grpc.StatusCode.FAILED_PRECONDITION,
    ConflictingRequest: grpc.StatusCode.ALREADY_EXISTS,
    RequestNotFound: grpc.StatusCode.NOT_FOUND,
    IllegalMove: grpc.StatusCode.FAILED_PRECONDITION,
    LedgerUnavailable: grpc.StatusCode.UNAVAILABLE,
}
_ERROR_NAMED = {error.__name__: error for error in STATUS_OF}


class ServiceUnavailable(FlowerUnlearningError):
    """The deletion service does not answer, or could not; whether a change took place is not known."""


@contextmanager
def answering(context: grpc.ServicerContext) -> Iterator[None]:
    """Turn an error of the block into the status of the call; ours by the table, others as INTERNAL.

    The caller sees no stack trace but a reference that the log has too.
    """
    if not context.is_active():
        # The deadline passed while the call waited for a thread; its caller no longer counts on it.
        context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "The deadline had passed; nothing was done.")
    try:
        yield
    except tuple(STATUS_OF) as exc:
        context.set_trailing_metadata(((ERROR_NAME, type(exc).__name__),))
        context.abort(STATUS_OF[type(exc)], _shortened(str(exc)))
    except Exception:
        reference = uuid4().hex[:12]
        log.exception("Unexpected error in the deletion service (reference %s)", reference)
        context.abort(
            grpc.StatusCode.INTERNAL,
            f"The deletion service failed; its log has the cause under reference {reference}.",
        )


def error_of(call: grpc.RpcError, address: str) -> FlowerUnlearningError:
    """The error that the service raised, or `ServiceUnavailable` where it did not get that far."""
    assert isinstance(call, grpc.Call)
    details = call.details() or "no details"
    for key, value in call.trailing_metadata() or ():
        if key == ERROR_NAME and value in _ERROR_NAMED:
            return _ERROR_NAMED[str(value)](details)
    if call.code() is grpc.StatusCode.UNAVAILABLE:
        return ServiceUnavailable(
            f"No deletion service answers at {address}: {details}. Start it with `flower-unlearn serve`, "
            "or give the right --server (and TLS options)."
        )
    if call.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return ServiceUnavailable(f"The deletion service at {address} did not answer in time. Try again.")
    return ServiceUnavailable(
        f"The deletion service at {address} refused the call ({call.code()}): {details}"
    )


def _shortened(message: str) -> str:
    encoded = message.encode()
    if len(encoded) <= MAX_MESSAGE_BYTES:
        return message
    return encoded[:MAX_MESSAGE_BYTES].decode(errors="ignore") + " …"
