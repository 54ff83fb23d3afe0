"""A client that answers with anything at all: it is refused by name, and the federation is as if it were not there.

Every answer passes through Flower's own serialisation (`InProcessGrid`), and through the whole live loop.
"""

from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import closing
from itertools import cycle, repeat
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.federation.state import Phase
from strategies import set_aside
from strategies.client_measurements import read_observations
from strategies.messages import VECTOR, arrays_content, reply_content, vector_of
from tests.federation import InProcessFederation, client
from tests.hostile import (
    ARRAYS,
    HONEST,
    JSON,
    Forge,
    but_for,
    head,
    npy,
    raw,
    saved,
    with_array,
    with_arrays,
    with_json,
    with_metrics,
    with_records,
)
from unlearning.methods.method import Reply
from unlearning.parameters import content_hash
from unlearning.untrusted import MAX_ARRAYS

HOSTILE = "2"

SIZE = 650  # parameters of the logistic model of digits
TRAINING: dict[str, Forge] = {
    **{f"array: {kind}": with_array(raw(data)) for kind, data in ARRAYS.items()},
    **{f"JSON: {kind}": with_json(text) for kind, text in JSON.items()},
    "array: pickled type": with_array(raw(b"\x80\x04N.", "pickle")),
    "array: PyTorch's type": with_array(raw(saved(np.zeros(SIZE)), "torch.Tensor")),
    "array: another name": with_array(raw(saved(np.zeros(SIZE))), "weights"),
    "array: one number too many": with_array(Array(np.zeros(SIZE + 1, dtype=np.float32))),
    "array: a thousand times too long": with_array(Array(np.zeros(1000 * SIZE, dtype=np.float32))),
    "array: a matrix": with_array(Array(np.zeros((SIZE, 1), dtype=np.float32))),
    "array: one number": with_array(raw(saved(np.float32(1)))),
    "array: whole numbers": with_array(Array(np.zeros(SIZE, dtype=np.int32))),
    "array: half precision": with_array(Array(np.zeros(SIZE, dtype=np.float16))),
    "array: NaN": with_array(Array(np.full(SIZE, np.nan, dtype=np.float32))),
    "array: infinity": with_array(Array(np.full(SIZE, -np.inf, dtype=np.float32))),
    "array: too many": with_arrays({str(one): raw(b"") for one in range(MAX_ARRAYS + 1)}),
    "array: a second one of garbage": with_arrays({"prepared.x.y": raw(b"garbage")}),
    "count: 1.7e308": with_metrics({"num-examples": 1.7e308}),
    "count: 2^63": with_metrics({"num-examples": 2**63 - 1}),
    "count: NaN": with_metrics({"num-examples": float("nan")}),
    "count: infinite": with_metrics({"num-examples": float("inf")}),
    "count: negative": with_metrics({"num-examples": -1}),
    "count: a half": with_metrics({"num-examples": 0.5}),
    "count: none": with_metrics({"num-examples": 0}),
    "count: a list": with_metrics({"num-examples": [1, 2]}),
    "records: nothing": with_records(),
    "records: arrays are metrics": with_records(arrays=MetricRecord({"num-examples": 1})),
    "records: metrics are JSON": with_records(metrics=ConfigRecord({"num-examples": 1})),
    "records: JSON is an array": with_records(config=ArrayRecord({"json": raw(b"")})),
    "records: no metrics": lambda asked, honest: Message(
        RecordDict({"arrays": honest["arrays"], "config": honest["config"]}), reply_to=asked
    ),
    "records: under other names": with_records(model=ArrayRecord({VECTOR: raw(saved(np.zeros(SIZE)))})),
    "values: a list": with_json('{"values": [1, 2]}'),
}
"""None of them is a model that may enter."""

OF_A_DAY = [
    "array: shape of 10^12",
    "array: text of 100,000 letters",
    "array: 9,000 brackets",
    "array: a zip that grows",
    "JSON: 100,000 lists in each other",
    "JSON: an integer of 5,000 digits",
    "JSON: half a character",
    "count: 1.7e308",
    "records: nothing",
    "records: arrays are metrics",
]
"""The worst, for tests that need a deletion for each."""


class Hostile:
    """Lets clients answer messages of some types (by default all) with what `forges` give, one after another."""

    def __init__(
        self,
        one: InProcessFederation,
        forges: Iterator[Forge],
        kinds: Container[str] | None = None,
        *,
        clients: Container[str] = (HOSTILE,),
    ) -> None:
        self._honest = one.grid._client_app
        self._forges, self._kinds, self._clients = forges, kinds, clients
        one.grid._client_app = self  # type: ignore[assignment]

    def __call__(self, message: Message, context: Any) -> Message:
        reply = self._honest(message, context)  # type: ignore[operator]
        is_forged = self._kinds is None or message.metadata.message_type in self._kinds
        if context.node_config["client-id"] in self._clients and is_forged:
            return next(self._forges)(message, reply.content)
        return reply


def dying_with(reason: str) -> Forge:
    """What a client answers whose process has died."""
    return lambda asked, _honest: Message(Error(code=2, reason=reason), reply_to=asked)


absent = dying_with("it died")


def adding(message: Message, context: Any) -> Message:
    """A client that trains by adding a number of its own to the model."""
    name = str(context.node_config["client-id"])
    if message.metadata.message_type == "query.whoami":
        return Message(arrays_content({}, {"client-id": name}), reply_to=message)
    vector = vector_of(message.content.array_records["arrays"]) + np.float32(int(name) + 1)
    return Message(
        reply_content(Reply(vector=vector, num_examples=10, metrics={"loss": 1.0}), {}), reply_to=message
    )


@pytest.fixture
def of_three(federation, monkeypatch) -> Callable[..., InProcessFederation]:
    """Makes federations of three clients that add, of which one answers with forgeries.

    One whose answer says no version is asked at once whether it can take part.
    """
    monkeypatch.setattr(set_aside, "ASK_AGAIN_S", 0.0)

    def make(forges: Iterable[Forge], kind: str, **settings: Any) -> InProcessFederation:
        one: InProcessFederation = federation(num_clients=3, evaluate_every=0, **settings)
        one.grid._client_app = adding
        Hostile(one, iter(forges), (kind,))
        return one

    return make


@pytest.mark.slow
def test_every_bad_answer_is_refused_by_name_and_the_model_is_that_of_the_others(of_three):
    """One round for each; the same federation without the client comes to the same model, bit for bit."""
    one = of_three(TRAINING.values(), "train", rounds=len(TRAINING))
    found = content_hash(one.run().parameters)
    records = [record for record in one.ledger.all_rounds() if record.kind == "training"]
    unnamed = [
        kind
        for kind, record in zip(TRAINING, records, strict=True)
        if HOSTILE not in record.metrics["refused"] or record.metrics["participants"] != ["0", "1"]
    ]
    assert unnamed == []
    assert all(len(record.metrics["refused"][HOSTILE]) <= 500 for record in records)
    other = of_three(repeat(absent), "train", rounds=len(TRAINING), name="other")
    assert content_hash(other.run().parameters) == found


@pytest.mark.parametrize(
    "kinds",
    [
        ("train", "train.unlearn", "evaluate"),
        pytest.param(("train",), marks=pytest.mark.slow),  # each alone, so that the others are honest
        pytest.param(("train.unlearn",), marks=pytest.mark.slow),
        pytest.param(("evaluate",), marks=pytest.mark.slow),
    ],
    ids=lambda kinds: "+".join(kinds),
)
def test_a_deletion_goes_on_whatever_one_retained_client_answers(federation, kinds):
    """Another client is forgotten by a method that asks everybody, and every answer of one is bad."""
    one = federation(rounds=1, num_clients=4, recovery_max_rounds=1)
    one.run()
    Hostile(one, cycle([TRAINING[name] for name in OF_A_DAY]), kinds)
    one.forget(client("1"), "puf-regular", rounds=2)
    assert any(HOSTILE in record.metrics["refused"] for record in one.ledger.all_rounds())


@pytest.mark.parametrize(
    "name",
    [
        "JSON: 100,000 lists in each other",
        "JSON: an integer of 5,000 digits",
        "JSON: a list",
        "records: nothing",
        "records: metrics are JSON",
        "records: JSON is an array",
    ],
)
def test_a_node_that_cannot_say_who_it_is_takes_no_part(of_three, name):
    """It is named by its node, and the others train without it."""
    one = of_three(repeat(TRAINING[name]), "query.whoami", rounds=1, min_clients=2)
    assert one.run().training_rounds == 1
    [record] = one.ledger.rounds()
    assert record.metrics["participants"] == ["0", "1"]
    assert f"node {one.node(HOSTILE)}" in record.metrics["refused"]


@pytest.mark.parametrize(
    "declared",
    ["", "x" * 201, "a\nb", "a\u202eb", "\x1b[2J", " 2", 7, None, ["2"], {"id": "2"}],
)
def test_an_id_that_could_forge_a_line_of_the_log_is_none(of_three, declared):
    """A node that declares such an id is no client."""
    forge = with_records(**arrays_content({}, {"client-id": declared}))
    one = of_three(repeat(forge), "query.whoami", rounds=1, min_clients=2)
    one.run()
    [record] = one.ledger.rounds()
    assert f"node {one.node(HOSTILE)}" in record.metrics["refused"]
    assert [known.client_id for known in one.ledger.clients()] == ["0", "1"]


def test_an_answer_that_flower_cannot_put_together_costs_its_sender_the_round_only(of_three):
    """What a SuperNode sends reaches the server as objects that Flower joins when answers are fetched."""
    one = of_three(repeat(HONEST), "train", rounds=2)
    original = one.grid.pull_messages

    def pull(ids):
        answers = list(original(ids))
        for answer in answers:
            is_training = answer.metadata.message_type == "train"
            if is_training and answer.metadata.src_node_id == one.node(HOSTILE):
                raise RecursionError("maximum recursion depth exceeded while decoding a JSON array")
        return answers

    one.grid.pull_messages = pull  # type: ignore[method-assign]
    assert one.run().training_rounds == 2
    for record in one.ledger.rounds():
        assert record.metrics["participants"] == ["0", "1"]
        assert "RecursionError" in record.metrics["refused"][HOSTILE]


def test_a_clients_error_is_one_short_line_wherever_it_is_shown(of_three, caplog):
    """It forges no line of the log, colours none, and takes no room in the ledger."""
    text = "it failed\n2026-01-01 INFO server: all is well\x1b[31m\u202e" + "x" * 5_000_000
    one = of_three(repeat(dying_with(text)), "train", rounds=1)
    one.run()
    [record] = one.ledger.rounds()
    assert record.metrics["failed"][HOSTILE].isprintable()
    assert len(record.metrics["failed"][HOSTILE]) <= 500
    for line in caplog.messages:
        assert "\x1b" not in line
        assert "\nit failed" not in line
        assert len(line) < 1000


@pytest.mark.parametrize(
    "account",
    [
        {"instructions": {"a": [1]}},
        {"instructions": 1, "seconds": "<b>", "connections": 2},
        [[[[]]]],
        "x" * 10_000,
        {
            "instructions": True,
            "seconds": 1,
            "seconds_computing": 1,
            "bytes_sent": 1,
            "bytes_received": 1,
            "connections": 1,
        },
    ],
)
def test_an_account_that_is_none_is_dropped(of_three, account):
    """What a client says of its session is written down by its schema only."""
    one = of_three(repeat(but_for(**arrays_content({}, {"account": account}))), "train", rounds=1)
    one.run()
    [record] = one.ledger.rounds()
    assert record.metrics["participants"] == ["0", "1", HOSTILE]
    assert "session" not in record.metrics


MALFORMED: list[Any] = [
    [{"key": "a"}],
    [{"key": "b", "target": {"granularity": "planet"}}],
    [{"key": "c", "target": None, "method": "puf-special"}],
    [{"key": "d", "target": {"granularity": "client"}, "parameters": 3}],
    [
        {
            "key": "beyond the safe range",
            "target": {"granularity": "client"},
            "method": "puf-special",
            "parameters": {"unlearning_rate": 100},
        }
    ],
]
"""Requests of a site that can be told apart."""


def test_malformed_requests_of_a_site_are_refused_and_recorded(federation):
    """The run goes on, a deletion is still served, and what could be told apart is in the refusals."""
    one = federation(num_clients=3, recovery_max_rounds=1)
    filed = [
        but_for(**arrays_content({}, {"site-requests": requests, "client-id": HOSTILE}))
        for requests in ("not a list", [7], *MALFORMED)
    ]
    Hostile(one, iter(filed), ("train",))
    one.run(rounds=len(filed))
    assert [item.caller for item in one.ledger.refusals()] == [HOSTILE] * len(MALFORMED)
    Hostile(one, repeat(HONEST))
    one.forget(client("1"), rounds=len(filed) + 1)


MEASURED = {
    "retained.sums": np.array([2.0, 1.0, 1.0]),
    "retained.losses": np.array([0.5, 0.5]),
    "retained.confidences": np.array([0.6, 0.6]),
}


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("retained.sums", Array(np.array([2.5, 1.0, 1.0]))),
        ("retained.losses", Array(np.zeros((2, 2)))),
        ("retained.losses", Array(np.zeros(3))),
        ("retained.sums", Array(np.array(["a", "b", "c"]))),
        ("retained.sums", raw(b"nonsense")),
    ],
)
def test_a_malformed_measurement_is_left_out_and_the_others_count(name, array):
    """One client's nonsense does not end the others' measurement; of nonsense alone nothing is left."""
    good, bad = (arrays_content(MEASURED, {}) for _ in range(2))
    bad["arrays"] = ArrayRecord({**bad["arrays"], name: array})
    found = read_observations({"0": good, "1": bad}, "retained").merged
    assert found is not None
    assert found.num_examples == 2
    assert read_observations({"1": bad}, "retained").merged is None


MUTATIONS = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4)


@pytest.mark.slow
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    where=st.sampled_from(["npy", "header", "json", "kind"]),
    changes=MUTATIONS,
    text=st.text(max_size=60),
    kind=st.sampled_from(sorted(TRAINING)),
    message_type=st.sampled_from(["train", "train.unlearn", "evaluate", "query.whoami"]),
)
def test_no_mutation_of_an_answer_ends_the_loop(tmp_path_factory, where, changes, text, kind, message_type):
    """Bytes changed at random, and headers and JSON of random text: the rounds go on, and so does a deletion."""

    def forge(asked: Message, honest: RecordDict) -> Message:
        if where == "kind":
            return TRAINING[kind](asked, honest)
        if where == "json":
            return with_json(text)(asked, honest)
        if where == "header":
            return with_array(raw(npy(head(shape=text).replace(b"\n", b" "), bytes(24))))(asked, honest)
        if "arrays" not in honest:
            return Message(honest, reply_to=asked)
        arrays = {}
        for name, array in honest["arrays"].items():
            data = bytearray(array.data)
            for position, value in changes:
                data[position % len(data)] = value
            arrays[name] = raw(bytes(data))
        return with_arrays(arrays)(asked, honest)

    settings = {"rounds": 1, "recovery_max_rounds": 1, "min_clients": 2, "max_norm_factor": 5.0}
    with closing(InProcessFederation(tmp_path_factory.mktemp("fuzz"), settings)) as one:
        Hostile(one, repeat(forge), (message_type,))
        one.run()
        one.forget(client("1"), "puf-regular", rounds=2)
        state = one.checkpoint()
        assert np.isfinite(state.parameters).all()
        assert state.phase is Phase.TRAINING
