"""One process of a client lives through many rounds of a session: what is forgotten must leave its memory."""

import re
from pathlib import Path

import psutil
import pytest

from strategies.run_config import RunSettings
from tests.integration.live_federation import WAIT_S, live_federation
from unlearning.requests import Granularity, Status, Target
from unlearning.tasks import load_site
from unlearning.tasks.task import forgotten_mask

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def attending(port: int) -> list[int]:
    """The processes that hold a stream to the sessions at this port of loopback."""
    found = {
        connection.pid
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_ESTABLISHED and connection.raddr and connection.raddr.port == port
    }
    return sorted(pid for pid in found if pid is not None)


def rows_in_memory(pid: int, rows: list[bytes]) -> int:
    """How many of these rows stand anywhere in what a process may read and write."""
    there: set[bytes] = set()
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            start, end = (int(part, 16) for part in re.match(r"(\w+)-(\w+)", line).groups())
            if " rw" not in line or "[v" in line:
                continue
            memory.seek(start)
            try:
                content = memory.read(end - start)
            except OSError:
                continue
            there |= {row for row in rows if row in content}
    return len(there)


def test_what_is_forgotten_is_in_no_clients_memory_afterwards(tmp_path: Path) -> None:
    """Its pictures are found in its client's process before, and in none once the deletion is completed."""
    with live_federation(
        tmp_path, num_clients=3, with_sessions=True, transport="session", **{"round-interval-s": 1.0}
    ) as live:
        port = int(live.deployment.layout.session_address.rpartition(":")[2])
        examples = load_site(RunSettings.from_run_config(live.deployment.run_config).task(), 1).train
        target = Target(Granularity.SAMPLE, "1", frozenset(examples.ids[:5].tolist()))
        gone = forgotten_mask(examples, target.forget)
        pictures = [picture.numpy().tobytes() for picture in examples.inputs[gone][:2]]
        others = [picture.numpy().tobytes() for picture in examples.inputs[~gone][:1]]
        live.wait_for_rounds(2)
        assert sum(rows_in_memory(pid, pictures) for pid in attending(port)) == len(pictures)
        request = live.file(target)
        live.wait_until_reached(request, Status.COMPLETED)
        live.wait_for_rounds(2)
        live.deployment.wait_until(lambda: len(attending(port)) == 3, WAIT_S, "all three attend again")
        assert sum(rows_in_memory(pid, others) for pid in attending(port)) == len(others), (
            "data are looked at"
        )
        assert [rows_in_memory(pid, pictures) for pid in attending(port)] == [0, 0, 0]
