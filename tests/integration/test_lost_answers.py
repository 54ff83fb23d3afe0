"""Real SuperLink and SuperNodes: an answer of which only the head arrives is asked for again and given again.

Flower 1.39 waits three minutes for the body, which never comes, and longer than the round may take.
"""

from pathlib import Path

import pytest

from benchmarks.deployment import supernode
from benchmarks.local_layout import free_ports
from tests.integration.live_federation import (
    TRAIN,
    UNLEARN,
    LiveFederation,
    hashes,
    running,
)
from tests.integration.losing_proxy import LosingProxy
from tests.waiting import HANGS_S
from unlearning.requests import Status

pytestmark = [pytest.mark.slow, pytest.mark.long]


def test_a_lost_answer_costs_seconds_and_changes_no_bit(tmp_path: Path) -> None:
    """In training and in unlearning: everybody takes part at the first attempt, and the models are the same."""
    live = LiveFederation(tmp_path, num_clients=2, with_sessions=False)
    deployment, layout = live.deployment, live.deployment.layout
    address = f"127.0.0.1:{free_ports(1)[0]}"
    by_proxy = [address if word == layout.fleet_address else word for word in layout.supernode_command(1)]
    deployment._add(supernode(1), by_proxy, layout.client_dir(1))
    with LosingProxy(address, layout.fleet_address) as proxy, running(live):
        proxy.lose(TRAIN)
        deployment.wait_until(lambda: proxy.num_lost == 1, HANGS_S, "an answer is lost")
        live.wait_for_rounds(1)
        [record] = [one for one in live.training_rounds() if "asked_again" in one.metrics]
        assert record.metrics["asked_again"] == {"1": 1}
        assert (record.metrics["participants"], record.metrics["failed"]) == (["0", "1"], {})
        assert record.metrics["seconds"] < 120

        proxy.lose(UNLEARN)
        request = live.file(live.samples(1, 0))
        live.wait_until_reached(request, Status.COMPLETED)
        [unlearning] = live.rounds_of(request, "unlearning")
        assert proxy.num_lost == 2
        assert unlearning.metrics["asked_again"] == {"1": 1}
        done = live.ledger.requests.get(request.id)
        assert done.attempts == 1
        assert "the same is given" in deployment.group(supernode(1)).log_text()
        assert list(map(hashes, [done])) == list(map(hashes, live.replayed()))
