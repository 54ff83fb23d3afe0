"""A client that answers with anything at all: it is refused by name, and the federation is as if it were not there.

Every answer passes through Flower's own serialisation (`InProcessGrid`), and through the whole live loop.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import cycle
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.federation.state import Phase
from strategies.messages import VECTOR, arrays_content, reply_content, vector_of
from tests.federation import InProcessFederation, client
from tests.hostile import ARRAYS, JSON, head, npy, saved
from unlearning.methods.method import Reply
from unlearning.parameters import content_hash
from unlearning.requests import Status
from unlearning.untrusted import MAX_ARRAYS

HOSTILE = "2"
Forge = Callable[[Message, RecordDict], Message]
"""Makes the answer to a message, given the honest one's content."""


def with_array(array: Array, name: str = VECTOR) -> Forge:
    """The honest answer, but for one array."""
    return lambda asked, honest: Message(
        RecordDict({**honest, "arrays": ArrayRecord({name: array})}), reply_to=asked
    )


def with_arrays(more: Mapping[str, Array]) -> Forge:
    """The honest answer, and more arrays."""
    return lambda asked, honest: Message(
        RecordDict({**honest, "arrays": ArrayRecord({**honest["arrays"], **more})}), reply_to=asked
    )


def raw(data: bytes, stype: str = "numpy.ndarray") -> Array:
    """An array of these bytes, whatever they are."""
    return Array("float64", (3,), stype, data)


def with_json(text: str) -> Forge:
    """The honest answer, but for its JSON."""
    return lambda asked, honest: Message(
        RecordDict({**honest, "config": ConfigRecord({"json": text})}), reply_to=asked
    )


def with_metrics(values: Mapping[str, Any]) -> Forge:
    """The honest answer, but for its metrics."""
    return lambda asked, honest: Message(
        RecordDict({**honest, "metrics": MetricRecord({"num-examples": 10, "loss": 1.0, **values})}),
        reply_to=asked,
    )


def with_records(**records: Any) -> Forge:
    """An answer of these records only."""
    return lambda asked, _honest: Message(RecordDict(records), reply_to=asked)


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
    """Lets client 2 answer messages of some types with what `forges` give, one after another."""

    def __init__(self, one: InProcessFederation, forges: Iterator[Forge], kinds: tuple[str, ...]) -> None:
        self._honest = one.grid._client_app
        self._forges, self._kinds = forges, kinds
        one.grid._client_app = self  # type: ignore[assignment]

    def __call__(self, message: Message, context: Any) -> Message:
        reply = self._honest(message, context)  # type: ignore[operator]
        if context.node_config["client-id"] == HOSTILE and message.metadata.message_type in self._kinds:
            return next(self._forges)(message, reply.content)
        return reply


def absent(asked: Message, honest: RecordDict) -> Message:
    """What a client answers whose process has died."""
    return Message(Error(code=2, reason="it died"), reply_to=asked)


def adding(message: Message, context: Any) -> Message:
    """A client that trains by adding a number of its own to the model."""
    name = str(context.node_config["client-id"])
    if message.metadata.message_type == "query.whoami":
        return Message(arrays_content({}, {"client-id": name}), reply_to=message)
    vector = vector_of(message.content.array_records["arrays"]) + np.float32(int(name) + 1)
    return Message(
        reply_content(Reply(vector=vector, num_examples=10, metrics={"loss": 1.0}), {}), reply_to=message
    )


def run_with(one: InProcessFederation, forges: list[Forge]) -> str:
    """One training round for each of these answers; the hash of the model after them."""
    one.grid._client_app = adding
    Hostile(one, iter(forges), ("train",))
    return content_hash(one.run(rounds=len(forges)).parameters)


def test_every_bad_answer_is_refused_by_name_and_the_model_is_that_of_the_others(federation):
    """One round for each; the same federation without the client comes to the same model, bit for bit."""
    one = federation(num_clients=3, evaluate_every=0)
    found = run_with(one, list(TRAINING.values()))
    records = [record for record in one.ledger.all_rounds() if record.kind == "training"]
    unnamed = [
        kind
        for kind, record in zip(TRAINING, records, strict=True)
        if HOSTILE not in record.metrics["refused"] or record.metrics["participants"] != ["0", "1"]
    ]
    assert unnamed == []
    assert all(len(record.metrics["refused"][HOSTILE]) <= 500 for record in records)
    other = federation(name="other", num_clients=3, evaluate_every=0)
    assert run_with(other, [absent] * len(TRAINING)) == found


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
    request = one.file(client("1"), method="puf-regular")
    one.run(rounds=2)
    assert one.ledger.get(request.id).status is Status.COMPLETED
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
def test_a_node_that_cannot_say_who_it_is_takes_no_part(federation, name):
    """It is named by its node, and the others train without it."""
    one = federation(rounds=1, num_clients=3, min_clients=2, evaluate_every=0)
    one.grid._client_app = adding
    Hostile(one, cycle([TRAINING[name]]), ("query.whoami",))
    assert one.run().training_rounds == 1
    [record] = one.ledger.rounds()
    assert record.metrics["participants"] == ["0", "1"]
    assert f"node {one.node(HOSTILE)}" in record.metrics["refused"]


@pytest.mark.parametrize(
    "declared",
    ["", "x" * 201, "a\nb", "a\u202eb", "\x1b[2J", " 2", 7, None, ["2"], {"id": "2"}],
)
def test_an_id_that_could_forge_a_line_of_the_log_is_none(federation, declared):
    """Whoever declares it speaks for nobody."""
    one = federation(rounds=1, num_clients=3, min_clients=2, evaluate_every=0)
    one.grid._client_app = adding
    Hostile(
        one,
        cycle([lambda asked, _: Message(arrays_content({}, {"client-id": declared}), reply_to=asked)]),
        ("query.whoami",),
    )
    one.run()
    [record] = one.ledger.rounds()
    assert f"node {one.node(HOSTILE)}" in record.metrics["refused"]
    assert [known.client_id for known in one.ledger.clients()] == ["0", "1"]


def test_an_answer_that_flower_cannot_put_together_costs_its_sender_the_round_only(federation):
    """What a SuperNode sends reaches the server as objects that Flower joins when answers are fetched."""
    one = federation(rounds=2, num_clients=3, evaluate_every=0)
    one.grid._client_app = adding
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


def test_a_clients_error_is_one_short_line_wherever_it_is_shown(federation, caplog):
    """It forges no line of the log, colours none, and takes no room in the ledger."""
    one = federation(rounds=1, num_clients=3, evaluate_every=0)
    one.grid._client_app = adding
    text = "it failed\n2026-01-01 INFO server: all is well\x1b[31m\u202e" + "x" * 5_000_000
    Hostile(one, cycle([lambda asked, _: Message(Error(code=2, reason=text), reply_to=asked)]), ("train",))
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
def test_an_account_that_is_none_is_dropped(federation, account):
    """What a client says of its session is written down by its schema only."""
    one = federation(rounds=1, num_clients=3, evaluate_every=0)
    one.grid._client_app = adding
    original = one.grid._client_app

    def app(message, context):
        reply = original(message, context)
        if message.metadata.message_type == "train":
            reply.content["config"] = arrays_content({}, {"account": account})["config"]
        return reply

    one.grid._client_app = app
    one.run()
    assert "session" not in one.ledger.rounds()[0].metrics


MUTATIONS = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4)


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
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
        return Message(RecordDict({**honest, "arrays": ArrayRecord(arrays)}), reply_to=asked)

    one = InProcessFederation(
        tmp_path_factory.mktemp("fuzz"),
        {"rounds": 1, "num_clients": 4, "recovery_max_rounds": 1, "min_clients": 2, "max_norm_factor": 5.0},
    )
    try:
        Hostile(one, cycle([forge]), (message_type,))
        one.run()
        request = one.file(client("1"), method="puf-regular")
        state = one.run(rounds=2)
        assert one.ledger.get(request.id).status is Status.COMPLETED
        assert np.isfinite(state.parameters).all()
        assert state.phase is Phase.TRAINING
    finally:
        one.close()
