"""What every call passes before the service sees it: identity, rate, role, a place, a well-formed message in time.

`CallChecks.passed` is that for every transport, the rest is gRPC's (HTTP's: server/service/http_api.py).
All but the last is judged by the certificate and the call's name alone, before anything of the message is read:
on the wire a call with one message is a stream of one message, and is served as one here. A call without its
message takes a place of its caller's and no thread.

A refusal here or in the service is written down and becomes a gRPC status with a sentence; anything
unexpected becomes a reference into the log, never a stack trace.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from server.ledger import LimitExceeded
from server.service.access import Caller, authorise, caller_of
from server.service.call_metrics import CallMetrics
from server.service.limits import Limits, Places, Rates
from server.service.refusal_log import RefusalLog
from server.service.statuses import fail
from server.service.workers import Workers
from unlearning.errors import FlowerUnlearningError, InvalidRequest, RequestError, VersionMismatch
from unlearning.protocol import PROTOCOL, check_protocol

# Messages up to this many times the limit are refused by us, with a sentence and a record; larger
# ones by gRPC, as soon as it sees their length.
HARD_LIMIT_FACTOR = 2
# A caller over its rate waits so long for its refusal: a connection has few calls at once, so it cannot make more
# of them than these few in this time.
PENALTY_S = 0.5

_Parsed = TypeVar("_Parsed")


# Bytes both ways: messages are parsed here, so that what is malformed is answered and recorded like every refusal.
Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"


@dataclass(frozen=True, slots=True)
class Exchange:
    """One call that has passed the checks: its caller, its messages, and threads for what blocks."""

    call: str
    caller: Caller
    context: Context
    limits: Limits
    workers: Workers

    async def read(self, parse: Callable[[bytes], _Parsed]) -> _Parsed:
        """Read the caller's one message.

        Raises:
            LimitExceeded: it is too large, or does not come in time.
            InvalidRequest: there is none, or it cannot be read.
        """
        message = await self.read_next(parse)
        if message is None:
            raise InvalidRequest(f"{self.call} came without its message.")
        return message

    async def read_next(self, parse: Callable[[bytes], _Parsed]) -> _Parsed | None:
        """Read the caller's next message, None after the last one; raises as `read`."""
        timeout_s = self.limits.body_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                raw = await self.context.read()
        except TimeoutError:
            raise LimitExceeded(
                f"The message of {self.call} did not come within {timeout_s:g} s. Send less at once.",
                code="slow-message",
            ) from None
        if not isinstance(raw, bytes):  # the mark of the end
            return None
        self.limits.check_size(len(raw))
        try:
            return parse(raw)
        except DecodeError as exc:
            raise InvalidRequest(
                f"The message of {self.call} cannot be read: it is not what deletion.proto says. "
                "Use a client of this version."
            ) from exc

    async def run(self, step: Callable[[], _Parsed]) -> _Parsed:
        """Run a step that blocks in one of the caller's threads; return what it gives."""
        return await self.workers.run(self.caller, step)

    async def write(self, message: Message) -> None:
        """Send an answer; return when the caller has taken it, so a caller that does not read keeps its own place."""
        await self.context.write(message.SerializeToString())


def _check_version(context: Context) -> None:
    """Refuse a tool of another version. Programs with stubs of their own say none: they follow deletion.proto.

    Raises:
        VersionMismatch: names both versions.
    """
    said = dict(context.invocation_metadata() or ()).get(PROTOCOL)
    if said is not None:
        number = int(said) if isinstance(said, str) and said.isdecimal() else None
        check_protocol(number, other="the caller", own="the deletion service")


Serve = Callable[[Exchange], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallChecks:
    """The checks that stand before every call of one server."""

    limits: Limits
    rates: Rates
    refusals: RefusalLog
    workers: Workers
    monotonic: Callable[[], float]
    certificates_required: bool
    metrics: CallMetrics = field(default_factory=CallMetrics)

    def handler(
        self, call: str, serve: Serve, places: Places, *, for_all: bool = False
    ) -> "grpc.RpcMethodHandler[Any, Any]":
        """Return what gRPC runs for a call: `serve`, behind the checks, in one of these places.

        for_all: it needs no role (health).
        """

        async def serve_call(_: object, context: Context) -> None:
            caller = caller_of(context, certificates_required=self.certificates_required)
            try:
                async with self.passed(caller, call, places, for_all=for_all):
                    if not for_all:
                        _check_version(context)
                    await serve(Exchange(call, caller, context, self.limits, self.workers))
            except Exception as exc:  # noqa: BLE001  whatever it is, it is logged and the caller gets the reference
                await fail(context, exc)

        return grpc.stream_stream_rpc_method_handler(serve_call)

    @asynccontextmanager
    async def passed(
        self, caller: Caller, call: str, places: Places, *, for_all: bool = False
    ) -> AsyncIterator[None]:
        """Run a block as one call of a caller, where rate, role and place allow it; on the service's event loop.

        Raises:
            RequestError, VersionMismatch: the call is refused, here or in the block; it is written down by then.
        """
        try:
            with self.metrics.measured(call):
                await self._take(caller)
                if not for_all:
                    authorise(caller, call)
                with places.place(caller):
                    yield
        except (RequestError, VersionMismatch) as exc:
            await self._write_down(caller, call, exc)
            raise

    async def _take(self, caller: Caller) -> None:
        try:
            self.rates.take(caller, self.monotonic())
        except LimitExceeded:
            await asyncio.sleep(PENALTY_S)
            raise

    async def _write_down(self, caller: Caller, call: str, error: FlowerUnlearningError) -> None:
        rows = self.refusals.take(caller, call, error)
        if rows:
            await self.workers.run(caller, lambda: self.refusals.write(rows))
