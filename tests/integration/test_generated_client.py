"""The HTTP API by a client that a program makes of /openapi.json, beside a live federation of real processes.

In the gate tests/integration/deletion_service/test_http.py reads the document and calls the API.
"""

import importlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from server.service.openapi import OPERATIONS, openapi
from tests.integration.live_federation import live_federation
from tests.integration.test_http_api import http_service
from tests.waiting import HANGS_S

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(
        importlib.util.find_spec("openapi_python_client") is None, reason="the generator is not installed"
    ),
]
NAME = "generated_erasure_client"
CONFIG = """post_hooks: []
content_type_overrides:
  application/timestamp-reply: application/octet-stream
  application/x-pem-file: application/octet-stream
"""


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """What openapi-python-client makes of the document: its calls by their operationId, its models, its connection."""
    document, config = tmp_path / "openapi.json", tmp_path / "generator.yaml"
    document.write_text(json.dumps(openapi()))
    config.write_text(CONFIG)
    command = [
        sys.executable,
        "-m",
        "openapi_python_client",
        "generate",
        "--meta",
        "none",
        "--fail-on-warning",
    ]
    command += ["--path", str(document), "--config", str(config), "--output-path", str(tmp_path / NAME)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGS_S)
    assert done.returncode == 0, done.stdout + done.stderr
    monkeypatch.syspath_prepend(str(tmp_path))
    package, models = importlib.import_module(NAME), importlib.import_module(f"{NAME}.models")
    calls = {
        path.stem: importlib.import_module(f"{NAME}.api.requests.{path.stem}")
        for path in (tmp_path / NAME / "api" / "requests").glob("[a-z]*.py")
    }
    yield SimpleNamespace(connect=package.AuthenticatedClient, models=models, **calls)
    for name in [name for name in sys.modules if name.partition(".")[0] == NAME]:
        del sys.modules[name]


def test_every_document_has_a_type(client: Any) -> None:
    """No call answers with a dictionary of anything, and no two calls have one name."""
    models = client.models
    for call, answer in {
        client.list_requests: models.RequestList,
        client.get_request: models.RequestState,
        client.file_request: models.Receipt,
        client.plan_request: models.Plan,
        client.accept_request: models.RequestState,
    }.items():
        assert call.sync.__annotations__["return"] == answer | models.Problem | None
    assert len({item.name for item in OPERATIONS}) == len(OPERATIONS)


def test_a_tool_files_plans_decides_follows_and_exports(client: Any, tmp_path: Path) -> None:
    """By typed calls alone; an officer decides, and a refusal says which field is wrong."""
    tokens = tmp_path / "tokens.json"
    with live_federation(tmp_path, num_clients=3, approval="officer") as federation:
        made = {
            role: federation.command(
                "flower-unlearn", "http-token", str(tokens), name, "--role", role
            ).split()[-1]
            for name, role in (("tool", "operator"), ("olga", "officer"))
        }
        with http_service(federation, tmp_path, "--http-tokens", str(tokens)) as url:
            tool, officer = (
                client.connect(base_url=url, token=made[role]) for role in ("operator", "officer")
            )
            models = client.models
            asked = erasure(models, "pri-1", sorted(federation.samples(2, 0).sample_ids))
            plan = client.plan_request.sync(client=tool, body=asked)
            assert plan.target == "5 samples of client 2"
            assert [item.method for item in plan.methods if not item.refusal]
            filed = client.file_request.sync_detailed(client=tool, body=asked)
            assert (filed.status_code, filed.headers["Location"]) == (HTTPStatus.CREATED, "/requests/pri-1")
            own = filed.parsed.extensions.flower_unlearning
            assert own.status is models.Status.AWAITING_DECISION
            assert client.file_request.sync_detailed(client=tool, body=asked).status_code == HTTPStatus.OK
            held = client.hold_request.sync(
                own.request_id, client=officer, body=models.HoldValues(reason="a lawsuit")
            )
            assert held.extensions.flower_unlearning.is_held
            client.release_request.sync(own.request_id, client=officer, body=models.ReleaseValues())
            client.accept_request.sync(own.request_id, client=officer, body=models.AcceptValues())
            federation.deployment.wait_until(
                lambda: client.get_request.sync("pri-1", client=tool).request_status == "completed",
                HANGS_S,
                "the deletion is completed",
            )
            page = client.list_requests.sync(client=officer, statuses=[models.Status.COMPLETED])
            assert [one.extensions.flower_unlearning.request_id for one in page.requests] == [own.request_id]
            assert isinstance(page.requests[0].extensions.flower_unlearning.outcome, models.Outcome)
            report = client.get_report.sync("pri-1", client=tool)
            assert isinstance(report, models.GetReportResponse200)
            refused = client.file_request.sync(client=tool, body=erasure(models, "pri-2", ["a"], client="99"))
            assert isinstance(refused, models.Problem)
            assert [one.pointer for one in refused.errors] == ["#/extensions/flower-unlearning/client_id"]


def erasure(models: Any, name: str, samples: list[str], client: str = "2") -> Any:
    """A request about some samples of a client."""
    return models.ErasureRequest(
        regulation=models.ErasureRequestRegulation.GDPR,
        subject_request_id=name,
        subject_request_type="erasure",
        submitted_time=datetime.now(UTC),
        subject_identities=[
            models.Identity(identity_type="controller_customer_id", identity_value=one, identity_format="raw")
            for one in samples
        ],
        extensions=models.Extensions(flower_unlearning=models.Extension(client_id=client)),
    )
