"""The deletion service over HTTP, in the words of OpenDSR 2.0: a second transport, behind the same checks as gRPC.

Token, rate, role and a place are judged before anything of a body is read; a body then has as much time and space as a
message over gRPC. What is refused is in the ledger before the caller has its answer. Slow heads and answers, and the
number of connections, are the business of uvicorn (http_server.py) and of nginx before it (deploy/nginx-http.conf).
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
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from server.ledger import LimitExceeded
from server.service import opendsr
from server.service.access import Caller
from server.service.callbacks import Callbacks
from server.service.calls import Report
from server.service.deletion_service import utc_now
from server.service.grpc_server import Core
from server.service.openapi import OPERATIONS, Operation, openapi
from server.service.statuses import STATUS_OF, name_on_the_wire, refer_to_log, shorten, status_of
from server.service.tokens import Tokens
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


_OF_CODE = {"large-body": 413, "slow-body": 408}
_Answer = Callable[[Request, Caller], Awaitable[Response]]
_REPORT_FILES = {"report": "json", "report.html": "html"}
"""The fields of `Report` whose path ends in another name."""


@dataclass(frozen=True, slots=True)
class HttpApi:
    """The calls over HTTP. callbacks: None where this service makes none."""

    core: Core
    tokens: Tokens
    callbacks: Callbacks | None = None

    def application(self) -> Starlette:
        """Return the ASGI application: a route for each row of the table of operations."""
        constant = self._constant_answers()
        answers: Mapping[str, _Answer] = {
            "SubmitRequest": self.submit,
            "GetRequest": self.status,
            "CancelRequest": self.cancel,
        }
        routes = []
        for item in OPERATIONS:
            if item.call:
                answer = answers.get(item.call) or self._file_of_report(item)
                routes.append(Route(item.path, self._checked(item.call, answer), methods=[item.method]))
            elif item.path in constant:
                routes.append(Route(item.path, constant[item.path], methods=[item.method]))
        return Starlette(routes=routes, exception_handlers={HTTPException: _not_here})

    def _checked(self, call: str, answer: _Answer) -> Callable[[Request], Awaitable[Response]]:
        """Return what serves a path: `answer`, behind the checks of a call."""

        async def serve(request: Request) -> Response:
            caller = self.tokens.caller_of(request.headers.get("authorization", ""))
            try:
                async with self.core.checks.passed(caller, call, self.core.calls):
                    return await answer(request, caller)
            except ClientDisconnect:
                return Response(status_code=400)
            except Exception as exc:  # noqa: BLE001  whatever it is, it is logged and the caller gets the reference
                return _refusal(exc)

        return serve

    async def submit(self, request: Request, caller: Caller) -> Response:
        """Admit an erasure request and answer once it, and which URLs to call back, is durable."""
        raw = await self._body(request)

        def step() -> bytes:
            asked = opendsr.read_request(raw)
            if self.callbacks is not None:
                self.callbacks.check(caller, asked.status_callback_urls)
            elif asked.status_callback_urls:
                raise InvalidRequest(
                    "status_callback_urls: this service makes no callbacks; leave them out and query the status.",
                    code="no-callbacks",
                )
            admitted = self.core.service.submit(caller, asked.new_request(caller))
            if self.callbacks is not None:
                self.callbacks.expect(admitted, asked.status_callback_urls)
            return _json(opendsr.receipt(admitted, caller, base64.b64encode(raw).decode(), utc_now()))

        return self._signed(await self.core.workers.run(caller, step), 201)

    async def status(self, request: Request, caller: Caller) -> Response:
        """Return the state of a request."""

        def step() -> bytes:
            found = self.core.ledger.requests.replacement_of(
                self.core.service.get(caller, self._id_of(request, caller))
            )
            return _json(opendsr.status(found, opendsr.name_for(caller, found)))

        return self._signed(await self.core.workers.run(caller, step), 200)

    async def cancel(self, request: Request, caller: Caller) -> Response:
        """Withdraw a request that has not begun."""

        def step() -> bytes:
            request_id = self._id_of(request, caller)
            cancelled = self.core.service.change("cancel", caller, request_id=request_id, by=caller.name)
            return _json(opendsr.cancellation(cancelled, caller, utc_now()))

        return self._signed(await self.core.workers.run(caller, step), 202)

    def _file_of_report(self, operation: Operation) -> _Answer:
        """Return what answers with one file of a completed request's report, byte for byte."""
        last = operation.path.rpartition("/")[2]
        name = _REPORT_FILES.get(last, last)

        async def answer(request: Request, caller: Caller) -> Response:
            def step() -> Report:
                return self.core.service.report(caller, self._id_of(request, caller))

            content = getattr(await self.core.workers.run(caller, step), name)
            if not content:
                raise RequestNotFound(
                    f"This request has a report and no {name}, or not yet.", code="no-such-file"
                )
            return Response(content, media_type=operation.kind)

        return answer

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
            raise LimitExceeded(
                f"The body did not come within {timeout_s:g} s. Send less at once.", code="slow-body"
            ) from None
        return bytes(body)

    def _check_size(self, size_bytes: int) -> None:
        allowed = self.core.limits.max_message_bytes
        if size_bytes > allowed:
            raise LimitExceeded(
                f"The body has more than the {allowed:,} bytes that are allowed. Split the list of samples into "
                "several requests, or file it over gRPC (`flower-unlearn request`), where it may go in parts.",
                code="large-body",
            )

    def _signed(self, content: bytes, status: int) -> Response:
        signer = None if self.callbacks is None else self.callbacks.signer
        headers = {} if signer is None else signer.headers(content)
        return Response(content, status, headers, media_type="application/json")

    def _constant_answers(self) -> Mapping[str, Response]:
        """Return the answers that say nothing of the federation and need no token, by their paths."""
        answers: dict[str, Response] = {
            "/discovery": JSONResponse(opendsr.discovery()),
            "/openapi.json": JSONResponse(openapi()),
        }
        if self.callbacks is not None:
            public = self.callbacks.signer.key.public_key()
            pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
            answers["/callback-key.pem"] = Response(pem, media_type="application/x-pem-file")
        return answers


def _refusal(error: Exception) -> Response:
    """Return the answer to a call that met an error: OpenDSR's error object."""
    if isinstance(error, FlowerUnlearningError) and isinstance(error, tuple(STATUS_OF)):
        code = _OF_CODE.get(error.code) or _HTTP_STATUS[status_of(error)]
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
