"""The table of the HTTP API's operations, and its OpenAPI 3.1 document, made from it and from the documents' types."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from inspect import getdoc
from typing import Any

from pydantic import BaseModel, Field, TypeAdapter, create_model

from server.ledger import RequestFilter
from server.requests.plan_data import Plan
from server.service import erasure_request, opendsr, problems
from server.service.calls import VERBS, Verb
from server.service.register_csv import KIND

_JSON = "application/json"
_REFUSALS = {
    "400": "The request is malformed.",
    "401": "There is no token, or it is unknown or has expired.",
    "403": "The token's role may not do this.",
    "404": "There is no such request, client or method.",
    "408": "The body did not come in time.",
    "409": "The id belongs to another request, or the request's state does not allow this; the message says which.",
    "413": "The body is too large.",
    "415": "The body is not JSON.",
    "429": "Too many calls, or too many requests a day. Retry-After says when to try again.",
    "503": "The ledger cannot be reached. Retry-After says when to try again.",
}
_WAIT = {"Retry-After": {"description": "In how many seconds.", "schema": {"type": "integer"}}}
_LOCATION = {"Location": {"description": "Where the request is.", "schema": {"type": "string"}}}
_REFS = "#/components/schemas/{model}"
_ID = {
    "name": "id",
    "in": "path",
    "required": True,
    "schema": {"type": "string"},
    "description": "The subject_request_id, or this service's own id such as r-000007.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One path and method. call: that of the deletion service which it is; "" where it needs no token.

    body, query: what is read into; answer: what is answered, None for the bytes of a file. verb: of `VERBS`.
    leaves_out: fields of `query` that it does not take. absent: why a service may not have it.
    """

    path: str
    name: str
    summary: str
    method: str = "get"
    call: str = ""
    status: int = 200
    kind: str = _JSON
    body: type[BaseModel] | None = None
    query: type | None = None
    leaves_out: tuple[str, ...] = ()
    answer: Any = None
    verb: str = ""
    absent: str = ""


_OWN = "/requests/{id}"


def _files() -> Iterator[Operation]:
    """Yield the operations that answer with a file of a completed request's report."""
    for name, file, summary, kind in (
        ("getReport", "report", "Return the report of a completed request.", _JSON),
        ("getReportPage", "report.html", "Return the report as a page.", "text/html"),
        ("getCertificate", "certificate", "Return the signed certificate.", _JSON),
        ("getTimestamp", "timestamp", "Return its timestamp (RFC 3161).", "application/timestamp-reply"),
    ):
        yield Operation(path=f"{_OWN}/{file}", name=name, summary=summary, call="GetReport", kind=kind)


def _body_of(name: str, verb: Verb) -> type[BaseModel]:
    """Return the type of a verb's values."""
    values: Any = {
        key: (
            value.kind if value.default is not None else value.kind | None,
            Field(value.default, description=value.help),
        )
        for key, value in verb.values.items()
    }
    made: type[BaseModel] = create_model(
        f"{name.capitalize()}Values", __base__=erasure_request.Part, __doc__=verb.help, **values
    )
    return made


OPERATIONS = (
    Operation(
        path="/requests",
        name="fileRequest",
        summary="File an erasure request; it is durable when it is answered. 200: it was filed before.",
        method="post",
        call="SubmitRequest",
        status=201,
        body=erasure_request.ErasureRequest,
        answer=opendsr.Receipt,
    ),
    Operation(
        path="/requests",
        name="listRequests",
        summary="Return a page of the requests that the caller may see, at most 1,000.",
        call="ListRequests",
        query=RequestFilter,
        answer=opendsr.RequestList,
    ),
    Operation(
        path="/requests.csv",
        name="exportRequests",
        summary="Return all requests that the filter finds and the caller may see as CSV, in order of arrival.",
        call="ListRequests",
        kind=KIND,
        query=RequestFilter,
        leaves_out=("order", "descending", "offset", "limit"),
    ),
    Operation(
        path="/plan",
        name="planRequest",
        summary="Return what serving a request would take, by every method; nothing is filed.",
        method="post",
        call="PlanDeletion",
        body=erasure_request.ErasureRequest,
        answer=Plan,
    ),
    Operation(
        path=_OWN,
        name="getRequest",
        summary="Return the state of a request.",
        call="GetRequest",
        answer=opendsr.RequestState,
    ),
    Operation(
        path=_OWN,
        name="withdrawRequest",
        summary=VERBS["cancel"].help,
        method="delete",
        call="CancelRequest",
        status=202,
        answer=opendsr.Cancellation,
    ),
    *(
        Operation(
            path=f"{_OWN}/{name}",
            name=f"{name}Request",
            summary=verb.help,
            method="post",
            call=f"{name.capitalize()}Request",
            body=_body_of(name, verb),
            answer=opendsr.RequestState,
            verb=name,
        )
        for name, verb in VERBS.items()
    ),
    *_files(),
    Operation(
        path="/discovery",
        name="discover",
        summary="Return what this service supports.",
        answer=opendsr.Discovery,
    ),
    Operation(
        path="/callback-key.pem",
        name="getCallbackKey",
        summary="Return the public key of callbacks, where there are any.",
        kind="application/x-pem-file",
        absent="This service makes no callbacks.",
    ),
    Operation(path="/openapi.json", name="describe", summary="Return this document."),
)


def openapi() -> dict[str, Any]:
    """Return the OpenAPI document."""
    references, definitions = _schemas()
    paths: dict[str, dict[str, Any]] = {}
    for item in OPERATIONS:
        paths.setdefault(item.path, {})[item.method] = _described(item, references)
    paths["/requests"]["post"]["callbacks"] = _callbacks(references)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "flower-unlearning: erasure requests",
            "version": erasure_request.API_VERSION,
            "description": "Erasure requests to a live federation, after OpenDSR 2.0.",
        },
        "paths": paths,
        "components": {
            "schemas": definitions,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _schemas() -> tuple[Mapping[Any, Any], dict[str, Any]]:
    """Return the schema of each type that is sent or answered, and the definitions that they refer to."""
    answers = [item.answer for item in OPERATIONS if item.answer] + [opendsr.Callback, problems.Problem]
    kinds: list[Any] = [(kind, "serialization", TypeAdapter(kind)) for kind in dict.fromkeys(answers)]
    bodies = dict.fromkeys(item.body for item in OPERATIONS if item.body)
    kinds += [(kind, "validation", TypeAdapter(kind)) for kind in bodies]
    kinds += [(item.query, "validation", TypeAdapter(item.query)) for item in OPERATIONS if item.query]
    schemas, definitions = TypeAdapter.json_schemas(kinds, ref_template=_REFS)
    return {kind: schema for (kind, _), schema in schemas.items()}, definitions["$defs"]


def _described(item: Operation, references: Mapping[Any, Any]) -> dict[str, Any]:
    schema = references[item.answer] if item.answer else _file_of(item.kind)
    answered = {"description": item.summary, "content": {item.kind: {"schema": schema}}}
    operation: dict[str, Any] = {
        "operationId": item.name,
        "tags": ["requests" if item.call else "service"],
        "summary": item.summary,
        "parameters": [_ID] if "{id}" in item.path else [],
        "responses": {str(item.status): answered},
    }
    if item.call:
        operation["security"] = [{"token": []}]
        operation["responses"] |= {code: _refusal(code, why, references) for code, why in _REFUSALS.items()}
    if item.absent:
        operation["responses"]["404"] = _refusal("404", item.absent, references)
    if item.status == 201:
        answered["headers"] = _LOCATION
        operation["responses"]["200"] = answered
    if item.body:
        is_required = any(field.is_required() for field in item.body.model_fields.values())
        body = {_JSON: {"schema": references[item.body]}}
        operation["requestBody"] = {"required": is_required, "content": body}
    if item.query:
        operation["description"] = getdoc(item.query)
        operation["parameters"] += [
            one for one in _parameters(item.query) if one["name"] not in item.leaves_out
        ]
    return operation


def _parameters(query: type) -> Iterator[dict[str, Any]]:
    """Yield the description of a query's parameters; one that may be left out is not null."""
    for name, schema in TypeAdapter(query).json_schema(ref_template=_REFS)["properties"].items():
        is_number = schema.get("type") == "integer"
        schema = {**schema.get("anyOf", [schema])[0], **({"minimum": 0} if is_number else {})}
        yield {"name": name, "in": "query", "schema": schema}


def _file_of(kind: str) -> dict[str, Any]:
    if kind == _JSON:
        return {"type": "object"}
    return {"type": "string"} if kind.startswith("text/") else {"type": "string", "format": "binary"}


def _refusal(code: str, why: str, references: Mapping[Any, Any]) -> dict[str, Any]:
    content = {problems.KIND: {"schema": references[problems.Problem]}}
    headers = {"headers": _WAIT} if code in ("429", "503") else {}
    return {"description": why, "content": content, **headers}


def _callbacks(references: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the description of the calls that a filed request brings."""
    body = {_JSON: {"schema": references[opendsr.Callback]}}
    call = {
        "operationId": "statusChanged",
        "summary": "What this service sends to each of status_callback_urls, signed as X-OpenDSR-Signature says.",
        "requestBody": {"required": True, "content": body},
        "responses": {"2XX": {"description": "Received. After anything else it is sent again."}},
    }
    return {"statusChanged": {"{$request.body#/status_callback_urls}": {"post": call}}}
