"""What tests of the deletion service share: a stand-in for the live loop, and a way to file requests."""

import socket
from datetime import UTC, datetime, timedelta
from typing import Any

from server.api.client import DeletionClient
from server.ledger import ClientRecord, Ledger, RoundRecord
from server.requests.admission import FEDERATION
from unlearning.methods.eligibility import FederationProfile
from unlearning.plain import to_plain
from unlearning.requests import DeletionRequest, Granularity, Status, Target

NOW = datetime(2026, 3, 1, tzinfo=UTC)
CLIENT_3 = Target(Granularity.CLIENT, "3")
FORGETTING = (Status.SCHEDULED, Status.UNLEARNING, Status.RECOVERING, Status.VERIFYING, Status.COMPLETED)


class LiveLoop:
    """What the live loop does to the ledger, without a federation."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._token = ledger.acquire_fence("loop", now=NOW)
        self._now = datetime.now(UTC)
        ledger.register_clients([ClientRecord(name) for name in ("3", "4")], token=self._token, now=NOW)

    def _tick(self) -> datetime:
        self._now += timedelta(seconds=1)
        return self._now

    def announce(self) -> None:
        """Say what the federation is, as a ServerApp does at its start: without, nothing can be planned."""
        profile = FederationProfile(
            task="digits", score_name="accuracy", num_classes=10, num_parameters=650, bytes_per_parameter=4,
            num_head_parameters=650, recovery_max_rounds=3,
        )  # fmt: skip
        self._ledger.set_facts({FEDERATION: to_plain(profile)}, token=self._token, now=self._tick())

    def move(self, request_id: str, *path: Status, **changes: Any) -> None:
        for status in path:
            self._ledger.move(request_id, status, token=self._token, now=self._tick(), **changes)

    def note(self, request_id: str, text: str) -> None:
        self._ledger.note(request_id, "waiting", token=self._token, now=self._tick(), detail={"text": text})

    def round(self, number: int, kind: str, *request_ids: str, **metrics: Any) -> None:
        record = RoundRecord(
            round=number, kind=kind, request_ids=request_ids, metrics=metrics, at=self._tick()
        )
        self._ledger.record_round(record, token=self._token)


def submit(client: DeletionClient, target: Target = CLIENT_3, **changes: Any) -> DeletionRequest:
    return client.submit(target, **{"method": "puf-special", "submitted_by": "ada"} | changes)


def free_port() -> int:
    """A port where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
