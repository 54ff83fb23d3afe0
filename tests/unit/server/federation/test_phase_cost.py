"""What a phase has cost, exchange after exchange."""

from typing import Any

import numpy as np

from server.federation.state import PhaseCost
from strategies.exchange import Exchange
from unlearning.runtime.json_codec import from_plain, to_plain
from unlearning.runtime.peak_memory import PeakMemory
from unlearning.secure_aggregation.addends import SecureTotal


def test_everything_is_added_up():
    """Bytes both ways, seconds, exchanges and each client's answers; of memory the largest counts."""
    any_message: Any = object()
    first = Exchange(
        messages={"a": any_message, "b": any_message}, bytes_sent=10, bytes_received=3, seconds=1.5
    )
    second = Exchange(messages={"b": any_message}, bytes_sent=5, bytes_received=2, seconds=0.5)
    cost = PhaseCost().plus(first, PeakMemory(server_bytes=7)).plus(second, PeakMemory(server_bytes=4))
    assert cost == PhaseCost(
        exchanges=2,
        answers={"a": 1, "b": 2},
        seconds=2.0,
        bytes_sent=15,
        bytes_received=5,
        peak_memory=PeakMemory(server_bytes=7),
    )
    assert from_plain(PhaseCost, to_plain(cost)) == cost


def test_under_secure_aggregation_those_in_the_sum_have_answered():
    total = SecureTotal(clients=("a", "c"), step=np.zeros(1), counts=np.zeros(0, dtype=np.int64))
    assert PhaseCost().plus(Exchange(total=total), PeakMemory()).answers == {"a": 1, "c": 1}
