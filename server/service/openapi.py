"""The table of the HTTP API's operations, and its OpenAPI 3.1 document, made from it and from the request's types."""

from typing import Any, NamedTuple

from server.service import opendsr

_ID = {
    "name": "id",
    "in": "path",
    "required": True,
    "schema": {"type": "string"},
    "description": "The subject_request_id, or this service's own id such as r-000007.",
}
_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "code": {"type": "integer"},
                "message": {"type": "string"},
                "errors": {"type": "array", "items": {"type": "object"}},
            },
        }
    },
}
_REFUSALS = {
    "400": "The request is malformed.",
    "401": "There is no token, or it is unknown.",
    "403": "The token's role may not do this.",
    "404": "There is no such request, client or method.",
    "408": "The body did not come in time.",
    "409": "The id belongs to another request, or the request's state does not allow this; the message says which.",
    "413": "The body is too large.",
    "429": "Too many calls, or too many requests a day; the message says when to try again.",
    "503": "The ledger cannot be reached. Try again.",
}
_JSON = "application/json"


class Operation(NamedTuple):
    """One path and method, and the call of the deletion service that it is; "" where it needs no token."""

    path: str
    method: str
    call: str
    summary: str
    status: str = "200"
    kind: str = _JSON


_OWN = "/requests/{id}"
OPERATIONS = (
    Operation(
        "/requests",
        "post",
        "SubmitRequest",
        "File an erasure request; it is durable when it is answered.",
        "201",
    ),
    Operation(_OWN, "get", "GetRequest", "Return the state of a request."),
    Operation(_OWN, "delete", "CancelRequest", "Withdraw a request that has not begun.", "202"),
    Operation(f"{_OWN}/report", "get", "GetReport", "Return the report of a completed request."),
    Operation(f"{_OWN}/report.html", "get", "GetReport", "Return the report as a page.", kind="text/html"),
    Operation(f"{_OWN}/certificate", "get", "GetReport", "Return the signed certificate."),
    Operation(
        f"{_OWN}/timestamp",
        "get",
        "GetReport",
        "Return the certificate's timestamp (RFC 3161).",
        kind="application/timestamp-reply",
    ),
    Operation("/discovery", "get", "", "Return what this service supports."),
    Operation(
        "/callback-key.pem",
        "get",
        "",
        "Return the public key of callbacks, where there are any.",
        kind="application/x-pem-file",
    ),
    Operation("/openapi.json", "get", "", "Return this document."),
)


def openapi() -> dict[str, Any]:
    """Return the OpenAPI document."""
    schemas = opendsr.ErasureRequest.model_json_schema(ref_template="#/components/schemas/{model}")
    inner = schemas.pop("$defs", {})
    paths: dict[str, dict[str, Any]] = {}
    for path, method, call, summary, status, kind in OPERATIONS:
        operation: dict[str, Any] = {
            "summary": summary,
            "parameters": [_ID] if "{id}" in path else [],
            "responses": {status: {"description": summary, "content": {kind: {}}}},
        }
        if call:
            operation["security"] = [{"token": []}]
            operation["responses"] |= {code: _refusal(why) for code, why in _REFUSALS.items()}
        if method == "post":
            body = {"schema": {"$ref": "#/components/schemas/ErasureRequest"}}
            operation["requestBody"] = {"required": True, "content": {_JSON: body}}
        paths.setdefault(path, {})[method] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "flower-unlearning: erasure requests",
            "version": opendsr.API_VERSION,
            "description": "Erasure requests to a live federation, after OpenDSR 2.0.",
        },
        "paths": paths,
        "components": {
            "schemas": {"ErasureRequest": schemas, **inner, "Error": _ERROR},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _refusal(why: str) -> dict[str, Any]:
    error = {"schema": {"$ref": "#/components/schemas/Error"}}
    return {"description": why, "content": {_JSON: error}}
