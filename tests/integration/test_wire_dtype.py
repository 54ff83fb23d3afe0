"""A federation of real processes whose training rounds travel in 16 bits: it learns, it forgets, its report says so.

In the gate tests/unit/strategies/test_wire_dtype.py has both ends in one process.
"""

import json
from pathlib import Path

import pytest

from server.federation.checkpoints import CheckpointStore
from strategies.sessions.wire_dtype import largest_error
from tests.integration.live_federation import live_federation
from tests.raising import raises
from unlearning.errors import UnsupportedRequest
from unlearning.requests import Status

pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.mark.parametrize("wire_dtype", ["bfloat16"])
def test_training_rounds_in_16_bits(wire_dtype: str, tmp_path: Path) -> None:
    """Half the bytes both ways; the unlearning step and the measurements go whole; a method with a bound is refused."""
    with live_federation(
        tmp_path, num_clients=3, model="cnn", max_examples=240, wire_dtype=wire_dtype
    ) as live:
        live.wait_for_rounds(2)
        live.wait_until_reached(live.file(live.samples(1, first=0)), Status.COMPLETED)
        request = live.file(live.samples(2, first=0))
        live.wait_until_reached(request, Status.COMPLETED)
        state_dir = live.deployment.layout.state_dir
        report = json.loads((state_dir / "reports" / request.id / "report.json").read_text(encoding="utf-8"))
        newest = CheckpointStore(state_dir / "checkpoints").newest()
        with raises(UnsupportedRequest, "rounded-rounds"):
            live.service.submit(live.samples(0, first=0), method="noisy-fine-tuning")
        rounds = live.training_rounds()
    assert newest is not None
    model = newest.parameters.nbytes
    # Of each participant: a round may go on without a client (min-clients).
    received = min(one.metrics["bytes_received"] / len(one.metrics["participants"]) for one in rounds)
    assert 0.5 * model < received < 0.6 * model, rounds
    assert any(f"{largest_error(wire_dtype):.2%}" in line for line in report["not_measured"])
