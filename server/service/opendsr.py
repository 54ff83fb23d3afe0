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
The types are the documents: what is written follows from them, and so does the OpenAPI document (openapi.py). What is
read: erasure_request.py.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from enum import StrEnum
from typing import Annotated, Any, Self
from uuid import NAMESPACE_URL, UUID, uuid5

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import (
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
)

from server.service.erasure_request import API_VERSION, EXTENSION, SAMPLE, name_for_submitter
from unlearning.advice import advice_for
from unlearning.gdpr import Ground
from unlearning.outcomes import describe_request
from unlearning.requests import DeletionRequest, Granularity, Outcome, Status


class RequestStatus(StrEnum):
    """Where a request stands, in OpenDSR's words."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    CANCELLED = "cancelled"


_STATUS: Mapping[Status, RequestStatus] = {
    **dict.fromkeys(Status, RequestStatus.PENDING),
    **dict.fromkeys((Status.UNLEARNING, Status.RECOVERING, Status.VERIFYING), RequestStatus.IN_PROGRESS),
    Status.COMPLETED: RequestStatus.COMPLETED,
    **dict.fromkeys((Status.CANCELLED, Status.REFUSED, Status.REPLACED), RequestStatus.CANCELLED),
}


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


def request_status(request: DeletionRequest) -> RequestStatus:
    """Return the status in OpenDSR's words; a failed request still waits for its answer, also by another method."""
    return _STATUS[request.status]


def is_final(request: DeletionRequest) -> bool:
    """Return whether nothing further will happen to a request."""
    return request_status(request) in (RequestStatus.COMPLETED, RequestStatus.CANCELLED)


def condition(request: DeletionRequest) -> str:
    """Return the state of a request that is sent to listeners; some are ones although OpenDSR has no word for them."""
    is_own = request.status in (Status.FAILED, Status.AWAITING, Status.REOPENED)
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
