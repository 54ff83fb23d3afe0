"""The erasure request of OpenDSR 2.0: what a caller sends, and by which ids a request is known to whom.

The types are the documents: what is read follows from them, and so does the OpenAPI document (openapi.py).
"""

import re
from contextlib import suppress
from dataclasses import fields
from datetime import date, datetime
from typing import Annotated, Any, Literal, get_args, get_type_hints

from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    create_model,
)
from pydantic_core import PydanticCustomError

from server.ledger import NewRequest
from server.service.access import Caller
from server.service.problems import is_written
from server.service.statuses import AccessDenied
from unlearning.errors import InvalidRequest
from unlearning.gdpr import Particulars
from unlearning.requests import DeletionRequest, Granularity, Target

API_VERSION = "2.0"
EXTENSION = "flower-unlearning"
"""The key of what OpenDSR has no words for, in requests and answers; in OpenDSR the processor's domain."""
SAMPLE = "controller_customer_id"
"""The identity that names a sample: the id that the client, whose data it is, gave it."""
MAX_CALLBACKS = 5

_KEY_PREFIX = "opendsr:"
_OWN_ID = re.compile(r"r-[0-9]{1,9}")


class Part(BaseModel):
    """A part of what a caller sends."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Identity(Part):
    """One identity of the data subject: a sample, by the id that its client gave it."""

    identity_type: Literal["controller_customer_id"]
    identity_value: str
    identity_format: Literal["raw"]


def _written(kind: Any, what: str) -> PlainValidator:
    """Return what reads a day or time as ISO 8601 writes it, and refuses a count of seconds."""
    adapter: TypeAdapter[Any] = TypeAdapter(kind)

    def read(text: Any) -> Any:
        with suppress(ValidationError):  # one for each kind that it may be
            if is_written(text):
                return adapter.validate_strings(text)
        raise PydanticCustomError("not_written", "Input should be {what}", {"what": what})

    return PlainValidator(read, json_schema_input_type=kind)


_Day = Annotated[date, _written(date, "a date (YYYY-MM-DD)")]
_Moment = Annotated[
    datetime | date, _written(AwareDatetime | date, "a time with its zone, or a date (YYYY-MM-DD)")
]

_HINTS = get_type_hints(Particulars, include_extras=True)
_SAID = [item for item in fields(Particulars) if item.name != "received_on"]
"""What the extension says of a request's particulars; the day of receipt is the time of submission."""
_FORMS: dict[str, Any] = {
    item.name: (
        _Day | None if (kind := get_args(_HINTS[item.name])[0]) == date | None else kind,
        Field(item.default, description=get_args(_HINTS[item.name])[1]),
    )
    for item in _SAID
}
_Said: Any = create_model("_Said", __base__=Part, **_FORMS)


class Extension(_Said):
    """What OpenDSR has no words for: the client whose data it is, the method, and the request's particulars."""

    scope: Literal["samples", "client"] = Field(
        "samples",
        description="What is erased: the samples that subject_identities name, or all data of the client, for which "
        "the token needs a right of its own.",
    )
    client_id: str = Field("", description="The client; may be left out with a client's own token.")
    method: str = Field("", description="The method; left out, the one that a plan recommends.")
    parameters: dict[str, Any] = Field({}, description="The method's parameters.")
    hold_reason: str = Field("", description="Why it is held from the start; it is not held where left out.")


class Extensions(BaseModel):
    """Extensions by processor; those of others are passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    own: Extension = Field(Extension(), alias=EXTENSION)


class ErasureRequest(Part):
    """A request of a data subject: erase some samples of a client or, by the extension's scope, all of its data."""

    regulation: Literal["gdpr", "ccpa"]
    subject_request_id: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,99}$",
        description="The caller's own id of the request, new for each; OpenDSR asks for a UUID of version 4.",
    )
    subject_request_type: Literal["erasure"]
    submitted_time: _Moment = Field(description="When the data subject asked; a date will do.")
    subject_identities: list[Identity] = []
    api_version: str = API_VERSION
    property_id: str = ""
    status_callback_urls: list[str] = Field([], max_length=MAX_CALLBACKS)
    extensions: Extensions = Extensions()

    def new_request(self, caller: Caller) -> NewRequest:
        """Return the request for the deletion service.

        Raises:
            InvalidRequest: the id is one of this service's own, an identity is given twice, scope and identities do
                not fit together, or a value cannot be.
            AccessDenied: the token may not file the erasure of a whole client.
        """
        if _OWN_ID.fullmatch(self.subject_request_id):
            raise InvalidRequest(
                "subject_request_id: ids like r-000007 are this service's own; choose another.",
                code="own-id",
                field="subject_request_id",
            )
        own, asked = self.extensions.own, self.submitted_time
        samples = [item.identity_value for item in self.subject_identities]
        if repeated := len(samples) - len(set(samples)):
            raise InvalidRequest(
                f"subject_identities: the list has {repeated:,} repetition(s); name each once.",
                code="repeated",
                field="sample_ids",
            )
        _check_scope(own.scope, samples, caller)
        return NewRequest(
            target=Target(
                granularity=Granularity.CLIENT if own.scope == "client" else Granularity.SAMPLE,
                client_id=own.client_id or (caller.name if caller.is_client else None),
                sample_ids=frozenset(samples),
            ),
            method=own.method,
            parameters=own.parameters,
            hold_reason=own.hold_reason,
            submitted_by=caller.name,
            idempotency_key=key_of(self.subject_request_id),
            particulars=Particulars(
                # The day where the time was taken.
                received_on=asked.date() if isinstance(asked, datetime) else asked,
                **{item.name: getattr(own, item.name) for item in _SAID},
            ),
        )


def _check_scope(scope: str, samples: list[str], caller: Caller) -> None:
    """Refuse an erasure of a whole client that is not asked for by name, or not allowed."""
    if scope == "client" and samples:
        raise InvalidRequest(
            'subject_identities: scope "client" erases all data of the client; leave the identities out, or the scope.',
            code="scope",
            field="sample_ids",
        )
    if scope == "samples" and not samples:
        raise InvalidRequest(
            "subject_identities: name the samples to erase, each by its id. All data of a client is erased only with "
            'scope "client" in the extension.',
            code="no-identities",
            field="sample_ids",
        )
    if scope == "client" and not caller.may_erase_clients:
        raise AccessDenied(
            f"The token of {caller.name!r} may not file the erasure of a whole client. Ask the federation's operator "
            "for one that may (`http-token --erase-clients`), or name the samples.",
            code="erase-clients",
            field="scope",
        )


def key_of(subject_request_id: str) -> str:
    """Return the idempotency key of a caller's own id."""
    return _KEY_PREFIX + subject_request_id


def is_own_id(text: str) -> bool:
    """Return whether an id is one of this service and not a caller's."""
    return _OWN_ID.fullmatch(text) is not None


def name_for_submitter(request: DeletionRequest) -> str:
    """Return the id by which its submitter knows a request; this service's own where it came another way."""
    key = request.idempotency_key
    return key.removeprefix(_KEY_PREFIX) if key.startswith(_KEY_PREFIX) else request.id


def name_for(caller: Caller, request: DeletionRequest) -> str:
    """Return the id by which a caller knows a request; this service's own where another submitter filed it."""
    is_own = (request.submitted_by, request.submitted_role) == (caller.name, caller.role)
    return name_for_submitter(request) if is_own else request.id
