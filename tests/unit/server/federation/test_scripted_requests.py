"""Requests in the run configuration."""

import pytest

from server.federation.scripted_requests import parse_requests
from unlearning.errors import ConfigurationError
from unlearning.requests import Granularity


def test_a_script_is_read():
    """Clients, samples, classes, methods and their parameters."""
    scripted = parse_requests(
        "at=3 client=2; at=5 client=1 samples=17,21 method=puf-regular unlearning_rate=3; at=6 class=7;"
    )
    first, second, third = (one.new for one in scripted)
    assert [one.at for one in scripted] == [3, 5, 6]
    assert (first.target.client_id, first.method) == ("2", "")
    assert second.target.sample_ids == {"17", "21"}
    assert second.parameters == {"unlearning_rate": "3"}
    assert third.target.granularity is Granularity.CLASS
    assert len({one.idempotency_key for one in (first, second, third)}) == 3


def test_every_wrong_entry_is_reported():
    """With its place and what is missing."""
    with pytest.raises(ConfigurationError) as caught:
        parse_requests("client=2; at=1; at=x client=1; at=1 client=1 oops; at=1 client=1")
    assert len(caught.value.problems) == 4
