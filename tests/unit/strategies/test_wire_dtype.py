"""Models of training rounds in 16 bits: the error is the stated one, and what does not fit travels as it is."""

import numpy as np
import pytest
from flwr.app import Message
from flwr.supercore.task_identity import TaskIdentity

from strategies.messages import TRAIN, UNLEARN, compose, model_record, reply_content, reply_of
from strategies.sessions.payloads import (
    SharedArrays,
    answer_content,
    answer_payload,
    message_payload,
    told_message,
)
from strategies.sessions.wire_dtype import WIRE_DTYPES, largest_error, read_bits, rounded_bits
from strategies.settings.run_config import RunSettings
from tests.raising import raises, refuses
from unlearning.errors import UnsupportedRequest, UpdateRefused
from unlearning.methods.eligibility import FederationProfile, check_eligible
from unlearning.methods.method import Reply
from unlearning.methods.registry import METHODS
from unlearning.parameters import CHUNK
from unlearning.requests import Granularity, Target

BOUND = [name for name, method in METHODS.items() if method.info.states_bound]


def numbers(dtype: str = "<f4") -> np.ndarray:
    """Numbers of every size that a float16 holds, more than a chunk of them, and the worst: between two neighbours."""
    generator = np.random.default_rng(3)
    size = CHUNK + 10_000
    found = generator.choice([-1, 1], size) * 2.0 ** generator.uniform(-14, 15, size)
    halfway = [1 + largest_error(name) for name in WIRE_DTYPES]
    return np.concatenate([found, halfway, [0.0]]).astype(dtype)


@pytest.mark.parametrize("dtype", ["<f4", "<f8"])
@pytest.mark.parametrize("name", WIRE_DTYPES)
def test_each_number_is_off_by_the_stated_share_at_most(name, dtype, tmp_path):
    """Computed in float64; the worst case reaches it. A file holds what memory does."""
    exact = numbers(dtype)
    bits = rounded_bits(exact, name)
    found = read_bits(bits, name, like=exact)
    errors = np.abs(found.astype(np.float64) - exact)
    shares = errors[exact != 0] / np.abs(exact[exact != 0].astype(np.float64))
    assert shares.max() == pytest.approx(largest_error(name), rel=0.01)
    assert shares.max() <= largest_error(name)
    assert (found.dtype, found[-1]) == (exact.dtype, 0)
    np.testing.assert_array_equal(read_bits(bits, name, like=exact, spool=tmp_path), found)


@pytest.mark.parametrize("name", WIRE_DTYPES)
def test_an_update_is_rounded_and_not_the_model(name):
    """A small change of large weights comes back as exact as a small change can."""
    before = np.full(1000, 100.0, dtype=np.float64)
    after = before + np.linspace(1e-3, 2e-3, 1000)
    found = read_bits(rounded_bits(after, name, minus=before), name, like=before, add=True)
    assert np.abs(found - after).max() <= largest_error(name) * 2e-3


@pytest.mark.parametrize(("name", "too_large"), [("float16", 65520.0), ("bfloat16", 3.4e38)])
def test_what_would_overflow_is_not_rounded(name, too_large):
    """What is not finite already stays so: its reader refuses it."""
    assert rounded_bits(np.array([1.0, too_large], dtype=np.float32), name) is None
    bits = rounded_bits(np.array([np.nan, np.inf], dtype=np.float32), name)
    assert not np.isfinite(read_bits(bits, name, like=np.zeros(2, np.float32))).any()


@pytest.mark.parametrize("bits", [np.zeros(3, "<i2"), np.zeros((2, 1), "<i2"), np.zeros(2, "<f4")])
def test_bits_of_another_number_or_type_are_refused(bits):
    """They are a client's."""
    with raises(UpdateRefused, "bad-wire-dtype"):
        read_bits(bits, "bfloat16", like=np.zeros(2, np.float32))


@pytest.fixture(autouse=True)
def task_identity() -> None:
    """Flower makes messages of a run only."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


def asked(kind: str = TRAIN, model: np.ndarray | None = None) -> Message:
    """A message with a model and an array beside it."""
    model = np.linspace(-1, 1, 1001, dtype=np.float32) if model is None else model
    return compose(1001, kind, 1, {}, model_record(model, {"direction": np.full(3, 0.1)}))


def over_the_wire(message: Message, change: float, wire_dtype: str) -> tuple[Message, Reply, set[str]]:
    """What a client reads, its answer as the server reads it, and the types in which the two models travelled."""
    payload = message_payload(message, SharedArrays.of(message, None, wire_dtype))
    told = told_message(payload, 1001)
    model = told.content.array_records["arrays"]["vector"].numpy()
    content = reply_content(Reply(vector=model + np.float32(change), num_examples=1), {})
    answer = answer_payload(payload, told.content, content)
    travelled = {one.arrays["vector"].dtype.str for one in (payload, answer)}
    return told, reply_of(answer_content(answer, message.content)), travelled


@pytest.mark.parametrize("name", WIRE_DTYPES)
def test_a_training_round_travels_in_16_bits_both_ways(name):
    """The server's own model is the exact one, to which the change is added; other arrays are as they were."""
    message = asked()
    exact = message.content.array_records["arrays"]["vector"].numpy()
    told, reply, travelled = over_the_wire(message, 0.5, name)
    assert travelled == {"<i2"}
    received = told.content.array_records["arrays"]
    assert received["vector"].numpy().dtype == exact.dtype
    assert 0 < np.abs(received["vector"].numpy() - exact).max() <= largest_error(name)
    np.testing.assert_array_equal(received["direction"].numpy(), np.full(3, 0.1))
    np.testing.assert_allclose(reply.vector, exact + np.float32(0.5), atol=2e-7)


@pytest.mark.parametrize(("kind", "model"), [(UNLEARN, None), (TRAIN, np.array([7e4], np.float32))])
def test_everything_else_travels_as_it_is(kind, model):
    """What a method exchanges, and a model that does not fit."""
    message = asked(kind, model)
    exact = message.content.array_records["arrays"]["vector"].numpy()
    told, reply, travelled = over_the_wire(message, 0.5, "float16")
    assert travelled == {"<f4"}
    np.testing.assert_array_equal(told.content.array_records["arrays"]["vector"].numpy(), exact)
    np.testing.assert_array_equal(reply.vector, exact + np.float32(0.5))


def test_one_record_in_two_messages_is_rounded_only_where_it_is_trained_on():
    """A round's messages share their arrays; work of another kind from the same model does not share these."""
    training = asked()
    measuring = compose(1001, UNLEARN, 1, {}, training.content.array_records["arrays"])
    rounded = SharedArrays.of(training, None, "bfloat16")
    assert SharedArrays.of(training, rounded, "bfloat16") is rounded
    exact = SharedArrays.of(measuring, rounded, "bfloat16")
    assert [one.arrays["vector"].dtype.str for one in (rounded, exact)] == ["<i2", "<f4"]


def test_a_change_that_does_not_fit_comes_back_as_it_is():
    """The model went in 16 bits, the answer does not."""
    _, reply, travelled = over_the_wire(asked(), 7e4, "float16")
    assert travelled == {"<i2", "<f4"}
    assert np.abs(reply.vector).min() > 6e4


@pytest.mark.parametrize("told", ["bfloat16", "float32", 7, None])
def test_an_answer_in_a_wire_dtype_to_no_model_is_refused(told):
    """And one in a type that is none; it is a client's."""
    message = asked()
    payload = message_payload(message, SharedArrays.of(message, None, "bfloat16"))
    content = reply_content(Reply(vector=np.zeros(1001, np.float32), num_examples=1), {})
    answer = answer_payload(payload, told_message(payload, 1001).content, content)
    answer.values["wire-dtype"] = told
    without = compose(1001, TRAIN, 1, {}) if told == "bfloat16" else message
    with raises(UpdateRefused, "bad-wire-dtype"):
        answer_content(answer, without.content)


@pytest.mark.parametrize(
    "settings",
    [
        {"transport": "messages"},
        {"secure-aggregation": True},
        {"privacy": "samples", "privacy-noise-multiplier": 1.0},
        {"prepare": "exact-ridge"},
        {"prepare": "hf-online"},
    ],
    ids=lambda one: ", ".join(one),
)
def test_settings_that_do_not_go_with_it_are_refused(settings):
    """Before the first round."""
    session = {"transport": "session", "session-address": "127.0.0.1:9101", "wire-dtype": "bfloat16"}
    assert RunSettings.from_run_config(session).rounded_to == "bfloat16"
    with refuses("wire-dtype"):
        RunSettings.from_run_config(session | settings)


@pytest.mark.parametrize("name", BOUND)
def test_a_method_that_states_a_bound_is_refused(name):
    """By the request that names it; others are not."""
    profile = FederationProfile(
        task="own", score_name="accuracy", num_classes=10, num_parameters=188_810, num_head_parameters=650,
        bytes_per_parameter=4, wire_dtype="bfloat16",
    )  # fmt: skip
    target = Target(granularity=Granularity.CLIENT, client_id="1")
    with raises(UnsupportedRequest, "rounded-rounds"):
        check_eligible(METHODS[name], target, profile, {})
    check_eligible(METHODS["retrain"], target, profile, {})
