"""The documents of OpenDSR 2.0 (specification.md of opengdpr/OpenDSR) and what they are here.

| here                                             | request_status                                               |
|--------------------------------------------------|--------------------------------------------------------------|
| received, awaiting-decision, accepted, scheduled | pending                                                      |
| unlearning, recovering, verifying                | in_progress                                                  |
| completed                                        | completed                                                    |
| cancelled                                        | cancelled                                                    |
| failed: to be tried again or refused             | pending                                                      |
| refused, replaced                                | cancelled: OpenDSR knows neither, and nothing will happen    |

The state as it is here, its reason and its outcome are in the extension `flower-unlearning` of each answer.
The types are the documents: what is read and written follows from them, and so does the OpenAPI document (openapi.py).
"""

import base64
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, time
from enum import StrEnum
from typing import Annotated, Any, Literal, Self, get_args, get_type_hints
from uuid import NAMESPACE_URL, UUID, uuid5

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import (
    AliasPath,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    create_model,
)

from server.ledger import NewRequest
from server.service.access import Caller
from server.service.statuses import AccessDenied
from unlearning.advice import advice_for
from unlearning.errors import InvalidRequest
from unlearning.gdpr import Ground, Particulars
from unlearning.outcomes import describe_request
from unlearning.requests import DeletionRequest, Granularity, Outcome, Status, Target

API_VERSION = "2.0"
EXTENSION = "flower-unlearning"
"""The key of what OpenDSR has no words for, in requests and answers; in OpenDSR the processor's domain."""
SAMPLE = "controller_customer_id"
"""The identity that names a sample: the id that the client, whose data it is, gave it."""
MAX_CALLBACKS = 5

_KEY_PREFIX = "opendsr:"
_OWN_ID = re.compile(r"r-[0-9]{1,9}")


class RequestStatus(StrEnum):
    """Where a request stands, in OpenDSR's words."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    CANCELLED = "cancelled"


_STATUS: Mapping[Status, RequestStatus] = {
    Status.RECEIVED: RequestStatus.PENDING,
    Status.AWAITING: RequestStatus.PENDING,
    Status.ACCEPTED: RequestStatus.PENDING,
    Status.SCHEDULED: RequestStatus.PENDING,
    Status.UNLEARNING: RequestStatus.IN_PROGRESS,
    Status.RECOVERING: RequestStatus.IN_PROGRESS,
    Status.VERIFYING: RequestStatus.IN_PROGRESS,
    Status.COMPLETED: RequestStatus.COMPLETED,
    Status.CANCELLED: RequestStatus.CANCELLED,
    Status.FAILED: RequestStatus.PENDING,
    Status.REFUSED: RequestStatus.CANCELLED,
    Status.REPLACED: RequestStatus.CANCELLED,
}


class Part(BaseModel):
    """A part of what a caller sends."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Identity(Part):
    """One identity of the data subject: a sample, by the id that its client gave it."""

    identity_type: Literal["controller_customer_id"]
    identity_value: str
    identity_format: Literal["raw"]


_HINTS = get_type_hints(Particulars, include_extras=True)
_SAID = [item for item in fields(Particulars) if item.name != "received_on"]
"""What the extension says of a request's particulars; the day of receipt is the time of submission."""
_FORMS: dict[str, Any] = {
    item.name: (
        get_args(_HINTS[item.name])[0],
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


_MOMENTS: TypeAdapter[datetime | date] = TypeAdapter(AwareDatetime | date)


def _moment(text: Any) -> datetime | date:
    with suppress(ValidationError):  # one for each kind that it may be
        if isinstance(text, str) and text[4:5] == "-":  # no count of seconds
            return _MOMENTS.validate_strings(text)
    raise ValueError("a time with its zone, or a date (YYYY-MM-DD)")


_Moment = Annotated[datetime | date, PlainValidator(_moment, json_schema_input_type=AwareDatetime | date)]


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


_Time = Annotated[datetime, PlainSerializer(lambda at: at.astimezone(UTC).replace(microsecond=0))]


class Answer(BaseModel):
    """A document that is answered."""

    model_config = ConfigDict(frozen=True, from_attributes=True)

    def to_json(self) -> bytes:
        """Return the document; what is not known is left out."""
        return self.model_dump_json(by_alias=True, exclude_none=True).encode()


class OwnState(Answer):
    """The state of a request as it is here."""

    request_id: str = Field(validation_alias="id", description="This service's own id of the request.")
    status: Status
    outcome: Outcome | None = Field(None, description="What was shown of the deletion, once it is completed.")
    reason: str = Field(description="Why it failed.")
    advice: str = Field("", description="What may be told of its outcome; what to do where it failed.")
    refusal_reason: str
    retryable: bool
    approvals_needed: int = Field(description="How many people must accept it before it begins.")
    is_held: bool
    hold_reason: str
    received_on: date
    due_on: date
    extended_days: int
    granularity: Granularity = Field(validation_alias=AliasPath("target", "granularity"))
    client_id: str | None = Field(None, validation_alias=AliasPath("target", "client_id"))
    num_samples: int = Field(validation_alias=AliasPath("target", "num_samples"))
    class_label: int | None = Field(None, validation_alias=AliasPath("target", "class_label"))
    method: str
    ground: Ground | None = None
    reference: str
    answered_by: tuple[str, ...] = Field(description="Earlier requests whose deletions answer it.")
    replaced_by: str = Field(description="The request that was filed in its place, with another method.")
    created_at: _Time
    updated_at: _Time


class OwnPart(Answer):
    """What OpenDSR has no words for."""

    own: OwnState = Field(serialization_alias=EXTENSION)


class RequestState(Answer):
    """The state of a request."""

    controller_id: str = Field(description="Who filed it.")
    expected_completion_time: _Time
    subject_request_id: str
    request_status: RequestStatus
    api_version: str = API_VERSION
    results_url: str | None = Field(None, description="The certificate, where it is completed.")
    extensions: OwnPart

    @classmethod
    def of(cls, request: DeletionRequest, name: str, **more: Any) -> Self:
        """Return the document about a request. name: its id for the reader. more: the fields of its kind alone."""
        is_completed = request.status is Status.COMPLETED
        advice = describe_request(request) or advice_for(request)
        return cls(
            controller_id=request.submitted_by,
            expected_completion_time=datetime.combine(request.due_on, time(23, 59, 59), UTC),
            subject_request_id=name,
            request_status=request_status(request),
            results_url=f"/requests/{name}/certificate" if is_completed else None,
            extensions=OwnPart(own=OwnState.model_validate(request).model_copy(update={"advice": advice})),
            **more,
        )


class Receipt(RequestState):
    """The answer to a request that was taken in, with its present status."""

    received_time: _Time
    encoded_request: str = Field(description="The request as it was sent, in Base64.")


class Callback(RequestState):
    """What is sent to a callback URL whenever the request's status changes."""

    callback_id: UUID = Field(description="The same where one state is sent again.")
    status_callback_url: str
    sent_time: _Time


class Cancellation(Answer):
    """The answer to a request that was withdrawn."""

    controller_id: str
    subject_request_id: str
    received_time: _Time
    api_version: str = API_VERSION


class RequestList(Answer):
    """A page of a list of requests."""

    requests: list[RequestState]
    total: int = Field(description="How many there are, on this page and those after it.")
    last: int = Field(description="The number of the last one here: the next page's `after`.")


class IdentityKind(Answer):
    """A kind of identity that a request may name."""

    identity_type: str = SAMPLE
    identity_format: str = "raw"


class Discovery(Answer):
    """What this service supports."""

    api_version: str = API_VERSION
    supported_identities: list[IdentityKind] = [IdentityKind()]
    supported_subject_request_types: list[str] = ["erasure"]
    processor_certificate: str = "/callback-key.pem"


@dataclass(frozen=True, slots=True)
class Signer:
    """The key by which callbacks and receipts are known to be this service's."""

    key: Ed25519PrivateKey

    def headers(self, content: bytes) -> dict[str, str]:
        """Return the headers that go with a body: Ed25519 over its bytes, in Base64."""
        return {
            "X-OpenDSR-Processor-Domain": EXTENSION,
            "X-OpenDSR-Signature": base64.b64encode(self.key.sign(content)).decode(),
        }


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


def request_status(request: DeletionRequest) -> RequestStatus:
    """Return the status in OpenDSR's words; a failed request still waits for its answer, also by another method."""
    return _STATUS[request.status]


def is_final(request: DeletionRequest) -> bool:
    """Return whether nothing further will happen to a request."""
    return request_status(request) in (RequestStatus.COMPLETED, RequestStatus.CANCELLED)


def condition(request: DeletionRequest) -> str:
    """Return the state of a request that is sent to listeners; some are ones although OpenDSR has no word for them."""
    is_own = request.status in (Status.FAILED, Status.AWAITING)
    return str(request.status if is_own else request_status(request))


def callback(request: DeletionRequest, url: str, now: datetime) -> Callback:
    """Return what is sent to a callback URL. sent_time tells a copy that another party sends again."""
    state = f"{url}#{request.id}@{request.updated_at.isoformat()}"
    return Callback.of(
        request,
        name_for_submitter(request),
        callback_id=uuid5(NAMESPACE_URL, state),
        status_callback_url=url,
        sent_time=now,
    )
