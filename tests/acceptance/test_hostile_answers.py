"""A client whose answers are malformed: the federation leaves them out, writes down what it refused, and goes on."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message

from strategies.messages import arrays_content
from strategies.observations import read_observations
from tests.federation import client
from unlearning.requests import Status

GOOD = {
    "retained.sums": np.array([2.0, 1.0, 1.0]),
    "retained.losses": np.array([0.5, 0.5]),
    "retained.confidences": np.array([0.6, 0.6]),
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retained.sums", np.array([2.5, 1.0, 1.0])),
        ("retained.losses", np.zeros((2, 2))),
        ("retained.losses", np.zeros(3)),
        ("retained.sums", np.array(["a", "b", "c"])),
    ],
)
def test_a_malformed_measurement_is_left_out_and_the_others_count(name, value):
    """One client's nonsense does not end the others' measurement."""
    contents = {"0": arrays_content(GOOD, {}), "1": arrays_content({**GOOD, name: value}, {})}
    found = read_observations(contents, "retained").merged
    assert found is not None
    assert found.num_examples == 2


def test_an_array_of_garbage_bytes_is_left_out():
    """Bytes that are no array at all."""
    content = arrays_content(GOOD, {})
    content["arrays"] = ArrayRecord({"retained.sums": Array("float64", (3,), "numpy.ndarray", b"nonsense")})
    assert read_observations({"0": content}, "retained").merged is None


@pytest.mark.parametrize(
    "filed",
    [
        "not a list",
        [7],
        [{"key": "a"}],
        [{"key": "a", "target": {"granularity": "planet"}}],
        [{"key": "a", "target": None, "method": "puf-special"}],
        [{"key": "a", "target": {"granularity": "client"}, "parameters": 3}],
        [
            {
                "key": "beyond the safe range",
                "target": {"granularity": "client"},
                "method": "puf-special",
                "parameters": {"unlearning_rate": 100},
            }
        ],
    ],
)
def test_a_malformed_request_of_a_site_is_refused_and_recorded(federation, filed):
    """The run goes on, a deletion is still served, and what could be told apart is in the refusals."""
    one = federation(rounds=1, recovery_max_rounds=1)
    honest = one.grid._client_app

    def hostile(message: Message, context) -> Message:
        reply = honest(message, context)
        if context.node_config["client-id"] == "2" and not reply.has_error():
            reply.content["config"] = arrays_content({}, {"site-requests": filed, "client-id": "2"})["config"]
        return reply

    one.grid._client_app = hostile
    one.run()
    request = one.file(client("1"))
    one.run(rounds=2)
    assert one.ledger.get(request.id).status is Status.COMPLETED
    told_apart = isinstance(filed, list) and isinstance(filed[0], dict)
    assert {item.caller for item in one.ledger.refusals()} == ({"2"} if told_apart else set())
