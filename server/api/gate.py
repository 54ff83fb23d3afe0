"""What every call passes before the service sees it: identity, limits, role, a well-formed message.

A refusal here or in the service is written down and becomes a gRPC status with a sentence; anything
unexpected becomes a reference into the log, never a stack trace.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from server.api.access import authorise, caller_of
from server.api.errors import answering
from server.api.limits import Limits, Rates
from server.api.refusal_log import RefusalLog
from unlearning.errors import InvalidRequest

# Messages up to this many times the limit are refused by us, with a sentence and a record; larger
# ones by gRPC, before they are read.
HARD_LIMIT_FACTOR = 2


class Gate(grpc.ServerInterceptor):  # type: ignore[type-arg]  # generic in its stubs only
    """Wraps the calls of one service; other services (health) pass untouched."""

    def __init__(
        self,
        service_name: str,
        *,
        limits: Limits,
        refusals: RefusalLog,
        monotonic: Callable[[], float],
        certificates_required: bool,
    ) -> None:
        self._prefix = f"/{service_name}/"
        self._limits = limits
        self._rates = Rates(limits)
        self._refusals = refusals
        self._monotonic = monotonic
        self._certificates_required = certificates_required

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """The handler of a call, behind the gate."""
        handler = continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith(self._prefix):
            return handler
        call = handler_call_details.method.removeprefix(self._prefix)
        parse = handler.request_deserializer

        # The message arrives as bytes and is parsed here, so that what is malformed is answered and
        # recorded like every refusal.
        def unary(raw: bytes, context: grpc.ServicerContext) -> Any:
            with self._passed(call, raw, context, parse) as request:
                return handler.unary_unary(request, context)

        def stream(raw: bytes, context: grpc.ServicerContext) -> Iterator[Any]:
            with self._passed(call, raw, context, parse) as request:
                yield from handler.unary_stream(request, context)

        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(stream, None, handler.response_serializer)
        return grpc.unary_unary_rpc_method_handler(unary, None, handler.response_serializer)

    @contextmanager
    def _passed(
        self, call: str, raw: bytes, context: grpc.ServicerContext, parse: Callable[[bytes], Any]
    ) -> Iterator[Any]:
        caller = caller_of(context, certificates_required=self._certificates_required)
        with answering(context, lambda error: self._refusals.record(caller, call, error)):
            self._rates.take(caller, self._monotonic())
            authorise(caller, call)
            self._limits.check_size(len(raw))
            try:
                request = parse(raw)
            except DecodeError as exc:
                raise InvalidRequest(
                    f"The message of {call} cannot be read: it is not what deletion.proto says. "
                    "Use a client of this version."
                ) from exc
            yield request
