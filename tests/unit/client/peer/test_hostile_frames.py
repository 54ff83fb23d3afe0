"""Whatever comes over a peer's stream is a refusal of its sender: nothing else breaks, and no room is made for it."""

import copy
import json
import tracemalloc
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from client.peer.gossip import Greeting, ModelOffer
from client.peer.grpc_transport import MAX_TEXT_BYTES, PeerService, frames_of
from client.peer.journal import Journal, read_refusals
from client.peer.peer import Peer
from strategies.sessions import session_pb2 as pb
from tests.peers import FOUR, counting_peer, member_item, reception
from unlearning.protocol import stamped


class Aborted(Exception):
    """gRPC raises when a call is aborted."""


@dataclass
class Context:
    """A call of peer 1."""

    codes: list[grpc.StatusCode] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    def abort(self, code: grpc.StatusCode, reason: str) -> None:
        self.codes.append(code)
        self.reasons.append(reason)
        raise Aborted

    def cancel(self) -> None:
        pass


@dataclass
class Server:
    """The peer 0 and what its server does with frames, without a port."""

    peer: Peer
    service: PeerService
    state_dir: Path

    def deliver(self, frames: list[bytes]) -> Context:
        """Frames as they come from the network; the call with its refusal, if it is one."""
        context = Context()
        try:
            self.service.Deliver(map(pb.Frame.FromString, frames), context)  # type: ignore[arg-type]
        except Aborted:
            assert len(context.codes) == 1
        return context


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Server:
    peer, state_dir = counting_peer("0", FOUR, Journal()), tmp_path_factory.mktemp("state")
    taking = reception(state_dir, peer.take_payload, max_numbers=9)
    return Server(peer, PeerService(taking, is_certified=False), state_dir)


def frames(
    values: object, *arrays: tuple[str, tuple[int, ...], bytes], json_bytes: int | None = None
) -> list[bytes]:
    """A payload by hand: dtype, shape and bytes of each array named vector."""
    said = stamped(values) if isinstance(values, dict) else values
    text = values if isinstance(values, bytes) else json.dumps(said).encode()
    header = pb.Header(
        exchange=1,
        json_bytes=len(text) if json_bytes is None else json_bytes,
        arrays=[pb.ArrayHeader(name="vector", dtype=dtype, shape=shape) for dtype, shape, _ in arrays],
    )
    parts = [part for part in (text, *(data for *_, data in arrays)) if part]
    made = [pb.Frame(header=header), *(pb.Frame(chunk=pb.Chunk(data=part)) for part in parts)]
    return [frame.SerializeToString() for frame in made]


OFFER = {"sender": "1", "payload": "offer", "round": 0, "applied": []}
MEMBER = {
    "kind": "member",
    "origin": "1",
    "subject": "",
    "values": {"address": "", "neighbours": ["0", "2"], "num_examples": 10},
}
NUMBERS = ("<f8", (3,), np.ones(3).tobytes())


def item(**changes: object) -> dict[str, object]:
    return {"sender": "1", "payload": "item", "item": {**MEMBER, **changes}}


CORPUS: dict[str, list[bytes]] = {
    "no frame": [],
    "no header": [pb.Frame(chunk=pb.Chunk(data=b"x")).SerializeToString()],
    "an empty frame": [b""],
    "an unknown field": [b"\xfa\x01\x03abc"],
    "8 GiB announced": frames(OFFER, ("<f8", (2**30,), b"")),
    "10^12 numbers": frames(OFFER, ("<f8", (10**6, 10**6), b"")),
    "an overflowing shape": frames(OFFER, ("<f8", (2**62, 2**62), b"")),
    "an empty overflowing shape": frames(OFFER, ("<f8", (0, 2**62), b"")),
    "long texts as numbers": frames(OFFER, ("<U100000000", (1,), b"")),
    "objects": frames(OFFER, ("|O", (3,), b"x" * 24)),
    "a record type": frames(OFFER, ("[('a','<f8')]", (3,), b"x" * 24)),
    "9,000 brackets as type": frames(OFFER, ("(" * 9_000, (3,), b"x" * 24)),
    "8 GiB of text announced": frames(b"{", json_bytes=2**33),
    "deep lists": frames(b'{"sender":"1","payload":"item","item":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "deep objects": frames(b'{"a":' * 50_000 + b"1" + b"}" * 50_000),
    "a long integer": frames(
        b'{"sender":"1","payload":"offer","applied":[],"round":' + b"9" * 9_000 + b"}", NUMBERS
    ),
    "an infinite round": frames(
        b'{"sender":"1","payload":"offer","applied":[],"protocol-version":1,"round":1e999}', NUMBERS
    ),
    "no object": frames([1]),
    "half a character": frames(b'{"sender":"\\ud800","payload":"greeting","is_new":true}'),
    "no text": frames(b"\xff\xfe\x00"),
    "no such payload": frames({"sender": "1", "payload": "bomb"}),
    "a model of another length": frames(OFFER, ("<f8", (4,), np.ones(4).tobytes())),
    "a model that is a matrix": frames(OFFER, ("<f8", (1, 3), np.ones(3).tobytes())),
    "a model of integers": frames(OFFER, ("<i8", (3,), np.ones(3).tobytes())),
    "a model with NaN": frames(OFFER, ("<f8", (3,), np.full(3, np.nan).tobytes())),
    "an enormous model": frames(OFFER, ("<f8", (3,), np.full(3, 1e308).tobytes())),
    "applied is a number": frames({**OFFER, "applied": 3}, NUMBERS),
    "a negative round": frames({**OFFER, "round": -1}, NUMBERS),
    "no neighbours": frames(item(origin="x", values={**MEMBER["values"], "neighbours": []})),  # type: ignore[dict-item]
    "an origin that is a path": frames(item(origin="../1")),
    "neighbours in neighbours": frames(item(values={**MEMBER["values"], "neighbours": [[["0"]]]})),  # type: ignore[dict-item]
    "a count of 1e308": frames(item(values={**MEMBER["values"], "num_examples": 1e308})),  # type: ignore[dict-item]
    "values is a list": frames(item(values=[1, 2])),
    "values is nothing": frames(item(values=None)),
    "a seal of another kind": frames(item(origin="3", seal=[1])),
    "a seal with other names": frames(item(origin="3", seal={"a": 1})),
    "an item that is a text": frames({"sender": "1", "payload": "item", "item": "member"}),
    "a sender that forges log lines": frames(
        {"sender": "x\n2026 INFO all is well\x1b[2J", "payload": "greeting", "is_new": True}
    ),
    "two payloads": [
        part.SerializeToString() for part in (*frames_of(Greeting("1"), "1"), *frames_of(Greeting("1"), "1"))
    ],
    "half a payload": frames(OFFER, NUMBERS)[:-1],
}


@pytest.mark.parametrize("name", CORPUS)
def test_a_malformed_payload_is_refused_and_recorded(server: Server, name: str) -> None:
    """Whatever it is, the call is answered with a reason of one line, and the model and the record stay."""
    before = server.peer.model, dict(server.peer.record.items)
    context = server.deliver(CORPUS[name])
    assert context.codes == [grpc.StatusCode.INVALID_ARGUMENT], context
    assert context.reasons[0].isprintable()
    assert len(context.reasons[0]) <= 500
    assert (server.peer.model, dict(server.peer.record.items)) == before


def test_an_honest_payload_is_taken_after_all_of_them(server: Server) -> None:
    """None of them leaves anything behind."""
    payloads = [
        Greeting("1"),
        member_item("1", "0", "2"),
        ModelOffer(sender="1", round=0, vector=np.ones(3), applied=frozenset()),
    ]
    for payload in payloads:
        assert server.deliver([frame.SerializeToString() for frame in frames_of(payload, "1")]).codes == []


def test_refusals_are_recorded_beside_the_journal(server: Server) -> None:
    """With their number and the last reason; a peer that starts again goes on counting."""
    server.deliver(CORPUS["no header"])
    recorded = read_refusals(server.state_dir)["(no certificate)"]
    assert recorded["count"] >= 1
    assert recorded["last"]


def test_no_room_is_made_for_what_is_announced(server: Server) -> None:
    """8 GiB, announced with a few bytes, cost less than what a small payload may be."""
    tracemalloc.start()
    try:
        for name in ("8 GiB announced", "8 GiB of text announced", "10^12 numbers"):
            server.deliver(CORPUS[name])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MAX_TEXT_BYTES


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["0", "1", "x", "class"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
SOUND: list[dict[str, Any]] = [
    {**OFFER},
    {"sender": "1", "payload": "greeting", "is_new": True},
    item(),
    item(
        kind="request",
        subject="1-a",
        values={"granularity": "sample", "class_label": None, "curvature": False},
    ),
    item(kind="statistics", subject="1-a", values={"num_examples": 1, "deleted": 1}),
    item(kind="correction", subject="1-a", values={"weight": 0.5, "deleted": 1, "account": {"release": {}}}),
]


@st.composite
def changed_payloads(draw: st.DrawFn) -> list[bytes]:
    """A sound payload of which one part, anywhere in it, is another value, with an array of any header."""
    values = copy.deepcopy(draw(st.sampled_from(SOUND)))
    place: Any = values
    while isinstance(place, dict) and place:
        key = draw(st.sampled_from(sorted(place)))
        if isinstance(place[key], dict) and draw(st.booleans()):
            place = place[key]
            continue
        place[key] = draw(JSON)
        break
    dtype = draw(st.sampled_from(["<f8", "<f4", "|b1", "<i8", ">f8", "|O", "<U9", ""]) | st.text(max_size=8))
    shape = tuple(draw(st.lists(st.integers(0, 2**63 - 1) | st.integers(0, 4), max_size=3)))
    arrays = [(dtype, shape, draw(st.binary(max_size=64)))] if draw(st.booleans()) else []
    return frames(values, *arrays)


@given(changed_payloads())
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_change_of_a_payload_is_taken_or_refused(server: Server, payload: list[bytes]) -> None:
    """Never anything else; and the model stays finite."""
    server.deliver(payload)
    assert np.isfinite(server.peer.model.vector).all()


@given(
    st.lists(st.binary(max_size=60), max_size=4), st.integers(0, 5), st.integers(0, 200), st.integers(0, 255)
)
@settings(max_examples=50, deadline=None)
def test_any_bytes_that_are_frames_are_taken_or_refused(
    server: Server, tail: list[bytes], which: int, position: int, value: int
) -> None:
    """Sound frames with one byte changed, and arbitrary ones after them; what is no frame gRPC itself refuses."""
    made = [bytearray(part) for part in frames(SOUND[which], NUMBERS)]
    if position < len(made[0]):
        made[0][position] = value
    parts = []
    for part in [*map(bytes, made), *tail]:
        try:
            pb.Frame.FromString(part)
        except Exception:  # noqa: BLE001 - protobuf's own DecodeError, by any of its implementations
            continue
        parts.append(part)
    server.deliver(parts)
    assert np.isfinite(server.peer.model.vector).all()
