"""OpenDSR's documents: what a request asks for, and by when it is answered."""

import json
import re
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from server.service import erasure_request, opendsr
from server.service.access import Caller
from server.service.calls import Role
from server.service.problems import read_document
from tests.deletion_service import erasure
from unlearning.gdpr import Ground, Particulars
from unlearning.requests import DeletionRequest, Granularity, Status, Target

DOCS = Path(__file__).parents[4] / "docs"
TOOL = Caller("tool", Role.OPERATOR, credential="token")


def filed(**changes: object) -> DeletionRequest:
    day = datetime(2026, 1, 31, 12, tzinfo=UTC)
    request = DeletionRequest(
        id="r-000001",
        idempotency_key="opendsr:mine",
        target=Target(Granularity.CLIENT, "3"),
        method="not",
        parameters={},
        submitted_by="tool",
        status=Status.RECEIVED,
        created_at=day,
        updated_at=day,
        received_on=day.date(),
        due_on=date(2026, 2, 28),
    )
    return replace(request, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("status", list(Status))
def test_every_state_has_a_status(status: Status) -> None:
    """The two lists agree, and the final ones are final."""
    request = filed(status=status)
    assert opendsr.request_status(request) in ("pending", "in_progress", "completed", "cancelled")
    assert opendsr.is_final(request) == request.is_answered


@pytest.mark.parametrize(
    ("status", "changes", "expected"),
    [
        (Status.RECEIVED, {}, "pending"),
        (Status.UNLEARNING, {}, "in_progress"),
        (Status.VERIFYING, {}, "in_progress"),
        (Status.COMPLETED, {}, "completed"),
        (Status.FAILED, {"retryable": True, "reason": "away"}, "pending"),
        (Status.FAILED, {"retryable": False, "reason": "never"}, "pending"),
        (Status.REFUSED, {"refusal_reason": "a contract"}, "cancelled"),
    ],
)
def test_each_state_is_told_in_opendsrs_words(status: Status, changes: dict[str, Any], expected: str) -> None:
    """And stands in the extension as it is, with its reason."""
    told = json.loads(opendsr.RequestState.of(filed(status=status, **changes), "mine").to_json())
    own = told["extensions"]["flower-unlearning"]
    assert told["request_status"] == expected
    assert own["status"] == status
    assert (own["reason"], own["refusal_reason"]) == (
        changes.get("reason", ""),
        changes.get("refusal_reason", ""),
    )
    assert ("results_url" in told) == (expected == "completed")


def test_it_is_answered_by_the_end_of_the_day_on_which_it_is_due() -> None:
    """The ledger's deadline, which an extension moves."""
    told = json.loads(opendsr.RequestState.of(filed(), "mine").to_json())
    assert told["expected_completion_time"] == "2026-02-28T23:59:59Z"


def test_what_an_officer_keeps_goes_to_the_ledger() -> None:
    """The day on which the person asked, as it was there; ground, reference and note."""
    own = {"client_id": "3", "ground": "b", "reference": "4711", "note": "by post", "due_on": "2026-03-20"}
    own["scope"] = "client"
    extensions = {"flower-unlearning": own}
    body = erasure("mine", submitted_time="2026-02-28T23:30:00-08:00", extensions=extensions)
    given = (
        read_document(erasure_request.ErasureRequest, json.dumps(body).encode()).new_request(TOOL).particulars
    )
    assert given == Particulars(
        received_on=date(2026, 2, 28),
        due_on=date(2026, 3, 20),
        ground=Ground.B,
        reference="4711",
        note="by post",
    )


def test_the_example_of_curl_is_a_request() -> None:
    """As the page shows it: some samples of a client."""
    [example] = re.findall(
        r"--json '(\{.*?\n\})'", (DOCS / "how-to-connect-a-privacy-tool.md").read_text(), re.DOTALL
    )
    new = read_document(erasure_request.ErasureRequest, example.encode()).new_request(TOOL)
    assert new.target == Target(Granularity.SAMPLE, "hospital-0", frozenset({"patient-4711"}))


def test_the_connector_of_fides_sends_a_request() -> None:
    """Its body, with what Fides puts into it: its own id, a date without a time, settings and an identity."""
    [text] = re.findall(r"```yaml\n(.*?)```", (DOCS / "how-to-connect-fides.md").read_text(), re.DOTALL)
    config = yaml.safe_load(text)["saas_config"]
    body: str = config["endpoints"][0]["requests"]["delete"]["body"]
    given = {
        "privacy_request_id": "pri_a7551968-d5d6-44b2-9831-815ac9017798",
        "iso_8601_datetime": "2026-02-28",
        "sample_id": "patient-4711",
        "client_id": "hospital-0",
    }
    for name, value in given.items():
        assert f"<{name}>" in body
        body = body.replace(f"<{name}>", value)
    json.loads(body)
    asked = read_document(erasure_request.ErasureRequest, body.encode()).new_request(TOOL)
    assert asked.idempotency_key == f"opendsr:{given['privacy_request_id']}"
    assert list(asked.target.sample_ids) == ["patient-4711"]
    parameters = {item["name"] for item in config["connector_params"]}
    references = {item["name"] for item in config["external_references"]}
    for item in config["endpoints"][0]["requests"]["delete"]["param_values"]:
        assert item.get("connector_param") in parameters or set(item["references"]) <= references
