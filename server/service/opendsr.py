"""The documents of OpenDSR 2.0 (specification.md of opengdpr/OpenDSR) and what they are here.

| here                               | request_status                                                              |
|------------------------------------|-----------------------------------------------------------------------------|
| received, scheduled                | pending                                                                     |
| unlearning, recovering, verifying  | in_progress                                                                 |
| completed                          | completed                                                                   |
| cancelled                          | cancelled                                                                   |
| failed, but it can be tried again  | pending                                                                     |
| failed permanently, refused        | cancelled: OpenDSR knows neither, and nothing further will happen           |

The state as it is here, and its reason, are in the extension `flower-unlearning` of each answer.
"""

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime
from typing import Any, Literal, get_args, get_type_hints

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, create_model

from server.ledger import NewRequest
from server.service.access import Caller
from unlearning.errors import InvalidRequest
from unlearning.gdpr import Particulars
from unlearning.requests import DeletionRequest, Granularity, Status, Target

API_VERSION = "2.0"
EXTENSION = "flower-unlearning"
"""The key of what OpenDSR has no words for, in requests and answers; in OpenDSR the processor's domain."""
SAMPLE = "controller_customer_id"
"""The identity that names a sample: the id that the client, whose data it is, gave it."""
MAX_CALLBACKS = 5

_KEY_PREFIX = "opendsr:"
_OWN_ID = re.compile(r"r-[0-9]{1,9}")
_STATUS: Mapping[Status, str] = {
    Status.RECEIVED: "pending",
    Status.AWAITING: "pending",
    Status.ACCEPTED: "pending",
    Status.SCHEDULED: "pending",
    Status.UNLEARNING: "in_progress",
    Status.RECOVERING: "in_progress",
    Status.VERIFYING: "in_progress",
    Status.COMPLETED: "completed",
    Status.CANCELLED: "cancelled",
    Status.REFUSED: "cancelled",
    Status.REPLACED: "cancelled",
}


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Identity(_Part):
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
_Said: Any = create_model("_Said", __base__=_Part, **_FORMS)


class Extension(_Said):
    """What OpenDSR has no words for: the client whose data it is, the method, and the request's particulars."""

    client_id: str = Field("", description="The client; may be left out with a client's own token.")
    method: str = Field("", description="The method; left out, the one that a plan recommends.")
    parameters: dict[str, Any] = Field({}, description="The method's parameters.")


class Extensions(BaseModel):
    """Extensions by processor; those of others are passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    own: Extension = Field(Extension(), alias=EXTENSION)


class ErasureRequest(_Part):
    """A request of a data subject. Without identities all of the client's data is to be forgotten, else the samples."""

    regulation: Literal["gdpr", "ccpa"]
    subject_request_id: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,99}$",
        description="The caller's own id of the request, new for each; OpenDSR asks for a UUID of version 4.",
    )
    subject_request_type: Literal["erasure"]
    submitted_time: AwareDatetime | date = Field(description="When the data subject asked; a date will do.")
    subject_identities: list[Identity] = []
    api_version: str = API_VERSION
    property_id: str = ""
    status_callback_urls: list[str] = Field([], max_length=MAX_CALLBACKS)
    extensions: Extensions = Extensions()

    def new_request(self, caller: Caller) -> NewRequest:
        """Return the request for the deletion service.

        Raises:
            InvalidRequest: the id is one of this service's own, an identity is given twice, or a value cannot be.
        """
        if _OWN_ID.fullmatch(self.subject_request_id):
            raise InvalidRequest(
                "subject_request_id: ids like r-000007 are this service's own; choose another.", code="own-id"
            )
        own, asked = self.extensions.own, self.submitted_time
        samples = [item.identity_value for item in self.subject_identities]
        if repeated := len(samples) - len(set(samples)):
            raise InvalidRequest(
                f"subject_identities: the list has {repeated:,} repetition(s); name each once.",
                code="repeated",
            )
        return NewRequest(
            target=Target(
                granularity=Granularity.SAMPLE if samples else Granularity.CLIENT,
                client_id=own.client_id or (caller.name if caller.is_client else None),
                sample_ids=frozenset(samples),
            ),
            method=own.method,
            parameters=own.parameters,
            submitted_by=caller.name,
            idempotency_key=key_of(self.subject_request_id),
            particulars=Particulars(
                # The day where the time was taken.
                received_on=asked.date() if isinstance(asked, datetime) else asked,
                **{item.name: getattr(own, item.name) for item in _SAID},
            ),
        )


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


def read_request(raw: bytes) -> ErasureRequest:
    """Read a request from bytes that any caller may have sent.

    Raises:
        InvalidRequest: it is none; the message says where, and repeats no value of it.
    """
    try:
        return ErasureRequest.model_validate_json(raw)
    except ValidationError as exc:
        problems = [
            f"{'.'.join(map(str, error['loc'])) or 'the body'}: {error['msg']}" for error in exc.errors()[:5]
        ]
        raise InvalidRequest(f"This is no erasure request: {'; '.join(problems)}.") from None


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


def request_status(request: DeletionRequest) -> str:
    """Return the status in OpenDSR's words."""
    if request.status is Status.FAILED:
        return "pending" if request.retryable else "cancelled"
    return _STATUS[request.status]


def is_final(request: DeletionRequest) -> bool:
    """Return whether nothing further will happen to a request."""
    return request_status(request) in ("completed", "cancelled")


def condition(request: DeletionRequest) -> str:
    """Return the state of a request that is sent to listeners; a failure is one although OpenDSR has no word for it."""
    return str(Status.FAILED) if request.status is Status.FAILED else request_status(request)


def receipt(request: DeletionRequest, caller: Caller, encoded_request: str, now: datetime) -> dict[str, Any]:
    """Return the answer to a request that was taken in, with its present status. encoded_request: it, in Base64."""
    document = status(request, name_for(caller, request))
    return {**document, "received_time": _time(now), "encoded_request": encoded_request}


def status(request: DeletionRequest, name: str) -> dict[str, Any]:
    """Return the state of a request. name: its id for the reader."""
    document = {
        "controller_id": request.submitted_by,
        "expected_completion_time": f"{request.due_on}T23:59:59Z",
        "subject_request_id": name,
        "request_status": request_status(request),
        "api_version": API_VERSION,
        "extensions": {
            EXTENSION: {
                "request_id": request.id,
                "status": str(request.status),
                "reason": request.reason or request.refusal_reason,
                "is_held": request.is_held,
                "received_on": str(request.received_on),
                "granularity": str(request.target.granularity),
                "client_id": request.target.client_id,
                "num_samples": request.target.num_samples,
                "method": request.method,
            }
        },
    }
    if request.status is Status.COMPLETED:
        document["results_url"] = f"/requests/{name}/certificate"
    return document


def cancellation(request: DeletionRequest, caller: Caller, now: datetime) -> dict[str, Any]:
    """Return the answer to a request that was withdrawn."""
    return {
        "controller_id": request.submitted_by,
        "subject_request_id": name_for(caller, request),
        "received_time": _time(now),
        "api_version": API_VERSION,
    }


def callback(request: DeletionRequest, url: str, now: datetime) -> dict[str, Any]:
    """Return what is sent to a callback URL. sent_time tells a copy that another party sends again."""
    return {
        **status(request, name_for_submitter(request)),
        "status_callback_url": url,
        "sent_time": _time(now),
    }


def discovery() -> dict[str, Any]:
    """Return what this service supports."""
    return {
        "api_version": API_VERSION,
        "supported_identities": [{"identity_type": SAMPLE, "identity_format": "raw"}],
        "supported_subject_request_types": ["erasure"],
        "processor_certificate": "/callback-key.pem",
    }


def _time(value: datetime) -> str:
    return value.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
