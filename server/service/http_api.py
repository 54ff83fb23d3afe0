"""The deletion service over HTTP, in the words of OpenDSR 2.0: a second transport, behind the same checks as gRPC.

Token, rate, role and a place are judged before anything of a body is read; a body then has as much time and space as a
message over gRPC. What is refused is in the ledger before the caller has its answer. Slow heads and answers, and the
number of connections, are the business of uvicorn (http_server.py) and of nginx before it (deploy/nginx-http.conf).
"""

import asyncio
import base64
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from pydantic import TypeAdapter
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from server.ledger import LimitExceeded
from server.ledger.records import request_number
from server.service import erasure_request, opendsr
from server.service.access import Caller
from server.service.callbacks import Callbacks
from server.service.calls import REPORT_PRUNED
from server.service.deletion_service import utc_now
from server.service.grpc_server import Core
from server.service.openapi import OPERATIONS, Operation, openapi
from server.service.problems import problem, problem_of, read_document, read_query
from server.service.register_csv import KIND, csv_parts
from server.service.sandbox import Sandbox
from server.service.tokens import Tokens
from unlearning.errors import InvalidRequest, RequestNotFound
from unlearning.requests import DeletionRequest

_REPORT_FILES = {"report": "json", "report.html": "html"}
"""The fields of `Report` whose path ends in another name."""
_PLACES = {
    **{
        name: f"#/extensions/{erasure_request.EXTENSION}/{name}"
        for name in erasure_request.Extension.model_fields
    },
    "sample_ids": "#/subject_identities",
    "received_on": "#/submitted_time",
}
"""Where an erasure request has what the service's errors name."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One call that has passed the checks.

    core: the service that answers it. id: what the path names. given: the values of its body or query.
    """

    operation: Operation
    caller: Caller
    core: Core
    id: str
    raw: bytes
    given: Any

    def request(self) -> DeletionRequest:
        """Return the request that the path names, or the one that took its place, under the name of the first.

        Raises:
            RequestNotFound: there is none that the caller may see.
        """
        return self.core.ledger.requests.replacement_of(self.core.service.get(self.caller, self.request_id()))

    def request_id(self) -> str:
        """Return this service's id of the request that the path names, by that or by the caller's own id.

        Raises:
            RequestNotFound: the caller has filed none under this id.
        """
        if erasure_request.is_own_id(self.id):
            return self.id
        if len(self.id) <= 100 and self.id.isprintable():
            key = erasure_request.key_of(self.id)
            known = self.core.ledger.requests.find(key, self.caller.name, self.caller.role)
            if known is not None:
                return known.id
        raise RequestNotFound(
            "You have filed no deletion request under this subject_request_id. Those that others filed are found by "
            "this service's own ids, such as r-000007."
        )


@dataclass(frozen=True, slots=True)
class HttpApi:
    """The calls over HTTP. callbacks: None where this service makes none."""

    core: Core
    tokens: Tokens
    sandbox: Sandbox
    callbacks: Callbacks | None = None

    def application(self) -> Starlette:
        """Return the ASGI application: a route for each row of the table of operations."""
        constant = self._constant_answers()
        answers: Mapping[str, Callable[[Asked], Response]] = {
            "SubmitRequest": self.file,
            "ListRequests": self.list_requests,
            "PlanDeletion": self.plan,
            "GetRequest": self.show,
            "GetReport": self.report_file,
        }
        paths: dict[str, dict[str, Any]] = {}
        for item in OPERATIONS:
            if item.call:
                answer = self.change if item.verb else answers.get(item.call, self.withdraw)
                paths.setdefault(item.path, {})[item.method.upper()] = self._checked(item, answer)
            elif item.path in constant:
                paths[item.path] = {"GET": constant[item.path]}
        routes = [Route(path, _by_method(served), methods=[*served]) for path, served in paths.items()]
        return Starlette(routes=routes, exception_handlers={HTTPException: _not_here})

    def _checked(
        self, item: Operation, answer: Callable[[Asked], Response]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return what serves a path: `answer`, behind the checks of a call."""

        async def serve(request: Request) -> Response:
            caller = self.tokens.caller_of(request.headers.get("authorization", ""))
            try:
                async with self.core.checks.passed(caller, item.call, self.core.calls):
                    raw = await self._body(request) if item.body else b""
                    return await self.core.workers.run(
                        caller, lambda: answer(self._asked(item, caller, request, raw))
                    )
            except ClientDisconnect:
                return Response(status_code=400)
            except Exception as exc:  # noqa: BLE001  whatever it is, it is logged and the caller gets the reference
                return problem_of(exc, {} if item.verb else _PLACES)

        return serve

    def _asked(self, item: Operation, caller: Caller, request: Request, raw: bytes) -> Asked:
        given: Any = None
        if item.body:
            given = read_document(item.body, raw or b"{}")
        elif item.query:
            given = read_query(item.query, request.query_params, item.leaves_out)
        core = self.sandbox.core() if caller.is_sandbox else self.core
        return Asked(item, caller, core, request.path_params.get("id", ""), raw, given)

    def file(self, asked: Asked) -> Response:
        """Admit an erasure request and answer once it, and which URLs to call back, is durable."""
        caller, given = asked.caller, asked.given
        if self.callbacks is not None:
            self.callbacks.check(caller, given.status_callback_urls)
        elif given.status_callback_urls:
            raise InvalidRequest(
                "status_callback_urls: this service makes no callbacks; leave them out and query the status.",
                code="no-callbacks",
                field="status_callback_urls",
            )
        key = erasure_request.key_of(given.subject_request_id)
        known = asked.core.ledger.requests.find(key, caller.name, caller.role)
        admitted = asked.core.service.submit(caller, given.new_request(caller))
        if self.callbacks is not None and not caller.is_sandbox:
            self.callbacks.expect(admitted, given.status_callback_urls)
        name = erasure_request.name_for(caller, admitted)
        receipt = opendsr.Receipt.of(
            admitted, name, received_time=utc_now(), encoded_request=base64.b64encode(asked.raw).decode()
        )
        return self._signed(receipt, 200 if known else 201, {"Location": f"/requests/{name}"})

    def list_requests(self, asked: Asked) -> Response:
        """Return a page of the requests that the caller may see; or all of them, page after page, as CSV."""
        if asked.operation.kind == KIND:
            pages = self._pages(asked)
            first = next(pages, ())  # here, so that a refusal is an answer
            return StreamingResponse(csv_parts(chain([first], pages)), media_type=f"{KIND}; charset=utf-8")
        found = asked.core.service.list_requests(asked.caller, asked.given)
        page = opendsr.RequestList(
            requests=[
                opendsr.RequestState.of(one, erasure_request.name_for(asked.caller, one))
                for one in found.requests
            ],
            total=found.total,
            last=request_number(found.requests[-1].id) if found.requests else asked.given.after,
        )
        return self._signed(page, 200)

    def _pages(self, asked: Asked) -> Iterator[Sequence[DeletionRequest]]:
        """Yield the requests that a filter finds, in order of arrival, as many at once as a page has."""
        wanted = asked.given
        while found := asked.core.service.list_requests(asked.caller, wanted).requests:
            yield found
            wanted = replace(wanted, after=request_number(found[-1].id))

    def plan(self, asked: Asked) -> Response:
        """Return what serving a request would take, by every method."""
        target = asked.given.new_request(asked.caller).target
        found = asked.core.service.plan(asked.caller, target)
        return Response(TypeAdapter(type(found)).dump_json(found), media_type=asked.operation.kind)

    def show(self, asked: Asked) -> Response:
        """Return the state of a request, or of the one that took its place."""
        found = asked.request()
        return self._signed(
            opendsr.RequestState.of(found, erasure_request.name_for(asked.caller, found)), 200
        )

    def withdraw(self, asked: Asked) -> Response:
        """Withdraw a request that has not begun."""
        caller = asked.caller
        changed = asked.core.service.change("cancel", caller, request_id=asked.request_id(), by=caller.name)
        answer = opendsr.Cancellation(
            controller_id=changed.submitted_by,
            subject_request_id=erasure_request.name_for(caller, changed),
            received_time=utc_now(),
        )
        return self._signed(answer, 202)

    def change(self, asked: Asked) -> Response:
        """Do what a verb of the table of calls says to a request."""
        caller, values = asked.caller, asked.given.model_dump(exclude_unset=True)
        changed = asked.core.service.change(
            asked.operation.verb, caller, request_id=asked.request_id(), by=caller.name, **values
        )
        return self._signed(opendsr.RequestState.of(changed, erasure_request.name_for(caller, changed)), 200)

    def report_file(self, asked: Asked) -> Response:
        """Return one file of a completed request's report, byte for byte."""
        last = asked.operation.path.rpartition("/")[2]
        name = _REPORT_FILES.get(last, last)
        found = asked.core.service.report(asked.caller, asked.request().id)
        content = getattr(found, name)
        if not content:
            if not found.json and name in _REPORT_FILES.values():
                raise RequestNotFound(REPORT_PRUNED, code="report-pruned")
            raise RequestNotFound(
                f"This request has a report and no {name}, or not yet.", code="no-such-file"
            )
        return Response(content, media_type=asked.operation.kind)

    async def _body(self, request: Request) -> bytes:
        """Read the body.

        Raises:
            LimitExceeded: it is too large, or does not come in time.
            InvalidRequest: it is said to be no JSON.
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
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if body and kind != "application/json":
            raise InvalidRequest(
                f"The body is {kind[:80] or 'of no type'!r}; send JSON, with Content-Type: application/json.",
                code="content-type",
            )
        return bytes(body)

    def _check_size(self, size_bytes: int) -> None:
        allowed = self.core.limits.max_message_bytes
        if size_bytes > allowed:
            raise LimitExceeded(
                f"The body has more than the {allowed:,} bytes that are allowed. Split the list of samples into "
                "several requests, or file it over gRPC (`flower-unlearn request`), where it may go in parts.",
                code="large-body",
            )

    def _signed(
        self, document: opendsr.Answer, status: int, headers: Mapping[str, str] | None = None
    ) -> Response:
        content = document.to_json()
        signer = None if self.callbacks is None else self.callbacks.signer
        signature = {} if signer is None else signer.headers(content)
        return Response(content, status, {**signature, **(headers or {})}, media_type="application/json")

    def _constant_answers(self) -> Mapping[str, Response]:
        """Return the answers that say nothing of the federation and need no token, by their paths."""
        answers: dict[str, Response] = {
            "/discovery": Response(opendsr.Discovery().to_json(), media_type="application/json"),
            "/openapi.json": JSONResponse(openapi()),
        }
        if self.callbacks is not None:
            public = self.callbacks.signer.key.public_key()
            pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
            answers["/callback-key.pem"] = Response(pem, media_type="application/x-pem-file")
        return answers


def _by_method(served: Mapping[str, Any]) -> Any:
    """Return what serves a path, so that a method that is not here is told all that are."""

    async def serve(request: Request) -> Response:
        answer = served["GET" if request.method == "HEAD" else request.method]
        return answer if isinstance(answer, Response) else await answer(request)

    return serve


async def _not_here(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail = f"{error.detail}. /openapi.json says what is here."
    return problem(error.status_code, "NotHere", detail, headers=error.headers)
