"""Refusals over HTTP: problem documents (RFC 9457) that say what is wrong with which part of what was sent."""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime
from http import HTTPStatus
from math import ceil
from typing import Any, TypeVar, get_args, get_origin, get_type_hints
from urllib.parse import quote

import grpc
from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from starlette.datastructures import QueryParams
from starlette.responses import Response

from server.service.statuses import STATUS_OF, name_on_the_wire, refer_to_log, shorten, status_of
from unlearning.errors import FlowerUnlearningError, InvalidRequest
from unlearning.one_line import as_line

KIND = "application/problem+json"
_TYPE = "urn:flower-unlearning:problem:"
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
_OF_CODE = {"large-body": 413, "slow-body": 408, "content-type": 415}
_RETRY_AFTER_S = {429: 1, 503: 5}
_OF_A_DAY = {"daily-quota": 3600, "open-requests": 3600}
_FIELD_OF_ERROR = {"UnknownClient": "client_id", "UnknownMethod": "method", "UnsupportedRequest": "method"}
_SHOWN = 5
_Read = TypeVar("_Read", bound=BaseModel)
_Any = TypeVar("_Any")


class WrongPart(BaseModel):
    """What is wrong with one part of a request."""

    detail: str
    pointer: str | None = Field(None, description="The part of the body, as the fragment of a JSON Pointer.")
    parameter: str | None = Field(None, description="The parameter of the query.")


class Problem(BaseModel):
    """Why a call was refused, and what to do."""

    type: str
    title: str
    status: int
    detail: str
    code: str = Field("", description="A short, stable name of the cause, where the type does not say it.")
    errors: list[WrongPart] = []


def read_document(kind: type[_Read], raw: bytes) -> _Read:
    """Read what any caller may have sent.

    Raises:
        InvalidRequest: it is no such document; the error says where, and repeats no value.
    """
    with suppress(ValueError, RecursionError):  # said better below
        json.loads(raw, object_pairs_hook=_no_name_twice)
    try:
        return kind.model_validate_json(raw)
    except ValidationError as exc:
        raise _malformed(exc, "pointer", "The body") from None


def read_query(kind: type[_Any], given: QueryParams, leaves_out: Sequence[str] = ()) -> _Any:
    """Read the parameters of a query; those that it `leaves_out` are unknown.

    Raises:
        InvalidRequest: one is unknown, given twice or cannot be.
    """
    hints = {name: hint for name, hint in get_type_hints(kind).items() if name not in leaves_out}
    if strange := [
        WrongPart(detail="unknown", parameter=as_line(name, 100)) for name in given if name not in hints
    ]:
        raise InvalidRequest(
            f"The query has an unknown {strange[0].parameter}.", code="malformed", errors=strange[:_SHOWN]
        )
    if counted := [
        WrongPart(detail="a date (YYYY-MM-DD), and of a time its zone", parameter=name)
        for name, text in given.multi_items()
        if {date, datetime} & {*get_args(hints[name])} and not is_written(text)
    ]:
        raise InvalidRequest(
            f"{counted[0].parameter}: {counted[0].detail}.", code="malformed", errors=counted[:_SHOWN]
        )
    several = {name for name, hint in hints.items() if get_origin(hint) in (list, tuple)}
    values: dict[str, Any] = {name: given.getlist(name) for name in given}
    single = {name: found[0] for name, found in values.items() if name not in several and len(found) == 1}
    try:
        return TypeAdapter(kind).validate_python(values | single)
    except ValidationError as exc:
        raise _malformed(exc, "parameter", "The query") from None


def is_written(text: object) -> bool:
    """Tell a day or time in digits and hyphens from a count of seconds, which pydantic takes for either."""
    return isinstance(text, str) and text[4:5] == "-"


def problem_of(error: Exception, places: Mapping[str, str]) -> Response:
    """Return the answer to a call that met an error. places: the pointers of what the service calls otherwise."""
    if not (isinstance(error, FlowerUnlearningError) and isinstance(error, tuple(STATUS_OF))):
        return problem(500, "InternalError", refer_to_log(error))
    name = name_on_the_wire(error)
    status = _OF_CODE.get(error.code) or _HTTP_STATUS[status_of(error)]
    message = shorten(str(error))
    wrong = error.fields.get("errors")
    field = error.fields.get("field") or _FIELD_OF_ERROR.get(name)
    if wrong is None and isinstance(field, str):
        wrong = [WrongPart(detail=message, pointer=places.get(field, f"#/{field}"))]
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    if status in _RETRY_AFTER_S:
        wait_s = error.fields.get("wait_s", _OF_A_DAY.get(error.code, _RETRY_AFTER_S[status]))
        headers["Retry-After"] = str(max(1, ceil(float(str(wait_s)))))
    return problem(status, name, message, code=error.code, errors=wrong or [], headers=headers)


def problem(
    status: int, name: str, detail: str, *, headers: Mapping[str, str] | None = None, **more: Any
) -> Response:
    """Return a problem document as an answer. name: of its type."""
    title = re.sub(r"(?<!^)([A-Z])", r" \1", name).capitalize()
    document = Problem(type=f"{_TYPE}{name}", title=title, status=HTTPStatus(status), detail=detail, **more)
    content = document.model_dump_json(exclude_none=True)
    return Response(content, status, {"Cache-Control": "no-store", **(headers or {})}, media_type=KIND)


def _malformed(error: ValidationError, place: str, what: str) -> InvalidRequest:
    wrong, said = [], []
    for one in error.errors(include_url=False, include_context=False, include_input=False)[:_SHOWN]:
        names = [as_line(str(part), 100) for part in one["loc"]]
        pointer = "".join("/" + quote(name.replace("~", "~0").replace("/", "~1")) for name in names)
        where = f"#{pointer}" if place == "pointer" else names[0]
        wrong.append(WrongPart.model_validate({"detail": one["msg"], place: where}))
        said.append(f"{'.'.join(names) or 'all of it'}: {one['msg']}")
    return InvalidRequest(
        f"{what} is not what /openapi.json says: {'; '.join(said)}.", code="malformed", errors=wrong
    )


def _no_name_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object, which has each name once: of two values under one, another reader may take the other one."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise InvalidRequest("The body has a name twice in one object; give each once.", code="name-twice")
    return found
