"""Payloads survive being cut into frames, and what is not a payload is refused."""

import tracemalloc
from mmap import mmap
from typing import Any

import numpy as np
import pytest
from flwr.app import RecordDict
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from strategies.sessions import framing
from strategies.sessions import session_pb2 as pb
from strategies.sessions.framing import Assembler, Payload, frames, parsed
from strategies.sessions.payloads import answer_content
from tests.raising import raises
from unlearning.errors import SessionError, UpdateRefused
from unlearning.parameters import fingerprint
from unlearning.untrusted import reason_of

CHUNK = 64


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 64 bytes, so that small payloads have several."""
    monkeypatch.setattr(framing, "CHUNK_BYTES", CHUNK)


def assembled(
    payload: Payload, assembler: Assembler | None = None, known: frozenset[str] = frozenset()
) -> Payload:
    """The payload on the other side; nothing may come out before the last frame."""
    assembler = assembler or Assembler(2**20)
    results = [assembler.add(parsed(frame)) for frame in frames(payload, known)]
    assert [result is not None for result in results] == [False] * (len(results) - 1) + [True]
    assert results[-1] is not None
    return results[-1]


arrays = st.dictionaries(
    st.sampled_from(["vector", "direction", "shards"]),
    hnp.arrays(
        dtype=st.sampled_from(["<f4", "<f8", ">f4", "<i8", "u1", "?"]),
        shape=hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=60),
    ),
)


@given(arrays=arrays, text=st.text(max_size=3 * CHUNK), exchange=st.integers(1, 2**40))
def test_a_payload_comes_out_as_it_went_in(arrays, text, exchange):
    """Bit for bit, for every dtype, shape and number of chunks."""
    got = assembled(Payload(exchange=exchange, values={"text": text}, arrays=arrays))
    assert (got.exchange, got.values) == (exchange, {"text": text})
    assert list(got.arrays) == list(arrays)
    for name, array in arrays.items():
        assert got.arrays[name].shape == array.shape
        assert got.arrays[name].dtype == array.dtype.newbyteorder("=")
        native = array.astype(array.dtype.newbyteorder("="))
        assert got.arrays[name].tobytes() == native.tobytes()


@pytest.mark.parametrize(("size", "chunks"), [(0, 0), (1, 1), (CHUNK, 1), (CHUNK + 1, 2), (5 * CHUNK, 5)])
def test_a_section_is_cut_into_full_chunks_and_a_rest(size, chunks):
    """No chunk is larger than the bound, and none is smaller than need be."""
    cut = list(frames(Payload(exchange=1, values={}, arrays={"vector": np.zeros(size, np.uint8)})))
    assert len(cut) == 1 + 1 + chunks  # the header, the JSON text "{}", the array
    assert all(len(pb.Frame.FromString(frame).chunk.data) <= CHUNK for frame in cut)


def test_an_array_that_is_known_travels_once():
    """The second payload has its header only, and the receiver has the same values."""
    model = np.arange(100, dtype=np.float32)
    digest = fingerprint(model)
    payload = Payload(exchange=1, values={}, arrays={"vector": model}, fingerprints={"vector": digest})
    assembler = Assembler(2**20)
    assembled(payload, assembler)
    assert len(list(frames(payload, frozenset({digest})))) == 2
    got = assembled(payload, assembler, frozenset({digest}))
    np.testing.assert_array_equal(got.arrays["vector"], model)


def test_an_array_that_is_said_to_be_known_and_is_not_is_refused():
    """A client must not compute at another model than the server thinks."""
    payload = Payload(exchange=1, values={}, arrays={"vector": np.ones(3)}, fingerprints={"vector": "abc"})
    with raises(SessionError, "unknown-array"):
        Assembler(2**20).add(parsed(next(frames(payload, frozenset({"abc"})))))


def test_a_payload_above_the_limit_is_refused_by_its_header():
    """Before room is made for it, and exactly above the limit."""
    payload = Payload(exchange=1, values={}, arrays={"vector": np.zeros(98, np.uint8)})  # and 2 bytes of JSON
    assembled(payload, Assembler(100))
    with raises(SessionError, "payload-too-large", limit=99):
        Assembler(99).add(parsed(next(frames(payload))))


@pytest.mark.parametrize(
    "dtype", ["O", "<U5", "V8", "no-such", ">f4", "c8", "[" * 9000, "(1000000,1000000)f8"]
)
def test_only_little_endian_numbers_travel(dtype):
    """Nothing that could run code or be misread."""
    header = pb.Header(
        exchange=1, json_bytes=2, arrays=[pb.ArrayHeader(name="vector", dtype=dtype, shape=[1])]
    )
    with raises(SessionError, "dtype"):
        Assembler(2**20).add(pb.Frame(header=header))


@pytest.mark.parametrize("size", [0, 1, CHUNK + 1])
def test_a_chunk_of_another_size_than_expected_is_refused(size):
    """Too short ones would cost a frame a byte, too long ones would overrun."""
    assembler = Assembler(2**20)
    assembler.add(pb.Frame(header=pb.Header(exchange=1, json_bytes=CHUNK)))
    with raises(SessionError, "bad-chunk", expected=CHUNK):
        assembler.add(pb.Frame(chunk=pb.Chunk(data=bytes(size))))


@pytest.mark.parametrize(
    "first", [pb.Frame(chunk=pb.Chunk(data=b"x")), pb.Frame(hello=pb.Hello()), pb.Frame()]
)
def test_a_payload_begins_with_its_header(first):
    """Anything else is out of order."""
    with raises(SessionError, "out-of-order"):
        Assembler(2**20).add(first)


def payload_frames(text: bytes, *, exchange: int = 1, arrays=()) -> list[pb.Frame]:
    """A payload of this JSON and arrays of these headers without bytes."""
    header = pb.Frame(header=pb.Header(exchange=exchange, json_bytes=len(text), arrays=arrays))
    chunks = [text[start : start + CHUNK] for start in range(0, len(text), CHUNK)]
    return [header, *(pb.Frame(chunk=pb.Chunk(data=chunk)) for chunk in chunks)]


EMPTY = [pb.ArrayHeader(name="vector", dtype="<f4", shape=[0])]
BAD_PARCELS = {
    "JSON of another kind": payload_frames(b"[]"),
    "many times the model's size": payload_frames(b"{}", arrays=[pb.ArrayHeader(dtype="<f8", shape=[2**40])]),
    "JSON of 4 GiB": [pb.Frame(header=pb.Header(exchange=1, json_bytes=2**32))],
    "not UTF-8": payload_frames(b'{"a": "\xff"}'),
    "a shape that overflows": payload_frames(
        b"{}", arrays=[pb.ArrayHeader(dtype="<f4", shape=[2**40, 2**40, 0])]
    ),
    "a hundred dimensions": payload_frames(b"{}", arrays=[pb.ArrayHeader(dtype="<f4", shape=[1] * 100)]),
    "a name twice": payload_frames(b"{}", arrays=[*EMPTY, *EMPTY]),
}
BAD_ANSWERS = {
    "nothing": b"{}",
    "the text is a list": b'{"json": [1]}',
    "metrics are a list": b'{"json": "", "metrics": [1]}',
    "a metric is an object": b'{"json": "", "metrics": {"a": {}}}',
    "a metric is a text": b'{"json": "", "metrics": {"a": "b"}}',
}


@pytest.mark.parametrize("kind", BAD_PARCELS)
def test_a_bad_payload_is_refused(kind):
    """Whatever it is, in one printable line."""
    assembler = Assembler(2**24)
    with pytest.raises(SessionError) as caught:
        [assembler.add(frame) for frame in BAD_PARCELS[kind]]
    assert reason_of(caught.value).isprintable()


@pytest.mark.parametrize("kind", BAD_ANSWERS)
def test_an_answer_that_makes_no_records_is_refused(kind):
    """The stream is in order; what came over it is thrown away. What records say is for their reader to check."""
    [header, *chunks] = payload_frames(BAD_ANSWERS[kind], arrays=EMPTY)
    assembler = Assembler(2**20)
    assembler.add(header)
    [payload] = [payload for chunk in chunks if (payload := assembler.add(chunk)) is not None]
    with raises(UpdateRefused, "no-records"):
        answer_content(payload, RecordDict())


def memory_of(array: Any) -> Any:
    """What holds an array's numbers."""
    while (inner := getattr(array, "base", getattr(array, "obj", None))) is not None:
        array = inner
    return array


@pytest.mark.parametrize("size", [1, 100, 127, 128, 130, 2**14, 2**20, 2**21 - 20])
def test_a_chunk_is_written_and_read_as_protobuf_writes_and_reads_it(size):
    """Byte for byte, so other programs of the same session.proto understand each other."""
    data = np.arange(size, dtype=np.uint8).tobytes()
    frame = pb.Frame(chunk=pb.Chunk(data=data)).SerializeToString()
    assert framing._chunk_head(size) + data == frame
    found = parsed(frame)
    assert isinstance(found, memoryview)
    assert found == data


@pytest.mark.parametrize(
    "frame", [pb.Frame(), pb.Frame(chunk=pb.Chunk()), pb.Frame(hello=pb.Hello(token="a" * 99))]
)
def test_what_is_no_chunk_is_protobufs_to_read(frame):
    """Whatever it holds."""
    assert parsed(frame.SerializeToString()) == frame


def test_an_array_of_more_than_a_chunk_is_read_from_a_file(tmp_path):
    """It has no name, and what is in memory is as it was."""
    arrays = {"large": np.arange(CHUNK, dtype=np.int32), "small": np.arange(3.0)}
    got = assembled(Payload(exchange=1, values={}, arrays=arrays), Assembler(2**20, tmp_path))
    assert [type(memory_of(got.arrays[name])) for name in arrays] == [mmap, bytearray]
    assert list(tmp_path.iterdir()) == []
    np.testing.assert_array_equal(got.arrays["large"], arrays["large"])


def test_room_is_made_for_what_has_come_and_not_for_what_is_announced():
    """A header costs a stranger nothing; it may not cost us its announcement either."""
    assembler = Assembler(2**33)
    header = pb.Header(
        exchange=1, json_bytes=2, arrays=[pb.ArrayHeader(name="vector", dtype="<f4", shape=[2**30])]
    )
    tracemalloc.start()
    try:
        assembler.add(pb.Frame(header=header))
        assembler.add(pb.Frame(chunk=pb.Chunk(data=b"{}")))
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
