"""The HTTP API beside a live federation of real processes, as a privacy tool uses it."""

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from server.certificate.keys import PUBLIC_KEY, SIGNING_KEY, make_key_pair
from server.operations.flower_control import flower_environment
from strategies.installation import program
from tests.deletion_service import erasure, free_port
from tests.integration.deletion_service.test_http_callbacks import Receiver
from tests.integration.live_federation import LiveFederation, live_federation
from tests.timestamping import running_authority
from tests.waiting import HANGS_S, WAIT_S

pytestmark = [pytest.mark.slow, pytest.mark.long]


@contextmanager
def http_service(federation: LiveFederation, directory: Path, *options: str) -> Iterator[str]:
    """`flower-unlearn serve --http` in a process of its own on the federation's ledger; its URL."""
    layout, port = federation.deployment.layout, free_port()
    command = [
        program("flower-unlearn"),
        "serve",
        "--state-dir",
        str(layout.state_dir),
        "--ledger",
        layout.ledger_url,
    ]
    command += ["--address", f"127.0.0.1:{free_port()}", "--http", f"127.0.0.1:{port}", *options]
    log = (directory / "http.log").open("w")
    with log, subprocess.Popen(command, env=flower_environment(), stdout=log, stderr=log) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            federation.deployment.wait_until(lambda: _answers(url), HANGS_S, "the HTTP API answers")
            yield url
        finally:
            process.terminate()
            assert process.wait(HANGS_S) == 0, (directory / "http.log").read_text()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/discovery", trust_env=False, timeout=WAIT_S).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the timestamps")
def test_a_tool_files_waits_and_keeps_the_proof(tmp_path: Path) -> None:
    """Filed with real HTTP; the callback has a signature that holds, and the certificate and its timestamp verify.

    The service is restarted in between, with another process: who is to be told is not forgotten. The authority for
    timestamps is away when the deletion is completed, which does not wait for it.
    """
    key, _, _ = make_key_pair(tmp_path / "keys")
    receiver = Receiver()
    tokens = tmp_path / "tokens.json"
    with (
        running_authority(tmp_path / "tsa") as authority,
        live_federation(tmp_path, num_clients=3, certificate_key=str(key)) as federation,
    ):
        authority.is_away = True
        token = federation.command(
            "flower-unlearn", "http-token", str(tokens), "tool", "--role", "operator", "--erase-clients"
        )
        options = ["--http-tokens", str(tokens), "--http-callback-url", f"{receiver.url}/hook/"]
        options += ["--http-callback-key", str(tmp_path / "keys" / SIGNING_KEY)]
        options += ["--timestamp-url", authority.url, "--timestamp-authority", str(authority.file)]
        headers = {"Authorization": f"Bearer {token.split()[-1]}"}
        with http_service(federation, tmp_path, *options) as url:
            asked = erasure("pri-1", client="2", status_callback_urls=[f"{receiver.url}/hook/pri-1"])
            filed = httpx.post(
                f"{url}/requests", json=asked, headers=headers, trust_env=False, timeout=WAIT_S
            )
            assert filed.status_code == 201, filed.text
        with http_service(federation, tmp_path, *options) as url:
            told = _wait_for_end(receiver)
            public = load_pem_public_key(
                httpx.get(f"{url}/callback-key.pem", trust_env=False, timeout=WAIT_S).content
            )
            path, signed, body = receiver.received[-1]
            public.verify(base64.b64decode(signed["X-OpenDSR-Signature"]), body)  # type: ignore[union-attr, call-arg]
            assert path == "/hook/pri-1"
            found = httpx.get(url + told["results_url"], headers=headers, trust_env=False, timeout=WAIT_S)
            (tmp_path / "certificate.json").write_bytes(found.content)
            federation.deployment.wait_until(
                lambda: authority.num_asked > 0, HANGS_S, "a timestamp is asked for"
            )
            stamp = f"{url}/requests/pri-1/timestamp"
            assert httpx.get(stamp, headers=headers, trust_env=False, timeout=WAIT_S).status_code == 404
            authority.is_away = False
            federation.deployment.wait_until(
                lambda: httpx.get(stamp, headers=headers, trust_env=False, timeout=WAIT_S).status_code == 200,
                HANGS_S,
                "it is there",
            )
            found = httpx.get(stamp, headers=headers, trust_env=False, timeout=WAIT_S)
            (tmp_path / "certificate.tsr").write_bytes(found.content)
            report = httpx.get(
                f"{url}/requests/pri-1/report", headers=headers, trust_env=False, timeout=WAIT_S
            )
            (tmp_path / "report.json").write_bytes(report.content)
        said = federation.flower_unlearn(
            "verify",
            str(tmp_path / "certificate.json"),
            "--public-key",
            str(tmp_path / "keys" / PUBLIC_KEY),
            "--report",
            str(tmp_path / "report.json"),
            "--service",
            "--timestamp-authority",
            str(authority.file),
        )
        assert "holds\tsignature" in said
        assert "holds\tledger" in said
        assert "holds\ttime" in said
        [request] = federation.ledger.requests.select()
        assert request.submitted_by == "tool"
    receiver.close()


def _wait_for_end(receiver: Receiver) -> dict[str, Any]:
    """The callback that says that the request has ended."""
    count, until = 1, time.monotonic() + HANGS_S
    while time.monotonic() < until:
        last = receiver.wait_for(count, HANGS_S)[-1]
        if last["request_status"] not in ("pending", "in_progress"):
            assert last["request_status"] == "completed", json.dumps(last)
            return last
        count += 1
    raise AssertionError("no callback told the end")
