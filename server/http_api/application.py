"""The HTTP calls: each is one call of the deletion service, behind the same checks as over gRPC.

Token, rate, role and a place are judged before anything of a body is read; a body then has as much time and room as a
message over gRPC. What is refused is in the ledger before the caller has its answer.
"""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from server.api import convert
from server.api import deletion_pb2 as pb
from server.api.access import Caller
from server.api.errors import STATUS_OF, name_on_the_wire, refer_to_log, shorten, status_of
from server.api.server import Core
from server.api.service import utc_now
from server.http_api import opendsr
from server.http_api.callbacks import Callbacks
from server.http_api.description import openapi, page
from server.http_api.tokens import Tokens
from server.ledger import LimitExceeded
from unlearning.errors import FlowerUnlearningError, InvalidRequest, RequestNotFound

_HTTP_STATUS: Mapping[grpc.StatusCode, int] = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.FAILED_PRECONDITION: 409,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNAVAILABLE: 503,
}


class BodyTooLarge(LimitExceeded):
    """A body with more bytes than a message may have: sending it again does not help."""


class BodyTooSlow(LimitExceeded):
    """A body that did not come in time."""


_OF_KIND: Mapping[type[FlowerUnlearningError], int] = {BodyTooLarge: 413, BodyTooSlow: 408}
_Answer = Callable[[Request, Caller], Awaitable[Response]]
_PART_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class HttpApi:
    """The calls over HTTP. callbacks: None where this service calls nobody back."""

    core: Core
    tokens: Tokens
    callbacks: Callbacks | None = None

    def application(self) -> Starlette:
        """Return the ASGI application."""
        own = "/requests/{id}"
        routes = [
            Route("/requests", _Call(self, "SubmitRequest", self.submit), methods=["POST"]),
            Route(own, _Call(self, "GetRequest", self.status), methods=["GET"]),
            Route(own, _Call(self, "CancelRequest", self.cancel), methods=["DELETE"]),
            Route(f"{own}/report", _Call(self, "GetReport", self.report), methods=["GET"]),
            Route(f"{own}/report.html", _Call(self, "GetReport", self.report_page), methods=["GET"]),
            Route(f"{own}/certificate", _Call(self, "GetReport", self.certificate), methods=["GET"]),
            Route(f"{own}/timestamp", _Call(self, "GetReport", self.timestamp), methods=["GET"]),
            *self._public(),
        ]
        return Starlette(routes=routes, exception_handlers={HTTPException: _not_here})

    async def submit(self, request: Request, caller: Caller) -> Response:
        """Admit an erasure request and answer once it, and whom to call back, is durable."""
        raw = await self._body(request)

        def step() -> bytes:
            asked = opendsr.read_request(raw)
            if self.callbacks is not None:
                self.callbacks.check(caller, asked.status_callback_urls)
            elif asked.status_callback_urls:
                raise InvalidRequest(
                    "status_callback_urls: this service calls nobody back; ask for the status."
                )
            admitted = convert.request_of(self.core.service.SubmitRequest(asked.message(caller), caller))
            if self.callbacks is not None:
                self.callbacks.expect(admitted, asked.status_callback_urls)
            encoded = base64.b64encode(raw).decode()
            return _json(opendsr.receipt(admitted, caller, encoded, utc_now()))

        return self._signed(await self.core.workers.run(caller, step), 201)

    async def status(self, request: Request, caller: Caller) -> Response:
        """Return where a request stands."""

        def step() -> bytes:
            asked = pb.GetRequestRequest(id=self._id_of(request, caller))
            found = convert.request_of(self.core.service.GetRequest(asked, caller))
            return _json(opendsr.status(found, opendsr.name_for(caller, found)))

        return self._signed(await self.core.workers.run(caller, step), 200)

    async def cancel(self, request: Request, caller: Caller) -> Response:
        """Withdraw a request that has not begun."""

        def step() -> bytes:
            asked = pb.CancelRequestRequest(id=self._id_of(request, caller))
            cancelled = convert.request_of(self.core.service.CancelRequest(asked, caller))
            return _json(opendsr.cancellation(cancelled, caller, utc_now()))

        return self._signed(await self.core.workers.run(caller, step), 202)

    async def report(self, request: Request, caller: Caller) -> Response:
        """Return the report of a completed request, as JSON."""
        found = await self._report(request, caller)
        return Response(found.json, media_type="application/json")

    async def report_page(self, request: Request, caller: Caller) -> Response:
        """Return the report as a page."""
        return HTMLResponse((await self._report(request, caller)).html)

    async def certificate(self, request: Request, caller: Caller) -> Response:
        """Return the certificate of a completed request, byte for byte."""
        found = await self._report(request, caller)
        if not found.certificate:
            raise RequestNotFound("This request has a report and no certificate.")
        return Response(found.certificate, media_type="application/json")

    async def timestamp(self, request: Request, caller: Caller) -> Response:
        """Return the timestamp of a request's certificate, byte for byte."""
        found = await self._report(request, caller)
        if not found.timestamp:
            raise RequestNotFound("This request's certificate has no timestamp, or not yet.")
        return Response(found.timestamp, media_type="application/timestamp-reply")

    async def _report(self, request: Request, caller: Caller) -> pb.GetReportResponse:
        def step() -> pb.GetReportResponse:
            return self.core.service.GetReport(pb.GetReportRequest(id=self._id_of(request, caller)), caller)

        return await self.core.workers.run(caller, step)

    def _id_of(self, request: Request, caller: Caller) -> str:
        """Return this service's id of the request that the path names, by that or by the caller's own id.

        Raises:
            RequestNotFound: the caller has filed none under this id.
        """
        asked: str = request.path_params["id"]
        if opendsr.is_own_id(asked):
            return asked
        if len(asked) <= 100 and asked.isprintable():
            known = self.core.ledger.requests.find(opendsr.key_of(asked), caller.name, caller.role)
            if known is not None:
                return known.id
        raise RequestNotFound(
            "You have filed no deletion request under this subject_request_id. Those that others filed are found by "
            "this service's own ids, such as r-000007."
        )

    async def _body(self, request: Request) -> bytes:
        """Read the body.

        Raises:
            LimitExceeded: it is too large, or does not come in time.
        """
        length = request.headers.get("content-length", "")
        self._check_size(int(length) if length.isdecimal() and len(length) < 20 else 0)
        timeout_s = self.core.limits.body_timeout_s
        body = bytearray()
        try:
            async with asyncio.timeout(timeout_s):
                async for part in request.stream():
                    body += part
                    self._check_size(len(body))
        except TimeoutError:
            raise BodyTooSlow(f"The body did not come within {timeout_s:g} s. Send less at once.") from None
        return bytes(body)

    def _check_size(self, size_bytes: int) -> None:
        allowed = self.core.limits.max_message_bytes
        if size_bytes > allowed:
            raise BodyTooLarge(
                f"The body has more than the {allowed:,} bytes that are allowed. Split the list of samples into "
                "several requests, or file it over gRPC (`flower-unlearn request`), where it may go in parts."
            )

    def _signed(self, content: bytes, status: int) -> Response:
        signer = None if self.callbacks is None else self.callbacks.signer
        headers = {} if signer is None else signer.headers(content)
        return Response(content, status, headers, media_type="application/json")

    def _public(self) -> list[Route]:
        """Return the paths that say nothing of the federation and need no token; all are made beforehand."""
        document = openapi()
        answers = {
            "/discovery": JSONResponse(opendsr.discovery()),
            "/openapi.json": JSONResponse(document),
            "/docs": HTMLResponse(page(document)),
        }
        if self.callbacks is not None:
            public = self.callbacks.signer.key.public_key()
            pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
            answers["/callback-key.pem"] = Response(pem, media_type="application/x-pem-file")
        return [Route(path, _always(answer), methods=["GET"]) for path, answer in answers.items()]


@dataclass(frozen=True, slots=True)
class _Call:
    """What serves a path, an ASGI application: `answer`, behind the checks of `call`."""

    api: HttpApi
    call: str
    answer: _Answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one call; its place and its connection are its own until the caller has taken the answer."""
        request = Request(scope, receive, send)
        core = self.api.core
        caller = self.api.tokens.caller_of(request.headers.get("authorization", ""))
        try:
            async with core.checks.passed(caller, self.call, core.calls):
                with request.state.connection.kept():
                    response = await self.answer(request, caller)
                    await response(scope, receive, _in_parts(send))
        except ClientDisconnect:
            return
        except Exception as exc:  # noqa: BLE001  whatever it is, it is logged and the caller gets the reference
            await _refusal(exc)(scope, receive, send)


def _in_parts(send: Send) -> Send:
    """Return what sends a body in parts, each when the caller has taken most of what came before."""

    async def send_parts(message: Message) -> None:
        body = message.get("body", b"")
        while len(body) > _PART_BYTES:
            await send({**message, "body": body[:_PART_BYTES], "more_body": True})
            body = body[_PART_BYTES:]
        await send({**message, "body": body} if body else message)

    return send_parts


def _always(answer: Response) -> Callable[[Request], Awaitable[Response]]:
    async def serve(_: Request) -> Response:
        return answer

    return serve


def _refusal(error: Exception) -> Response:
    """Return the answer to a call that met an error: OpenDSR's error object."""
    if isinstance(error, FlowerUnlearningError) and isinstance(error, tuple(STATUS_OF)):
        found = next((status for kind, status in _OF_KIND.items() if isinstance(error, kind)), None)
        code = found or _HTTP_STATUS[status_of(error)]
        return _error(code, shorten(str(error)), name_on_the_wire(error))
    return _error(500, refer_to_log(error), "InternalError")


async def _not_here(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _error(error.status_code, f"{error.detail}. /openapi.json says what is here.", "NotHere")


def _error(code: int, message: str, reason: str) -> Response:
    detail = {"domain": opendsr.EXTENSION, "reason": reason, "message": message}
    document = {"error": {"code": code, "message": message, "errors": [detail]}}
    headers = {"Cache-Control": "no-store"}
    if code == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return Response(_json(document), code, headers, media_type="application/json")


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document).encode()
