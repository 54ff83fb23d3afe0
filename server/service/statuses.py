"""The one table from this project's errors to gRPC's, and the way back.

an error on the server ──► status code + message + trailing metadata with the error's name
                       ──► the same error at the client
"""

import logging
from collections.abc import Mapping, Sequence
from uuid import uuid4

import grpc

from server.ledger import LedgerUnavailable, LimitExceeded
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
    VersionMismatch,
)

log = logging.getLogger(__name__)

ERROR_NAME = "flower-unlearning-error"
ERROR_CODE = "flower-unlearning-code"
# The trailing headers of a call may hold 8 KiB, and escaping can triple a message.
MAX_MESSAGE_BYTES = 2000
# What gRPC says of a connection that could be opened, with TLS at the caller or without or either, and what it means.
_CLOSED_AT_ONCE = "failed to connect to all addresses; last error: UNAVAILABLE"
_TLS_TROUBLE: Sequence[tuple[str, bool | None, str]] = (
    (
        "CERTIFICATE_VERIFY_FAILED",
        True,
        "its certificate was not signed by the authority in --tls-ca, or has expired: give the federation's ca.crt.",
    ),
    (
        "Hostname Verification Check failed",
        True,
        "its certificate is not for this name: give --server a name or address that the certificate has.",
    ),
    (
        "WRONG_VERSION_NUMBER",
        True,
        "without TLS: leave out --tls-ca, --tls-cert and --tls-key, or give the right --server.",
    ),
    (
        _CLOSED_AT_ONCE,
        True,
        "closes the connection: it does not accept your certificate, or you gave none. Give --tls-cert and --tls-key "
        "as the federation's authority signed them, and look whether they have expired.",
    ),
    (
        _CLOSED_AT_ONCE,
        False,
        "closes the connection: it probably needs TLS. Give --tls-ca, --tls-cert and --tls-key.",
    ),
)


class NotAuthenticated(RequestError):
    """A call whose certificate or token does not say who calls and in which role."""


class AccessDenied(RequestError):
    """A call that the caller's role does not allow."""


class ServiceUnavailable(FlowerUnlearningError):
    """A call that the service did not answer as it should, so that it is not known whether a change took place.

    `code` is "absent" where nothing takes connections there, "tls" where they fail over certificates or encryption.
    """

    exit_code = 4


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
    NotAuthenticated: grpc.StatusCode.UNAUTHENTICATED,
    AccessDenied: grpc.StatusCode.PERMISSION_DENIED,
    LimitExceeded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    LedgerUnavailable: grpc.StatusCode.UNAVAILABLE,
    ServiceUnavailable: grpc.StatusCode.UNAVAILABLE,
    VersionMismatch: grpc.StatusCode.FAILED_PRECONDITION,
}
_ERROR_NAMED = {error.__name__: error for error in STATUS_OF}


def status_of(error: FlowerUnlearningError) -> grpc.StatusCode:
    """Return the status by which a refusal travels; errors that the table does not name count as their parents."""
    return next(STATUS_OF[kind] for kind in type(error).__mro__ if kind in STATUS_OF)


async def fail(context: "grpc.aio.ServicerContext[bytes, bytes]", error: Exception) -> None:
    """End a call that has met an error; does not return.

    Errors of the table go by their status, name, code and message. Of others the caller sees no stack trace but a
    reference that the log has too.
    """
    if isinstance(error, FlowerUnlearningError) and isinstance(error, tuple(STATUS_OF)):
        context.set_trailing_metadata(((ERROR_NAME, name_on_the_wire(error)), (ERROR_CODE, error.code)))
        await context.abort(status_of(error), shorten(str(error)))
    await context.abort(grpc.StatusCode.INTERNAL, refer_to_log(error))


def refer_to_log(error: Exception) -> str:
    """Log an unexpected error; return the message for the caller, a reference that the log has too."""
    reference = uuid4().hex[:12]
    log.error("Unexpected error in the deletion service (reference %s)", reference, exc_info=error)
    return f"The deletion service failed; its log has the cause under reference {reference}."


def error_of(call: grpc.RpcError, address: str, *, uses_tls: bool) -> FlowerUnlearningError:
    """Return the error that the service raised, or `ServiceUnavailable` where it did not get that far.

    uses_tls: whether the caller's connection is encrypted.
    """
    assert isinstance(call, grpc.Call)
    details = call.details() or "no details"
    trailing = {key: str(value) for key, value in call.trailing_metadata() or ()}
    if trailing.get(ERROR_NAME) in _ERROR_NAMED:
        return _ERROR_NAMED[trailing[ERROR_NAME]](details, code=trailing.get(ERROR_CODE, ""))
    if call.code() is grpc.StatusCode.UNAVAILABLE:
        for sign, needs_tls, cause in _TLS_TROUBLE:
            if sign in details and needs_tls in (uses_tls, None):
                return ServiceUnavailable(f"{address} answers, but {cause}", code="tls")
        return ServiceUnavailable(
            f"No deletion service answers at {address}: {details}. Start it with `flower-unlearn serve`, "
            "or give the right --server.",
            code="absent",
        )
    if call.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return ServiceUnavailable(f"The deletion service at {address} did not answer in time. Try again.")
    if call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:  # gRPC's own limits: message size, calls at once
        return LimitExceeded(f"{details} Send less at once, or try again later.")
    return ServiceUnavailable(
        f"The deletion service at {address} refused the call ({call.code()}): {details}"
    )


def name_on_the_wire(error: FlowerUnlearningError) -> str:
    """Return the name by which callers know an error of the table."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind in STATUS_OF)


def shorten(message: str) -> str:
    """Return a message that fits into an answer and is Unicode."""
    encoded = message.encode(errors="replace")  # JSON may hold half of a surrogate pair
    message = encoded.decode()
    if len(encoded) <= MAX_MESSAGE_BYTES:
        return message
    return encoded[:MAX_MESSAGE_BYTES].decode(errors="ignore") + " …"
