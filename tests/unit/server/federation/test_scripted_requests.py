"""Requests in the run configuration."""

import pytest

from server.federation.scripted_requests import parse_requests
from tests.raising import refuses
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


@pytest.mark.parametrize(
    "text",
    [
        "at=1 client=1 method=puf-specal",
        "at=1 client=1 method=puf-special no_such_parameter=1",
        "at=1 client=1 unlearning_rate=1",
        "at=1 class=3 method=pga",
        "at=-1 client=1",
        "at=4 client=1",
        "at=1 client=1; at=2 client=1",
        "at=2 client=1; at=2 client=1 samples=7",
    ],
)
def test_what_no_federation_could_serve_is_refused(text):
    """A wrong method, parameter or level; a round that does not come; what an earlier entry forgets."""
    with refuses(f"requests, entry {text.count(';') + 1} ({text.split('; ')[-1]!r})"):
        parse_requests(text, 3)


def test_what_can_be_served_is_not_refused():
    """Before the first round, after the last, in a run without end, and samples before their client."""
    assert len(parse_requests("at=0 client=2; at=3 client=1", 3)) == 2
    assert len(parse_requests("at=1 client=1 samples=7; at=2 client=1; at=9 client=2", 0)) == 3
