"""What tests of the deletion service share: a stand-in for the live loop, and a way to file requests."""

import socket
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc

from server.ledger import FEDERATION, ClientRecord, Ledger, RoundRecord
from server.service import deletion_pb2 as pb
from server.service.client import DeletionClient
from tests.ledgers import live_at
from unlearning.methods.eligibility import FederationProfile
from unlearning.requests import DeletionRequest, Granularity, Outcome, Status, Target
from unlearning.runtime.json_codec import to_plain

SERVICE = pb.DESCRIPTOR.services_by_name["DeletionService"]
NOW = datetime(2026, 3, 1, tzinfo=UTC)
CLIENT_3 = Target(Granularity.CLIENT, "3")
ALL_OF_3, SAMPLES_OF_3 = ({"granularity": kind, "client_id": "3"} for kind in ("client", "sample"))
# However slow the machine is: an answer that takes longer waited for a silent caller, whose call ends after 60 s.
ANSWERED_S = 45.0
FIRST, SECOND = "a7551968-d5d6-44b2-9831-815ac9017798", "0e4aa1a2-30ff-4d1b-9f64-9a8a4a1f3d52"
FORGETTING = (Status.SCHEDULED, Status.UNLEARNING, Status.RECOVERING, Status.VERIFYING, Status.COMPLETED)


class LiveLoop:
    """What the live loop does to the ledger, without a federation."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._token = ledger.acquire_fence("loop", now=NOW)
        self._now = datetime.now(UTC)
        live_at(ledger, self._token, NOW).register_clients([ClientRecord(name) for name in ("3", "4")])

    def _tick(self) -> datetime:
        self._now += timedelta(seconds=1)
        return self._now

    def announce(self, **known: Any) -> None:
        """Say what the federation is, as a ServerApp does at its start: without, nothing can be planned."""
        profile = FederationProfile(
            task="digits", score_name="accuracy", num_classes=10, num_parameters=650, bytes_per_parameter=4,
            num_head_parameters=650, recovery_max_rounds=3, name="lakeside", **known,
        )  # fmt: skip
        live_at(self._ledger, self._token, self._tick()).set_facts({FEDERATION: to_plain(profile)})

    def set_facts(self, facts: Mapping[str, Any]) -> None:
        live_at(self._ledger, self._token, self._tick()).set_facts(facts)

    def move(self, request_id: str, *path: Status, **changes: Any) -> None:
        outcome = changes.pop("outcome", Outcome.NOT_SHOWN)
        for status in path:
            more = {"outcome": outcome} if status is Status.COMPLETED else {}
            live_at(self._ledger, self._token, self._tick()).move(request_id, status, **more, **changes)

    def complete(self, request_id: str, reports: Path, files: Mapping[str, bytes]) -> None:
        """Carry a request out, with a report of these files."""
        self.move(request_id, *FORGETTING)
        folder = reports / request_id
        folder.mkdir(parents=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)

    def note(self, request_id: str, text: str) -> None:
        live_at(self._ledger, self._token, self._tick()).note(request_id, "waiting", detail={"text": text})

    def round(self, number: int, kind: str, *request_ids: str, **metrics: Any) -> None:
        record = RoundRecord(
            round=number, kind=kind, request_ids=request_ids, metrics=metrics, at=self._tick()
        )
        live_at(self._ledger, self._token).record_round(record)


def submit(client: DeletionClient, target: Target = CLIENT_3, **changes: Any) -> DeletionRequest:
    return client.submit(target, **{"method": "puf-special", "submitted_by": "ada"} | changes)


def erasure(name: str = FIRST, *samples: str, client: str = "3", **changes: Any) -> dict[str, Any]:
    """An erasure request as OpenDSR has it: of these samples, or of the whole client."""
    own = {"client_id": client, "scope": "samples" if samples else "client"}
    return {
        "regulation": "gdpr",
        "subject_request_id": name,
        "subject_request_type": "erasure",
        "submitted_time": "2024-02-28T15:00:00Z",
        "subject_identities": [
            {"identity_type": "controller_customer_id", "identity_value": item, "identity_format": "raw"}
            for item in samples
        ],
        "extensions": {"flower-unlearning": own, "another.example": {"x": 1}},
        **changes,
    }


def answer(channel: grpc.Channel, name: str, raw: bytes) -> tuple[grpc.StatusCode, str]:
    """Status and message of a call by its name; of a stream that began, OK."""
    path = f"/{SERVICE.full_name}/{name}"
    try:
        if SERVICE.methods_by_name[name].server_streaming:
            stream: Any = channel.unary_stream(path)(raw, timeout=ANSWERED_S)
            next(stream)
            stream.cancel()
        else:
            multi: Any = channel.unary_unary(path)
            multi(raw, timeout=ANSWERED_S)
    except grpc.RpcError as exc:
        refusal: Any = exc
        return refusal.code(), refusal.details()
    return grpc.StatusCode.OK, ""


def connect(address: str, source: str = "127.0.0.1") -> socket.socket:
    """A connection to a server of this machine at host:port."""
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=ANSWERED_S, source_address=(source, 0))


def received(connection: socket.socket) -> bytes:
    """All that comes until the other side hangs up."""
    answer = b""
    while part := connection.recv(65536):
        answer += part
    return answer


def free_port() -> int:
    """A port where no program listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
