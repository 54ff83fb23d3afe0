"""One process of a client lives through many rounds of a session: what is forgotten must leave its memory."""

import re
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.integration.live_federation import WAIT_S, live_federation
from unlearning.requests import Granularity, Status, Target
from unlearning.tasks import TaskSettings, load_site

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
    source = load_site(TaskSettings(dataset="digits", num_clients=4), 0).train
    own = tmp_path / "own"
    own.mkdir()
    np.savez(own / "train.npz", inputs=source.inputs, targets=source.targets, ids=source.ids)
    pictures = [picture.numpy().tobytes() for picture in source.inputs[:2]]
    others = [picture.numpy().tobytes() for picture in source.inputs[2:4]]
    with live_federation(
        tmp_path,
        num_clients=1,
        with_sessions=True,
        node_config={"data-dir": str(own)},
        transport="session",
        dataset="npz",
        input_shape="x".join(map(str, source.inputs.shape[1:])),
        num_classes=10,
        data_dir=str(own),
        partition="iid",
        round_interval_s=1.0,
    ) as live:
        port = int(live.deployment.layout.session_address.rpartition(":")[2])
        live.wait_for_rounds(2)
        [before] = attending(port)
        assert rows_in_memory(before, pictures) == 2
        request = live.file(Target(Granularity.SAMPLE, "0", frozenset(source.ids[:2].tolist())))
        live.wait_until_reached(request, Status.COMPLETED)
        live.wait_for_rounds(2)
        live.deployment.wait_until(lambda: before not in attending(port), WAIT_S, "that process has ended")
        [after] = attending(port)
        assert (rows_in_memory(after, others), rows_in_memory(after, pictures)) == (2, 0)
