import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Target(_message.Message):
    __slots__ = ("granularity", "client_id", "sample_ids", "class_label", "num_samples")
    GRANULARITY_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_IDS_FIELD_NUMBER: _ClassVar[int]
    CLASS_LABEL_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    granularity: str
    client_id: str
    sample_ids: _containers.RepeatedScalarFieldContainer[str]
    class_label: int
    num_samples: int
    def __init__(self, granularity: _Optional[str] = ..., client_id: _Optional[str] = ..., sample_ids: _Optional[_Iterable[str]] = ..., class_label: _Optional[int] = ..., num_samples: _Optional[int] = ...) -> None: ...

class DeletionRequest(_message.Message):
    __slots__ = ("id", "idempotency_key", "target", "method", "parameters_json", "submitted_by", "status", "reason", "retryable", "attempts", "created_at", "updated_at", "result_json", "submitted_role", "received_on", "due_on", "extended_days", "ground", "is_held", "reference", "note", "extension_reason", "hold_reason", "refusal_reason", "is_redacted", "approvals_needed", "outcome")
    ID_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_JSON_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_BY_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    UPDATED_AT_FIELD_NUMBER: _ClassVar[int]
    RESULT_JSON_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_ROLE_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_ON_FIELD_NUMBER: _ClassVar[int]
    DUE_ON_FIELD_NUMBER: _ClassVar[int]
    EXTENDED_DAYS_FIELD_NUMBER: _ClassVar[int]
    GROUND_FIELD_NUMBER: _ClassVar[int]
    IS_HELD_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    EXTENSION_REASON_FIELD_NUMBER: _ClassVar[int]
    HOLD_REASON_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_REASON_FIELD_NUMBER: _ClassVar[int]
    IS_REDACTED_FIELD_NUMBER: _ClassVar[int]
    APPROVALS_NEEDED_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    id: str
    idempotency_key: str
    target: Target
    method: str
    parameters_json: str
    submitted_by: str
    status: str
    reason: str
    retryable: bool
    attempts: int
    created_at: _timestamp_pb2.Timestamp
    updated_at: _timestamp_pb2.Timestamp
    result_json: str
    submitted_role: str
    received_on: str
    due_on: str
    extended_days: int
    ground: str
    is_held: bool
    reference: str
    note: str
    extension_reason: str
    hold_reason: str
    refusal_reason: str
    is_redacted: bool
    approvals_needed: int
    outcome: str
    def __init__(self, id: _Optional[str] = ..., idempotency_key: _Optional[str] = ..., target: _Optional[_Union[Target, _Mapping]] = ..., method: _Optional[str] = ..., parameters_json: _Optional[str] = ..., submitted_by: _Optional[str] = ..., status: _Optional[str] = ..., reason: _Optional[str] = ..., retryable: _Optional[bool] = ..., attempts: _Optional[int] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., updated_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., result_json: _Optional[str] = ..., submitted_role: _Optional[str] = ..., received_on: _Optional[str] = ..., due_on: _Optional[str] = ..., extended_days: _Optional[int] = ..., ground: _Optional[str] = ..., is_held: _Optional[bool] = ..., reference: _Optional[str] = ..., note: _Optional[str] = ..., extension_reason: _Optional[str] = ..., hold_reason: _Optional[str] = ..., refusal_reason: _Optional[str] = ..., is_redacted: _Optional[bool] = ..., approvals_needed: _Optional[int] = ..., outcome: _Optional[str] = ...) -> None: ...

class SubmitRequestRequest(_message.Message):
    __slots__ = ("target", "method", "parameters_json", "idempotency_key", "submitted_by", "received_on", "due_on", "ground", "reference", "note", "hold_reason")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_JSON_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_BY_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_ON_FIELD_NUMBER: _ClassVar[int]
    DUE_ON_FIELD_NUMBER: _ClassVar[int]
    GROUND_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    HOLD_REASON_FIELD_NUMBER: _ClassVar[int]
    target: Target
    method: str
    parameters_json: str
    idempotency_key: str
    submitted_by: str
    received_on: str
    due_on: str
    ground: str
    reference: str
    note: str
    hold_reason: str
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., method: _Optional[str] = ..., parameters_json: _Optional[str] = ..., idempotency_key: _Optional[str] = ..., submitted_by: _Optional[str] = ..., received_on: _Optional[str] = ..., due_on: _Optional[str] = ..., ground: _Optional[str] = ..., reference: _Optional[str] = ..., note: _Optional[str] = ..., hold_reason: _Optional[str] = ...) -> None: ...

class SubmitSamplesRequest(_message.Message):
    __slots__ = ("request", "more")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    request: SubmitRequestRequest
    more: SampleIds
    def __init__(self, request: _Optional[_Union[SubmitRequestRequest, _Mapping]] = ..., more: _Optional[_Union[SampleIds, _Mapping]] = ...) -> None: ...

class SampleIds(_message.Message):
    __slots__ = ("sample_ids",)
    SAMPLE_IDS_FIELD_NUMBER: _ClassVar[int]
    sample_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, sample_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class GetRequestRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class ListRequestsRequest(_message.Message):
    __slots__ = ("statuses", "client_id", "after", "text", "due", "held", "first", "last", "since", "order", "descending", "offset", "limit", "outcomes", "urgent")
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    DUE_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    DESCENDING_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    URGENT_FIELD_NUMBER: _ClassVar[int]
    statuses: _containers.RepeatedScalarFieldContainer[str]
    client_id: str
    after: int
    text: str
    due: str
    held: bool
    first: str
    last: str
    since: _timestamp_pb2.Timestamp
    order: str
    descending: bool
    offset: int
    limit: int
    outcomes: _containers.RepeatedScalarFieldContainer[str]
    urgent: bool
    def __init__(self, statuses: _Optional[_Iterable[str]] = ..., client_id: _Optional[str] = ..., after: _Optional[int] = ..., text: _Optional[str] = ..., due: _Optional[str] = ..., held: _Optional[bool] = ..., first: _Optional[str] = ..., last: _Optional[str] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., order: _Optional[str] = ..., descending: _Optional[bool] = ..., offset: _Optional[int] = ..., limit: _Optional[int] = ..., outcomes: _Optional[_Iterable[str]] = ..., urgent: _Optional[bool] = ...) -> None: ...

class ListRequestsResponse(_message.Message):
    __slots__ = ("requests", "total")
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[DeletionRequest]
    total: int
    def __init__(self, requests: _Optional[_Iterable[_Union[DeletionRequest, _Mapping]]] = ..., total: _Optional[int] = ...) -> None: ...

class CountRequestsRequest(_message.Message):
    __slots__ = ("lists",)
    LISTS_FIELD_NUMBER: _ClassVar[int]
    lists: _containers.RepeatedCompositeFieldContainer[ListRequestsRequest]
    def __init__(self, lists: _Optional[_Iterable[_Union[ListRequestsRequest, _Mapping]]] = ...) -> None: ...

class CountRequestsResponse(_message.Message):
    __slots__ = ("totals",)
    TOTALS_FIELD_NUMBER: _ClassVar[int]
    totals: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, totals: _Optional[_Iterable[int]] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("sequence", "request_id", "kind", "from_status", "to_status", "actor", "detail_json", "at", "text")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    FROM_STATUS_FIELD_NUMBER: _ClassVar[int]
    TO_STATUS_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    DETAIL_JSON_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    request_id: str
    kind: str
    from_status: str
    to_status: str
    actor: str
    detail_json: str
    at: _timestamp_pb2.Timestamp
    text: str
    def __init__(self, sequence: _Optional[int] = ..., request_id: _Optional[str] = ..., kind: _Optional[str] = ..., from_status: _Optional[str] = ..., to_status: _Optional[str] = ..., actor: _Optional[str] = ..., detail_json: _Optional[str] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., text: _Optional[str] = ...) -> None: ...

class Round(_message.Message):
    __slots__ = ("sequence", "round", "kind", "request_ids", "metrics_json", "at")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    METRICS_JSON_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    round: int
    kind: str
    request_ids: _containers.RepeatedScalarFieldContainer[str]
    metrics_json: str
    at: _timestamp_pb2.Timestamp
    def __init__(self, sequence: _Optional[int] = ..., round: _Optional[int] = ..., kind: _Optional[str] = ..., request_ids: _Optional[_Iterable[str]] = ..., metrics_json: _Optional[str] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ChangeRequest(_message.Message):
    __slots__ = ("request_id", "by", "reason", "days", "accept_score_loss", "ground", "reference", "note", "method", "parameters_json", "include_refusal")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DAYS_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_SCORE_LOSS_FIELD_NUMBER: _ClassVar[int]
    GROUND_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_JSON_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_REFUSAL_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    by: str
    reason: str
    days: int
    accept_score_loss: float
    ground: str
    reference: str
    note: str
    method: str
    parameters_json: str
    include_refusal: bool
    def __init__(self, request_id: _Optional[str] = ..., by: _Optional[str] = ..., reason: _Optional[str] = ..., days: _Optional[int] = ..., accept_score_loss: _Optional[float] = ..., ground: _Optional[str] = ..., reference: _Optional[str] = ..., note: _Optional[str] = ..., method: _Optional[str] = ..., parameters_json: _Optional[str] = ..., include_refusal: _Optional[bool] = ...) -> None: ...

class GetReportRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class GetReportResponse(_message.Message):
    __slots__ = ("json", "html", "certificate", "timestamp")
    JSON_FIELD_NUMBER: _ClassVar[int]
    HTML_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    json: bytes
    html: bytes
    certificate: bytes
    timestamp: bytes
    def __init__(self, json: _Optional[bytes] = ..., html: _Optional[bytes] = ..., certificate: _Optional[bytes] = ..., timestamp: _Optional[bytes] = ...) -> None: ...

class ListClientsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Client(_message.Message):
    __slots__ = ("client_id", "node_name", "public_key_hex", "online", "last_seen", "forgotten", "num_forgotten_samples")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEY_HEX_FIELD_NUMBER: _ClassVar[int]
    ONLINE_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_FIELD_NUMBER: _ClassVar[int]
    FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    NUM_FORGOTTEN_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    node_name: str
    public_key_hex: str
    online: bool
    last_seen: _timestamp_pb2.Timestamp
    forgotten: bool
    num_forgotten_samples: int
    def __init__(self, client_id: _Optional[str] = ..., node_name: _Optional[str] = ..., public_key_hex: _Optional[str] = ..., online: _Optional[bool] = ..., last_seen: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., forgotten: _Optional[bool] = ..., num_forgotten_samples: _Optional[int] = ...) -> None: ...

class ListClientsResponse(_message.Message):
    __slots__ = ("clients", "waiting", "federation")
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    clients: _containers.RepeatedCompositeFieldContainer[Client]
    waiting: str
    federation: str
    def __init__(self, clients: _Optional[_Iterable[_Union[Client, _Mapping]]] = ..., waiting: _Optional[str] = ..., federation: _Optional[str] = ...) -> None: ...

class ListMethodsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Method(_message.Message):
    __slots__ = ("name", "title", "source", "granularities", "several_at_once", "needs", "remark", "parameters_json", "keeps", "measured_json")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    GRANULARITIES_FIELD_NUMBER: _ClassVar[int]
    SEVERAL_AT_ONCE_FIELD_NUMBER: _ClassVar[int]
    NEEDS_FIELD_NUMBER: _ClassVar[int]
    REMARK_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_JSON_FIELD_NUMBER: _ClassVar[int]
    KEEPS_FIELD_NUMBER: _ClassVar[int]
    MEASURED_JSON_FIELD_NUMBER: _ClassVar[int]
    name: str
    title: str
    source: str
    granularities: _containers.RepeatedScalarFieldContainer[str]
    several_at_once: bool
    needs: _containers.RepeatedScalarFieldContainer[str]
    remark: str
    parameters_json: str
    keeps: str
    measured_json: str
    def __init__(self, name: _Optional[str] = ..., title: _Optional[str] = ..., source: _Optional[str] = ..., granularities: _Optional[_Iterable[str]] = ..., several_at_once: _Optional[bool] = ..., needs: _Optional[_Iterable[str]] = ..., remark: _Optional[str] = ..., parameters_json: _Optional[str] = ..., keeps: _Optional[str] = ..., measured_json: _Optional[str] = ...) -> None: ...

class ListMethodsResponse(_message.Message):
    __slots__ = ("methods",)
    METHODS_FIELD_NUMBER: _ClassVar[int]
    methods: _containers.RepeatedCompositeFieldContainer[Method]
    def __init__(self, methods: _Optional[_Iterable[_Union[Method, _Mapping]]] = ...) -> None: ...

class PlanDeletionResponse(_message.Message):
    __slots__ = ("plan_json",)
    PLAN_JSON_FIELD_NUMBER: _ClassVar[int]
    plan_json: str
    def __init__(self, plan_json: _Optional[str] = ...) -> None: ...

class ListRefusalsRequest(_message.Message):
    __slots__ = ("after", "limit", "caller")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    after: int
    limit: int
    caller: str
    def __init__(self, after: _Optional[int] = ..., limit: _Optional[int] = ..., caller: _Optional[str] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("sequence", "at", "caller", "role", "call", "reason", "detail_json")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_JSON_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    at: _timestamp_pb2.Timestamp
    caller: str
    role: str
    call: str
    reason: str
    detail_json: str
    def __init__(self, sequence: _Optional[int] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., caller: _Optional[str] = ..., role: _Optional[str] = ..., call: _Optional[str] = ..., reason: _Optional[str] = ..., detail_json: _Optional[str] = ...) -> None: ...

class ListRefusalsResponse(_message.Message):
    __slots__ = ("refusals",)
    REFUSALS_FIELD_NUMBER: _ClassVar[int]
    refusals: _containers.RepeatedCompositeFieldContainer[Refusal]
    def __init__(self, refusals: _Optional[_Iterable[_Union[Refusal, _Mapping]]] = ...) -> None: ...

class VerifyLedgerRequest(_message.Message):
    __slots__ = ("sequence",)
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    def __init__(self, sequence: _Optional[int] = ...) -> None: ...

class VerifyLedgerResponse(_message.Message):
    __slots__ = ("first_broken", "head_sequence", "head_hash", "hash", "problem")
    FIRST_BROKEN_FIELD_NUMBER: _ClassVar[int]
    HEAD_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    HEAD_HASH_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    first_broken: int
    head_sequence: int
    head_hash: str
    hash: str
    problem: str
    def __init__(self, first_broken: _Optional[int] = ..., head_sequence: _Optional[int] = ..., head_hash: _Optional[str] = ..., hash: _Optional[str] = ..., problem: _Optional[str] = ...) -> None: ...

class ListEventsRequest(_message.Message):
    __slots__ = ("request_id", "after")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    after: int
    def __init__(self, request_id: _Optional[str] = ..., after: _Optional[int] = ...) -> None: ...

class ListEventsResponse(_message.Message):
    __slots__ = ("events", "newest")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[Event]
    newest: int
    def __init__(self, events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ..., newest: _Optional[int] = ...) -> None: ...

class ListRoundsRequest(_message.Message):
    __slots__ = ("after", "limit", "request_id")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    after: int
    limit: int
    request_id: str
    def __init__(self, after: _Optional[int] = ..., limit: _Optional[int] = ..., request_id: _Optional[str] = ...) -> None: ...

class ListRoundsResponse(_message.Message):
    __slots__ = ("rounds",)
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    rounds: _containers.RepeatedCompositeFieldContainer[Round]
    def __init__(self, rounds: _Optional[_Iterable[_Union[Round, _Mapping]]] = ...) -> None: ...
