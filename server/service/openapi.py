"""What the HTTP API is, as an OpenAPI 3.1 document and as a page, made from one table and the request's types."""

from typing import Any

from jinja2 import Environment

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
    "401": "There is no token, or it is not known.",
    "403": "The token's role may not do this.",
    "404": "There is no such request, client or method.",
    "408": "The body did not come in time.",
    "409": "Another request is open, or the request's state does not allow this; the message says which.",
    "413": "The body is too large.",
    "429": "Too many calls, or too many requests a day; the message says when to try again.",
    "503": "The ledger cannot be reached. Try again.",
}
_JSON, _HTML, _PEM = "application/json", "text/html", "application/x-pem-file"
_TSR = "application/timestamp-reply"
# Path, method, what it does, status, type of the answer, and whether it needs a token.
_OPERATIONS = (
    ("/requests", "post", "File an erasure request; it is durable when it is answered.", "201", _JSON, True),
    ("/requests/{id}", "get", "Return where a request stands.", "200", _JSON, True),
    ("/requests/{id}", "delete", "Withdraw a request that has not begun.", "202", _JSON, True),
    ("/requests/{id}/report", "get", "Return the report of a completed request.", "200", _JSON, True),
    ("/requests/{id}/report.html", "get", "Return the report as a page.", "200", _HTML, True),
    ("/requests/{id}/certificate", "get", "Return the signed certificate.", "200", _JSON, True),
    ("/requests/{id}/timestamp", "get", "Return the certificate's timestamp (RFC 3161).", "200", _TSR, True),
    ("/discovery", "get", "Return what this service supports.", "200", _JSON, False),
    (
        "/callback-key.pem",
        "get",
        "Return the public key of callbacks, where there are any.",
        "200",
        _PEM,
        False,
    ),
    ("/openapi.json", "get", "Return this document.", "200", _JSON, False),
    ("/docs", "get", "Return this document as a page.", "200", _HTML, False),
)

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{ info.title }}</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
code{background:#f2f2f2}table{border-collapse:collapse}td,th{text-align:left;padding:.2rem 1rem .2rem 0}</style></head>
<body><h1>{{ info.title }} {{ info.version }}</h1><p>{{ info.description }}</p>
<p>The same for programs: <a href="openapi.json">openapi.json</a>.</p>
{% for path, operations in paths.items() %}{% for method, operation in operations.items() %}
<h2><code>{{ method | upper }} {{ path }}</code></h2>
<p>{{ operation.summary }}{% if operation.security %} Needs a token.{% endif %}</p>
<table>{% for status, answer in operation.responses.items() %}
<tr><th>{{ status }}</th><td>{{ answer.description }}</td></tr>{% endfor %}</table>
{% endfor %}{% endfor %}
<h2>The request</h2>
{% for name, schema in components.schemas.items() if schema.properties %}<h3>{{ name }}</h3>
<table>{% for field, about in schema.properties.items() %}
<tr><th><code>{{ field }}</code></th><td>{{ about.description or about.const or about.enum | default("") }}
{% if field in schema.required | default([]) %}(required){% endif %}</td></tr>{% endfor %}</table>{% endfor %}
</body></html>
"""


def openapi() -> dict[str, Any]:
    """Return the OpenAPI document."""
    schemas = opendsr.ErasureRequest.model_json_schema(ref_template="#/components/schemas/{model}")
    inner = schemas.pop("$defs", {})
    paths: dict[str, dict[str, Any]] = {}
    for path, method, summary, status, kind, with_token in _OPERATIONS:
        operation: dict[str, Any] = {
            "summary": summary,
            "parameters": [_ID] if "{id}" in path else [],
            "responses": {status: {"description": summary, "content": {kind: {}}}},
        }
        if with_token:
            operation["security"] = [{"token": []}]
            operation["responses"] |= {code: _refusal(why) for code, why in _REFUSALS.items()}
        if method == "post":
            body = {"schema": {"$ref": "#/components/schemas/ErasureRequest"}}
            operation["requestBody"] = {"required": True, "content": {"application/json": body}}
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


def page(document: dict[str, Any]) -> str:
    """Return the document as a page without scripts, which fetches nothing."""
    return Environment(autoescape=True).from_string(_PAGE).render(document)


def _refusal(why: str) -> dict[str, Any]:
    error = {"schema": {"$ref": "#/components/schemas/Error"}}
    return {"description": why, "content": {"application/json": error}}
