"""Both halves of a session over real gRPC streams on loopback: who may come, what is lost and what is not."""

import errno
import gc
import os
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, RecordDict

from strategies.exchange import Exchange, Failure, exchange
from strategies.messages import (
    NOTICE,
    SESSION,
    TRAIN,
    UNLEARN,
    arrays_content,
    beside_the_model,
    compose,
    count_bytes,
    failure_values,
    model_record,
    records_of,
    reply_content,
    reply_of,
    round_of,
    told_values,
    values_of,
    vector_of,
)
from strategies.sessions import (
    client_connections,
    client_session,
    framing,
    invitations,
    payloads,
    session_grid,
    wire_dtype,
)
from strategies.sessions import endpoint as endpoints
from strategies.sessions import session_pb2 as pb
from strategies.sessions.client_session import Answering, run_client_session
from strategies.sessions.endpoint import Endpoint, open_channel
from strategies.sessions.framing import CHUNK_BYTES
from strategies.sessions.payloads import ACCOUNT, INVITATION, Invitation, SessionStatistics
from strategies.sessions.session_grid import SessionGrid
from strategies.settings.run_config import RunSettings
from strategies.tls_files import TlsFiles
from tests.certificates import Authority
from tests.deletion_service import free_port
from tests.raising import raises, refuses
from tests.sessions import CuttingProxy, ThreadedGrid, Vanished
from tests.waiting import WAIT_S, wait_until
from unlearning.errors import (
    DataError,
    FlowerUnlearningError,
    SessionError,
    UpdateRefused,
)
from unlearning.methods.method import Reply
from unlearning.parameters import fingerprint
from unlearning.protocol import PROTOCOL_VERSION
from unlearning.runtime.growing_pause import GrowingPause
from unlearning.runtime.spool import SpoolFile

MODEL = np.arange(3 * CHUNK_BYTES // 4, dtype=np.float32)
"""Three chunks, so that a stream can break in the middle."""
PAUSE = getattr(client_session, "_PAUSE", None)


def request(
    client: str, factor: float = 1.0, model: np.ndarray = MODEL, server_round: int = 1, kind: str = UNLEARN
) -> Message:
    """A message that asks a client to scale a model."""
    return compose(
        1001 + int(client),
        kind,
        server_round,
        {"factor": factor},
        model_record(model, {"direction": np.ones(4)}),
    )


def scale(message: Message) -> RecordDict:
    """A client's work that shows what arrived: the model times the factor, the round among the measures."""
    record = records_of(message.content, ArrayRecord)["arrays"]
    return reply_content(
        Reply(
            vector=vector_of(record) * np.float32(told_values(message.content)["factor"]),
            num_examples=7,
            metrics={"round": float(round_of(message))},
            arrays=beside_the_model(record),
            values={"type": message.metadata.message_type},
        ),
        {},
    )


@dataclass
class Federation:
    """Clients 0, 1, ... that come to a session, each with the work of `answers` (or `scale`)."""

    endpoint: Endpoint
    num_clients: int = 2
    answers: dict[str, Answering] = field(default_factory=dict)
    tls: dict[str, TlsFiles] = field(default_factory=dict)
    invitations: dict[str, Invitation] = field(default_factory=dict)
    reconnect_s: float = 5.0
    leaving: set[str] = field(default_factory=set)
    spool: Path | None = None

    def __post_init__(self) -> None:
        configs = [{"client-id": str(number)} for number in range(self.num_clients)]
        self.flower = ThreadedGrid(self._attend, configs, {})
        self.grid = SessionGrid(self.flower, self.endpoint, reconnect_s=self.reconnect_s, spool=self.spool)

    def exchange(self, *requests: Message, timeout_s: float = 60.0) -> Exchange:
        """What comes of these messages, by client."""
        asked = {str(message.metadata.dst_node_id - 1001): message for message in requests}
        return exchange(self.grid, asked, timeout_s=timeout_s)

    def invited(self) -> list[int]:
        """The clients that were invited, one after the other."""
        return [
            message.metadata.dst_node_id - 1001
            for message in self.flower.sent
            if message.metadata.message_type == SESSION
        ]

    def _attend(self, message: Message, context: Context) -> Message:
        client = str(context.node_config["client-id"])
        if message.metadata.message_type != SESSION:
            return Message(self.answers.get(client, scale)(message), reply_to=message)
        invitation = Invitation.from_json(values_of(message.content)[INVITATION])
        self.invitations[client] = invitation
        try:
            run_client_session(
                invitation,
                self.answers.get(client, scale),
                context.node_id,
                is_over=lambda: client in self.leaving,
                tls=self.tls.get(client),
                reconnect_s=self.reconnect_s,
                spool=self.spool,
            )
            content = arrays_content({}, {})
        except FlowerUnlearningError as exc:
            content = arrays_content({}, failure_values(exc))
        return Message(content, reply_to=message)


def replies(done: Exchange) -> dict[str, Reply]:
    """The answers by client, read as the server reads them."""
    return {client: reply_of(content) for client, content in done.replies.items()}


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client whose stream broke comes back at once, and Flower is asked often."""
    monkeypatch.setattr(client_session, "_PAUSE", GrowingPause(first_s=0.05, longest_s=0.05))
    monkeypatch.setattr(invitations, "POLL_S", 0.05)


@pytest.fixture
def endpoint() -> Endpoint:
    address = f"127.0.0.1:{free_port()}"
    return Endpoint(address=address, bind=address, timeout_s=60.0)


@pytest.fixture
def federation(endpoint: Endpoint) -> Iterator[Federation]:
    """Two clients in an open session."""
    one = Federation(endpoint)
    with one.grid.session():
        yield one


def account(done: Exchange, client: str = "0") -> SessionStatistics:
    """What a client says that it has done."""
    found = SessionStatistics.from_json(done.values[client][ACCOUNT])
    assert found is not None
    return found


# What travels


def test_each_client_answers_its_own_message(federation):
    """Vector, arrays, measures, values, type and round arrive as they were sent."""
    done = federation.exchange(request("0", 2.0, server_round=9), request("1", -1.0, server_round=9))
    assert not done.failures
    for client, factor in (("0", 2.0), ("1", -1.0)):
        reply = replies(done)[client]
        np.testing.assert_array_equal(reply.vector, MODEL * np.float32(factor))
        assert (reply.num_examples, reply.metrics, reply.values) == (7, {"round": 9.0}, {"type": UNLEARN})
        np.testing.assert_array_equal(reply.arrays["direction"], np.ones(4))


def test_a_message_over_a_stream_says_what_it_says_by_flower(federation):
    """Every record, type and round, and the answer's too."""
    by_flower = federation.flower.pull_messages(federation.flower.push_messages([request("0", 3.0)]))
    over_stream = federation.exchange(request("0", 3.0)).messages["0"]
    [plain] = by_flower
    found, wanted = over_stream.content, plain.content
    assert found.metric_records["metrics"] == wanted.metric_records["metrics"]
    assert found.array_records["arrays"].keys() == wanted.array_records["arrays"].keys()
    for name, array in wanted.array_records["arrays"].items():
        np.testing.assert_array_equal(found.array_records["arrays"][name].numpy(), array.numpy())
    told = {key: value for key, value in values_of(found).items() if key != ACCOUNT}
    assert told == values_of(wanted)
    assert over_stream.metadata.src_node_id == plain.metadata.src_node_id
    assert over_stream.metadata.group_id == plain.metadata.group_id


def test_a_model_travels_once_and_a_new_one_again(federation):
    """The second message sends less than a model; a changed model is sent and is the one that is used."""
    sizes = []
    other = MODEL + 1
    for model in (MODEL, MODEL.copy(), other):
        done = federation.exchange(request("0", 1.0, model))
        np.testing.assert_array_equal(replies(done)["0"].vector, model)
        sizes.append(done.bytes_sent)
    assert sizes[0] > MODEL.nbytes
    assert sizes[1] < 2000
    assert sizes[2] > MODEL.nbytes


def test_models_of_training_rounds_travel_in_16_bits_both_ways(endpoint, tmp_path):
    """Half the bytes over real streams; the answer lies in a file, and a method's message goes as it is."""
    federation = Federation(endpoint, spool=tmp_path)
    federation.grid = SessionGrid(federation.flower, endpoint, spool=tmp_path, wire_dtype="bfloat16")
    with federation.grid.session():
        exact, rounded = (federation.exchange(request("0", 1.5, kind=kind)) for kind in (UNLEARN, TRAIN))
    assert rounded.bytes_sent < 0.51 * exact.bytes_sent
    assert rounded.bytes_received < 0.51 * exact.bytes_received
    np.testing.assert_array_equal(replies(exact)["0"].vector, 1.5 * MODEL)
    np.testing.assert_allclose(replies(rounded)["0"].vector, 1.5 * MODEL, rtol=2**-8)
    assert not (replies(rounded)["0"].vector == 1.5 * MODEL).all()


def test_a_model_that_has_travelled_is_freed_without_waiting_for_a_garbage_collection(federation):
    """At both ends: the record that was sent, the ones that were received, and the answers."""

    def alive() -> int:
        return sum(isinstance(one, ArrayRecord) for one in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        federation.exchange(request("0"), request("1"))
        after_one = alive()
        for factor in (2.0, 3.0, 4.0):
            federation.exchange(request("0", factor), request("1", factor))
        assert alive() <= after_one + 2  # a thread may still hold its last message
    finally:
        gc.enable()


def test_a_client_that_is_not_asked_again_holds_no_model_and_no_answer_at_the_server(endpoint, tmp_path):
    """Rounds of a part of the clients leave many such streams, each of another model."""
    federation = Federation(endpoint, num_clients=3)
    federation.grid = SessionGrid(federation.flower, endpoint, spool=tmp_path)
    sent = list[weakref.ref[np.ndarray]]()
    with federation.grid.session():
        for client in "012":
            model = MODEL + float(client)
            sent.append(weakref.ref(model))
            federation.exchange(request(client, 2.0, model))
            del model
        wait_until(lambda: not any(one() is not None for one in sent))
        wait_until(lambda: str(tmp_path) not in Path("/proc/self/maps").read_text(encoding="utf-8"))
        done = federation.exchange(request("0", 3.0))
        np.testing.assert_array_equal(replies(done)["0"].vector, 3.0 * MODEL)


def test_what_a_client_answers_after_its_deadline_is_not_kept(endpoint, tmp_path):
    """Neither the answer, which nothing waits for, nor the message."""
    endpoint = replace(endpoint, timeout_s=1.0)
    answered, may_answer = threading.Event(), threading.Event()

    def slow(message: Message) -> RecordDict:
        may_answer.wait(30)
        answered.set()
        return scale(message)

    federation = Federation(endpoint, num_clients=1, answers={"0": slow})
    federation.grid = SessionGrid(federation.flower, endpoint, spool=tmp_path)
    with federation.grid.session():
        model = MODEL + 1.0
        sent = weakref.ref(model)
        assert federation.exchange(request("0", 2.0, model), timeout_s=20.0).failures
        del model
        may_answer.set()
        answered.wait(30)
        wait_until(lambda: sent() is None)
        wait_until(lambda: str(tmp_path) not in Path("/proc/self/maps").read_text(encoding="utf-8"))


def test_what_an_exchange_gave_up_by_itself_is_not_kept_beyond_its_deadline(endpoint, tmp_path):
    """It looks at nothing any more; the next one sees to it."""
    may_answer = threading.Event()

    def slow(message: Message) -> RecordDict:
        may_answer.wait(30)
        return scale(message)

    federation = Federation(endpoint, answers={"0": slow})
    federation.grid = SessionGrid(federation.flower, replace(endpoint, timeout_s=1.0), spool=tmp_path)
    with federation.grid.session():
        model = MODEL + 1.0
        sent = weakref.ref(model)
        assert federation.exchange(request("0", 2.0, model), timeout_s=0.5).failures
        del model
        assert sent() is not None
        time.sleep(0.6)
        assert federation.exchange(request("1", 2.0)).messages
        may_answer.set()
        wait_until(lambda: sent() is None)


def test_a_model_that_clients_share_is_hashed_once(federation, monkeypatch):
    """A round's clients are sent one record; a hash for each of them would read the whole model as often."""
    hashed: list[int] = []
    monkeypatch.setattr(
        payloads, "fingerprint", lambda array: hashed.append(array.size) or fingerprint(array)
    )
    first, second = request("0"), request("1")
    second.content["arrays"] = first.content["arrays"]
    done = federation.exchange(first, second)
    assert set(done.messages) == {"0", "1"}
    assert hashed == [MODEL.size]


def test_a_client_is_invited_when_it_is_asked_first(federation):
    """One Flower message a client for the whole session, none to those that are never asked."""
    federation.exchange(request("0"))
    federation.exchange(request("0"))
    assert federation.invited() == [0]
    assert set(federation.exchange(request("0"), request("1")).messages) == {"0", "1"}
    assert federation.invited() == [0, 1]


def test_answers_say_what_their_client_has_done(federation):
    """How many messages, over how many connections; bytes agree with the server's count."""
    first = federation.exchange(request("0"), request("1"))
    second = federation.exchange(request("1"))
    assert (account(first).instructions, account(second, "1").instructions) == (1, 2)
    assert account(second, "1").connections == 1
    assert account(first).bytes_received > MODEL.nbytes
    assert first.bytes_received > 2 * MODEL.nbytes


def test_outside_a_session_messages_go_by_flower(endpoint):
    """And after it again, to clients whose processes have ended."""
    federation = Federation(endpoint)
    assert set(federation.exchange(request("0")).messages) == {"0"}
    with federation.grid.session():
        federation.exchange(request("0"))
    assert set(federation.exchange(request("0")).messages) == {"0"}
    assert federation.invited() == [0]
    assert [message.metadata.message_type for message in federation.flower.sent] == [
        UNLEARN,
        SESSION,
        UNLEARN,
    ]


def test_a_client_that_leaves_is_invited_again(federation):
    """After its answer, which counts; the next message finds it in another process."""
    federation.leaving.add("0")
    assert set(federation.exchange(request("0"), request("1")).messages) == {"0", "1"}
    federation.leaving.clear()
    done = federation.exchange(request("0"), request("1"))
    assert set(done.messages) == {"0", "1"}
    assert sorted(federation.invited()) == [0, 0, 1]
    assert account(done).instructions == 1


def test_a_process_lives_for_a_while_only(federation, monkeypatch):
    """Then it is sent the End, and the next message invites another."""
    federation.exchange(request("0"))
    monkeypatch.setattr(session_grid, "LIFETIME_S", 0.0)
    assert set(federation.exchange(request("0")).messages) == {"0"}
    assert federation.invited() == [0, 0]


def test_a_client_that_cannot_come_is_asked_by_flower_in_the_same_round(endpoint, certificates, caplog):
    """It has no certificate; the others go on over their streams, and it is not invited each time."""
    federation = Federation(
        replace(endpoint, tls=certificates["server"]), tls={"0": certificates["client"]}, reconnect_s=0.3
    )
    with federation.grid.session():
        for _ in range(2):
            done = federation.exchange(request("0"), request("1"))
            assert set(done.messages) == {"0", "1"}
            assert (ACCOUNT in done.values["0"], ACCOUNT in done.values["1"]) == (True, False)
    assert sorted(federation.invited()) == [0, 1]
    assert "Node 1002 did not come to the session" in caplog.text


# Who may come


def raw(federation: Federation, *sent: pb.Frame, client: str = "0", connection: int = 2) -> grpc.StatusCode:
    """How the server refuses a stream of these frames from a client that has been invited."""
    invitation = federation.invitations[client]
    hello = pb.Hello(
        session_id=invitation.session_id,
        token=invitation.token,
        connection=connection,
        protocol_version=PROTOCOL_VERSION,
    )
    outgoing = iter([frame.SerializeToString() for frame in (pb.Frame(hello=hello), *sent)])
    with open_channel(invitation.address, None) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            list(endpoints.attend(channel)(outgoing))
        return caught.value.code()


@pytest.mark.parametrize("what", ["token", "session_id"])
def test_a_wrong_token_or_session_is_refused(federation, caplog, what):
    """At once, logged, and the client that was invited is not disturbed."""
    federation.exchange(request("0"))
    forged = replace(federation.invitations["0"], **{what: "0" * 32})
    with raises(SessionError, "refused"):
        run_client_session(forged, scale, 1001)
    assert "unknown session or wrong token" in caplog.text
    assert set(federation.exchange(request("0")).messages) == {"0"}


def test_a_second_stream_of_a_client_is_refused(federation, caplog):
    """One that repeats the number of the stream at hand; the first goes on."""
    federation.exchange(request("0"))
    assert raw(federation, connection=1) is grpc.StatusCode.ALREADY_EXISTS
    assert "second stream of node 1001" in caplog.text
    assert set(federation.exchange(request("0")).messages) == {"0"}


@pytest.mark.parametrize(("version", "side"), [(0, "at the site"), (2, "at the server")])
def test_a_stream_of_another_version_is_refused_at_once(federation, monkeypatch, version, side):
    """Its client gets one sentence, the server the same as the reason that lasts; nothing is tried again."""
    monkeypatch.setattr(client_session, "own_version", lambda: version)
    failure = federation.exchange(request("0"), timeout_s=30.0).failures["0"]
    assert "and the server has 1" in failure.reason
    assert side in failure.reason
    assert failure.is_lasting
    assert federation.invited() == [0]


def test_a_token_is_good_for_one_client_only(federation):
    """With the token of client 1 nobody takes the place of client 0."""
    federation.exchange(request("0"), request("1"))
    tokens = {invitation.token for invitation in federation.invitations.values()}
    assert len(tokens) == 2
    assert (
        raw(federation, pb.Frame(chunk=pb.Chunk(data=b"x")), client="1") is grpc.StatusCode.INVALID_ARGUMENT
    )
    assert set(federation.exchange(request("0")).messages) == {"0"}


def test_an_oversize_frame_is_refused(federation):
    """gRPC does not even take it in."""
    federation.exchange(request("0"))
    frame = pb.Frame(chunk=pb.Chunk(data=bytes(3 * CHUNK_BYTES)))
    assert raw(federation, frame) is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_bad_payload_closes_its_stream_and_refuses_its_sender(federation):
    """The sessions of the others go on; what is a bad payload, `test_session_framing` shows."""
    federation.exchange(request("0"))
    line = federation.grid._lines.by_node[1001]
    chunk = pb.Frame(chunk=pb.Chunk(data=b"{"))
    assert raw(federation, pb.Frame(header=pb.Header(exchange=1, json_bytes=1)), chunk) is (
        grpc.StatusCode.INVALID_ARGUMENT
    )
    assert line.is_refused
    assert line.lost
    assert line.lost.isprintable()
    assert set(federation.exchange(request("1")).messages) == {"1"}


def test_a_refused_answer_refuses_its_sender_by_name(federation, monkeypatch):
    """As one that came by Flower and cannot be read."""

    def refuse(*_: object) -> RecordDict:
        raise UpdateRefused("It is nothing.")

    monkeypatch.setattr(session_grid, "answer_content", refuse)
    done = federation.exchange(request("0"))
    assert done.refused == {"0": "It is nothing."}


def test_a_stream_that_began_without_a_model_takes_large_answers_afterwards(endpoint):
    """A notice first, as after a restart while verifying; then a model that a notice's answer could not hold."""

    def answer(message: Message) -> RecordDict:
        return scale(message) if round_of(message) > 1 else arrays_content({}, {})

    federation = Federation(endpoint, 1, answers={"0": answer})
    large = np.zeros(3 * 2**21, dtype=np.float32)
    with federation.grid.session():
        assert set(federation.exchange(compose(1001, NOTICE, 1, {})).messages) == {"0"}
        done = federation.exchange(request("0", 1.0, large, server_round=2))
        assert not done.failures
        assert account(done).connections == 1
        assert ACCOUNT in done.values["0"]
        frame = pb.Frame(header=pb.Header(exchange=2, arrays=[pb.ArrayHeader(dtype="<f4", shape=[2**30])]))
        assert raw(federation, frame) is grpc.StatusCode.INVALID_ARGUMENT


# What has no room


def test_large_arrays_are_read_from_files_on_both_sides(endpoint, tmp_path):
    """The same numbers; no file has a name, and nothing stays."""
    federation = Federation(endpoint, spool=tmp_path)
    with federation.grid.session():
        done = federation.exchange(request("0", 2.0), request("1", 3.0))
        assert list(tmp_path.iterdir()) == []
    for client, factor in (("0", 2.0), ("1", 3.0)):
        np.testing.assert_array_equal(reply_of(done.replies[client]).vector, factor * MODEL)


@pytest.mark.parametrize(("where", "to"), [(framing, ""), (wire_dtype, "bfloat16")], ids=["exact", "16 bits"])
def test_a_disk_that_fills_in_the_middle_of_an_answer_costs_that_client_its_turn(
    where, to, endpoint, tmp_path, monkeypatch
):
    """It is not refused, for it did nothing wrong; the other's answer counts, and both may give the next one."""
    opened = []

    class FullAtFirst(SpoolFile):
        def extend(self, data):
            opened.append(self)
            if opened[0] is self and len(self):
                raise OSError(errno.ENOSPC, "No space left on device")
            super().extend(data)

    federation = Federation(endpoint)
    federation.grid = SessionGrid(federation.flower, endpoint, reconnect_s=5.0, spool=tmp_path, wire_dtype=to)
    with federation.grid.session():
        with monkeypatch.context() as patched:
            patched.setattr(where, "SpoolFile", FullAtFirst)
            done = federation.exchange(request("0", kind=TRAIN), request("1", kind=TRAIN))
        [(lost, failure)] = done.failures.items()
        assert "No space left on device" in failure.reason
        assert not failure.is_refusal
        assert {lost, *done.messages} == {"0", "1"}
        opened.clear()
        assert set(federation.exchange(request("0"), request("1")).messages) == {"0", "1"}


def test_what_has_no_room_is_refused_before_anything_is_sent(endpoint, tmp_path, monkeypatch):
    """A model that is too large for a stream, or that the disk cannot hold once for each client: that can be mended."""
    size = count_bytes(request("0").content)
    federation = Federation(endpoint, spool=tmp_path)
    with federation.grid.session():
        with monkeypatch.context() as patched, raises(SessionError, "message-too-large"):
            patched.setattr(session_grid, "MAX_INSTRUCTION_BYTES", size - 1)
            federation.exchange(request("0"), request("1"))
        monkeypatch.setattr(session_grid, "MAX_INSTRUCTION_BYTES", size)
        monkeypatch.setattr(session_grid, "disk_usage", lambda _: SimpleNamespace(free=2 * size - 1))
        with pytest.raises(OSError, match="clients take") as caught:
            federation.exchange(request("0"), request("1"))
        assert caught.value.errno == errno.ENOSPC
        assert federation.invited() == []
        monkeypatch.setattr(session_grid, "disk_usage", lambda _: SimpleNamespace(free=2 * size))
        assert set(federation.exchange(request("0"), request("1")).messages) == {"0", "1"}


def test_a_site_without_room_for_the_model_says_so(endpoint, tmp_path, monkeypatch):
    """In one sentence, which is why its process ends."""
    monkeypatch.setattr(SpoolFile, "extend", lambda *_: os.write(-1, b""))
    federation = Federation(endpoint, 1)
    said: list[str] = []

    def attend(message: Message, context: Context) -> Message:
        with raises(SessionError, "disk-full") as caught:
            invitation = Invitation.from_json(values_of(message.content)[INVITATION])
            run_client_session(invitation, scale, context.node_id, spool=tmp_path)
        said.append(str(caught.value))
        return Message(arrays_content({}, failure_values(caught.value)), reply_to=message)

    federation.flower._client_app = attend
    with federation.grid.session():
        assert federation.exchange(request("0"), timeout_s=5.0).failures.keys() == {"0"}
    assert said


# What is lost


def test_a_silent_client_is_left_out_at_the_deadline_and_may_answer_the_next(endpoint):
    """The others' replies count; what it says too late does not."""
    go_on = threading.Event()

    def slow(message: Message) -> RecordDict:
        assert go_on.wait(60) or round_of(message) > 1
        return scale(message)

    federation = Federation(replace(endpoint, timeout_s=1.0), answers={"1": slow})
    with federation.grid.session():
        answers = federation.exchange(request("0"), request("1"))
        assert set(answers.messages) == {"0"}
        assert str(answers.failures["1"]) == "no answer within 1 s"
        go_on.set()
        answers = federation.exchange(request("1", 3.0, server_round=2))
        np.testing.assert_array_equal(replies(answers)["1"].vector, MODEL * np.float32(3))
        assert replies(answers)["1"].metrics == {"round": 2.0}


def test_a_client_whose_process_dies_is_not_waited_for(endpoint):
    """Flower's error reply ends the wait long before the deadline, and says why."""

    def dying(message: Message) -> RecordDict:
        raise RuntimeError("out of memory")

    federation = Federation(endpoint, answers={"1": dying}, reconnect_s=60.0)
    with federation.grid.session():
        answers = federation.exchange(request("0"), request("1"))
    assert set(answers.messages) == {"0"}
    assert "out of memory" in str(answers.failures["1"])
    assert answers.seconds < endpoint.timeout_s / 2


def test_a_stream_that_does_not_come_back_loses_the_client(endpoint, monkeypatch):
    """After the time for reconnecting; Flower has not even noticed."""
    monkeypatch.setattr("strategies.sessions.session_grid.ENDING_S", 0.5)  # its process is not there to end

    def vanishing(message: Message) -> RecordDict:
        raise Vanished

    federation = Federation(endpoint, answers={"1": vanishing}, reconnect_s=0.5)
    with federation.grid.session():
        answers = federation.exchange(request("0"), request("1"))
        assert str(answers.failures["1"]).startswith("its stream broke off")
        assert set(answers.messages) == {"0"}


def test_a_client_says_why_it_cannot_answer(endpoint):
    """Its own error arrives as a failure that no second try can help, and its stream goes on."""

    def refusing(message: Message) -> RecordDict:
        if round_of(message) == 1:
            return arrays_content({}, failure_values(DataError("No such ids.")))
        return scale(message)

    federation = Federation(endpoint, answers={"1": refusing})
    with federation.grid.session():
        answers = federation.exchange(request("1"))
        assert answers.failures["1"] == Failure("No such ids.", is_final=True)
        assert set(federation.exchange(request("1", server_round=2)).messages) == {"1"}


@pytest.mark.parametrize("side", ["from_server", "from_client"])
def test_a_stream_that_breaks_mid_vector_comes_back(endpoint, side, tmp_path):
    """The instruction is asked again, or answered again from memory: same reply, computed once."""
    proxy = CuttingProxy(endpoint.bind, **{side: 2 * CHUNK_BYTES})
    calls: list[int] = []

    def counted(message: Message) -> RecordDict:
        calls.append(round_of(message))
        return scale(message)

    cut = replace(endpoint, address=proxy.address)
    federation = Federation(cut, 1, answers={"0": counted}, spool=tmp_path)
    try:
        with federation.grid.session():
            answers = federation.exchange(request("0", 2.0))
            assert proxy.was_cut.is_set()
            np.testing.assert_array_equal(replies(answers)["0"].vector, MODEL * np.float32(2))
            assert calls == [1]
            assert proxy.num_connections >= 2
    finally:
        proxy.close()


def test_a_client_gives_up_a_server_that_is_gone():
    """With what to check, after the time for reconnecting."""
    invitation = Invitation(address=f"127.0.0.1:{free_port()}", session_id="s", token="t", timeout_s=1.0)
    with raises(SessionError, "unreachable"):
        run_client_session(invitation, scale, 1001, reconnect_s=0.2)


def test_a_client_gives_up_a_server_that_asks_nothing(federation, monkeypatch):
    """Three deadlines of the server without an instruction: the node must not be blocked for ever."""
    patient = GrowingPause(first_s=0.5, longest_s=0.5)
    monkeypatch.setattr(client_session, "_PAUSE", patient)  # the first stream's client comes back after that
    federation.exchange(request("0"))
    impatient = replace(federation.invitations["0"], timeout_s=0.1)
    federation.grid._lines.by_node[1001].connection = 0  # as if the first stream were gone
    with raises(SessionError, "idle"):
        run_client_session(impatient, scale, 1001)


# Who comes back


@pytest.mark.parametrize("is_told", [True, False], ids=["Flower says so", "Flower does not notice"])
def test_a_restarted_site_is_back_on_its_stream_with_its_first_message(endpoint, monkeypatch, is_told):
    """Its invitation was lost, because the SuperNode was down and still counted as online."""
    monkeypatch.setattr(session_grid, "ARRIVAL_S", 0.2)
    monkeypatch.setattr(session_grid, "ENDING_S", 0.2)  # for an answer to the lost invitation
    federation = Federation(endpoint)
    with federation.grid.session():
        (federation.flower.offline if is_told else federation.flower.lost_invitations).add(1001)
        down = federation.exchange(request("0"), request("1"))
        assert ACCOUNT in down.values["1"]
        assert "0" in (down.failures if is_told else down.messages)
        federation.flower.offline.clear()
        federation.flower.lost_invitations.clear()
        back = federation.exchange(request("0"), request("1"))
    assert all(ACCOUNT in back.values[client] for client in "01")
    assert sorted(federation.invited()) == [0, 0, 1]


def test_a_client_that_said_that_it_cannot_come_is_invited_again_a_minute_later(endpoint, monkeypatch):
    """Then after two; what kept it away may be over, such as a firewall that was restarted."""
    elapsed, invited = [0.0], []
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + elapsed[0], sleep=time.sleep)
    for module in (session_grid, invitations, client_connections):
        monkeypatch.setattr(module, "time", clock)
    federation = Federation(replace(endpoint, address=f"127.0.0.1:{free_port()}"), 1, reconnect_s=0.1)
    with federation.grid.session():
        for seconds in (0.0, 30.0, 31.0, 60.0, 61.0):
            elapsed[0] += seconds
            assert set(federation.exchange(request("0")).messages) == {"0"}
            invited.append(len(federation.invited()))
    assert invited == [1, 1, 2, 2, 3]


def test_a_node_that_never_says_why_it_does_not_come_is_invited_less_and_less(endpoint, monkeypatch):
    """Each invitation costs its round a minute; the first is forgiven, for the node may have been restarted."""
    for name in ("ARRIVAL_S", "ENDING_S"):
        monkeypatch.setattr(session_grid, name, 0.1)
    federation, invited = Federation(endpoint, 1), []
    federation.flower.lost_invitations.add(1001)
    with federation.grid.session():
        for _ in range(4):
            assert set(federation.exchange(request("0")).messages) == {"0"}
            invited.append(len(federation.invited()))
    assert invited == [1, 2, 2, 2]


def test_clients_beyond_the_number_of_threads_are_served_by_flower(federation, monkeypatch):
    """They are not invited to find no place."""
    monkeypatch.setattr(session_grid, "MAX_CLIENTS", 1)
    done = federation.exchange(request("0"), request("1"))
    assert [ACCOUNT in done.values[client] for client in "01"] == [True, False]
    assert federation.invited() == [0]


def test_a_message_that_flower_does_not_take_either_fails_at_once(endpoint, monkeypatch):
    """As to a node that has just been unregistered: no invitation, no message, and no wait until the deadline."""
    federation = Federation(endpoint, 1)
    monkeypatch.setattr(federation.flower, "push_messages", lambda messages: ["" for _ in messages])
    with federation.grid.session():
        done = federation.exchange(request("0"), timeout_s=5.0)
    assert "could not be handed to the SuperLink" in str(done.failures["0"])


# Who keeps others out


def attend(channel: grpc.Channel, *frames: pb.Frame, timeout_s: float = 20.0) -> Any:
    """A stream that sends these frames, then nothing, and reads nothing."""
    outgoing = iter((*frames, None))
    is_over = threading.Event()

    def say() -> Iterator[bytes]:
        while (frame := next(outgoing)) is not None:
            yield frame.SerializeToString()
        is_over.wait(60)

    call = endpoints.attend(channel)(say(), timeout=timeout_s)
    call.add_callback(is_over.set)
    return call


@pytest.fixture
def few_places(monkeypatch: pytest.MonkeyPatch) -> int:
    """A server with so few threads that a test can take them all."""
    monkeypatch.setattr(endpoints, "MAX_CLIENTS", 8)
    monkeypatch.setattr(endpoints, "MAX_ARRIVING", 8, raising=False)
    monkeypatch.setattr(endpoints, "_SPARE_THREADS", 1, raising=False)
    monkeypatch.setattr(client_connections, "MAX_ARRIVING", 8, raising=False)
    return 8


@pytest.mark.parametrize("is_certified", [True, False], ids=["of a certificate", "of an address"])
def test_mute_streams_keep_no_client_out(endpoint, certificates, few_places, is_certified):
    """More than there are places, and each time that a client comes the oldest makes room."""
    tls = certificates["server"] if is_certified else None
    federation = Federation(
        replace(endpoint, tls=tls), tls={name: certificates["client"] for name in "01" if is_certified}
    )
    with (
        federation.grid.session(),
        open_channel(endpoint.address, certificates["other"] if is_certified else None) as channel,
    ):
        mute = [attend(channel) for _ in range(few_places + 4)]
        done = federation.exchange(request("0"), request("1"))
        assert all(ACCOUNT in done.values[client] for client in "01")
        for call in mute:
            call.cancel()


def test_a_mute_stream_is_ended_soon(federation, monkeypatch):
    """Also where nobody else waits; half a hello says nothing either, for gRPC hands on whole messages."""
    monkeypatch.setattr(client_connections, "HELLO_S", 0.2)
    with open_channel(federation.endpoint.address, None) as channel:
        assert attend(channel).code() is grpc.StatusCode.CANCELLED


def silent_client(federation: Federation, channel: grpc.Channel, *, connection: int) -> Any:
    """A stream of client 0, with its right token, that reads and answers nothing of what it is sent."""
    [*_, asked] = [one for one in federation.flower.sent if one.metadata.message_type == SESSION]
    invitation = Invitation.from_json(told_values(asked.content)[INVITATION])
    hello = pb.Hello(
        session_id=invitation.session_id,
        token=invitation.token,
        connection=connection,
        protocol_version=PROTOCOL_VERSION,
    )
    call = attend(channel, pb.Frame(hello=hello))
    lines = federation.grid._lines
    with lines.changed:
        assert lines.changed.wait_for(lambda: lines.by_node[1001].connection == connection, timeout=WAIT_S)
    return call


@pytest.fixture
def sent_to_a_silent_client(endpoint: Endpoint, few_places: int) -> Iterator[Federation]:
    """A session in which client 0 was sent a model of several chunks, and has not come."""
    federation = Federation(endpoint)
    federation.flower.lost_invitations.add(1001)
    with federation.grid.session():
        list(federation.grid.push_messages([request("0", model=np.zeros(2**22))]))
        yield federation
        federation.grid.close(ending_s=0.0)


def test_a_client_has_one_stream_however_many_it_opens(sent_to_a_silent_client):
    """Each with its right token: the new one ends the one before, and the other client is served."""
    federation = sent_to_a_silent_client
    with open_channel(federation.endpoint.address, None) as channel:
        calls = [silent_client(federation, channel, connection=number) for number in range(1, 30)]
        assert ACCOUNT in federation.exchange(request("1")).values["1"]
        for call in calls:
            call.cancel()


def test_a_client_that_does_not_read_its_end_is_cut_off(sent_to_a_silent_client, monkeypatch):
    """Otherwise each of its processes would leave a thread of the server behind."""
    monkeypatch.setattr(client_connections, "END_S", 0.2, raising=False)
    federation = sent_to_a_silent_client
    with open_channel(federation.endpoint.address, None) as channel:
        call = silent_client(federation, channel, connection=1)
        lines, line = federation.grid._lines, federation.grid._lines.by_node[1001]
        with lines.changed:
            while not lines.bytes_sent:  # as long as nothing is on its way, it may still end in good order
                lines.changed.wait(0.01)
        lines.end(line)
        with lines.changed:
            assert lines.changed.wait_for(lambda: line.stream is None, timeout=WAIT_S)
        call.cancel()


def test_streams_that_one_party_opens_and_drops_are_no_flood_of_warnings(federation, caplog):
    """Nor are those with another's token; clients are served meanwhile."""
    federation.exchange(request("0"))
    hello = pb.Frame(hello=pb.Hello(session_id="0", token="0" * 2**20, connection=1))
    with open_channel(federation.endpoint.address, None) as channel:
        for number in range(100):
            attend(channel, *([hello] if number % 2 else [])).cancel()
        codes = {attend(channel, hello).code() for _ in range(5)}
    assert codes == {grpc.StatusCode.UNAUTHENTICATED}
    assert set(federation.exchange(request("0"), request("1")).messages) == {"0", "1"}
    assert caplog.text.count("A stream ") <= 1


@contextmanager
def refusing(address: str, times: int, *before: pb.Frame) -> Iterator[None]:
    """A server that has no place so many times, having sent some frames, and then ends the session."""
    refusals = iter([True] * times)

    class Full:
        def Attend(self, _: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:  # noqa: N802
            if next(refusals, False):
                yield from (frame.SerializeToString() for frame in before)
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "There is no place.")
            yield framing.END

    server = Endpoint(address=address, bind=address, timeout_s=1.0).listen()
    endpoints.serve(server, Full().Attend)
    server.start()
    yield
    server.stop(None).wait()


def test_a_client_that_finds_no_place_tries_again_with_growing_pauses(endpoint, monkeypatch):
    """Half a second, one, two: what keeps it out may be gone by then."""
    pauses: list[float] = []
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=pauses.append)
    monkeypatch.setattr(client_session, "time", clock)
    monkeypatch.setattr(client_session, "_PAUSE", PAUSE)
    invitation = Invitation(address=endpoint.address, session_id="s", token="t", timeout_s=1.0)
    with refusing(endpoint.address, 5):
        done = run_client_session(invitation, scale, 1001)
    assert done.connections == 6
    assert pauses == [0.5, 1.0, 2.0, 4.0, 4.0]


def test_an_answer_above_a_limit_is_not_sent_again(endpoint):
    """The server was reached and had begun to ask, so it refuses what this client sends."""
    invitation = Invitation(address=endpoint.address, session_id="s", token="t", timeout_s=1.0)
    with (
        refusing(endpoint.address, 1, pb.Frame(header=pb.Header(exchange=1, json_bytes=2))),
        raises(SessionError, "refused"),
    ):
        run_client_session(invitation, scale, 1001)


# Addresses and TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TlsFiles]:
    """A server's, two clients', and a stranger's of another authority."""
    directory = tmp_path_factory.mktemp("certificates")
    ours, theirs = Authority(directory), Authority(directory, "theirs")
    stranger = replace(theirs.certify("stranger"), ca=ours.file)
    own = {name: ours.certify(name) for name in ("server", "client", "other")}
    return {**own, "stranger": stranger}


def test_mutual_tls_carries_a_session(endpoint, certificates, caplog):
    """With certificates of one authority; a client without, or with a stranger's, is asked by Flower."""
    federation = Federation(
        replace(endpoint, tls=certificates["server"], timeout_s=20.0),
        3,
        tls={"0": certificates["client"], "1": certificates["stranger"]},
        reconnect_s=0.5,
    )
    with federation.grid.session():
        done = federation.exchange(*(request(name) for name in ("0", "1", "2")))
    assert {client: ACCOUNT in values for client, values in done.values.items()} == {
        "0": True,
        "1": False,
        "2": False,
    }
    assert caplog.text.count("cannot be reached") == 2


@pytest.mark.parametrize("address", ["0.0.0.0:9101", "[::]:9101", "example.org:9101"])
def test_beyond_this_machine_neither_side_goes_without_tls(address):
    """The server does not listen, the client does not connect, the run does not start."""
    with raises(SessionError, "no-tls"):
        Endpoint(address=address, bind=address, timeout_s=1.0).listen()
    with raises(SessionError, "no-tls"):
        open_channel(address, None)
    with refuses("session-tls-ca, session-tls-cert, session-tls-key"):
        RunSettings.from_run_config({"session-address": address})


def test_a_taken_port_is_said_so(endpoint, federation):
    """A second server process must not share the port and take half of the streams."""
    with raises(SessionError, "port-taken"):
        endpoint.listen(wait_s=0.0)


@pytest.mark.parametrize("address", ["192.0.2.1:9101", "[2001:db8::1]:9101", "no-such-host.invalid:9101"])
def test_an_address_of_another_machine_is_not_waited_for(certificates, address):
    """As where clients connect to the address of a router, and session-bind is not set."""
    elsewhere = Endpoint(address=address, bind=address, timeout_s=1.0, tls=certificates["server"])
    with raises(SessionError, "bad-address"):
        elsewhere.listen()


def test_the_port_of_a_run_that_is_ending_is_waited_for(endpoint, caplog):
    """`flwr stop` returns before the server process has ended, and the next run may begin at once."""
    earlier = endpoint.listen()
    earlier.start()
    with ThreadPoolExecutor(1) as threads:
        later = threads.submit(endpoint.listen)
        while "trying for" not in caplog.text:
            assert not later.done() or later.result() is None
            time.sleep(0.01)
        earlier.stop(None).wait()
        later.result().stop(None)


def test_an_address_for_clients_may_differ_from_where_the_server_listens():
    """Behind a name or a forwarded port; a file that cannot be read is found when the server starts."""
    files = {f"session-tls-{what}": f"/no-such-{what}" for what in ("ca", "cert", "key")}
    settings = RunSettings.from_run_config(
        {"session-address": "example.org:9101", "session-bind": "0.0.0.0:9101", **files}
    )
    with refuses("tls"):
        Endpoint.from_settings(settings)
    local = RunSettings.from_run_config(
        {"session-address": "localhost:9101", "session-bind": "127.0.0.1:9102"}
    )
    found = Endpoint.from_settings(local)
    assert found is not None
    assert (found.address, found.bind, found.tls) == ("localhost:9101", "127.0.0.1:9102", None)
    assert Endpoint.from_settings(RunSettings()) is None


def test_who_is_online_is_not_asked_again_at_once(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round asks four times, and the SuperLink takes longer to answer than the clients to compute."""
    federation = Federation(endpoint)
    monkeypatch.setattr(session_grid, "NODES_S", 60.0)
    assert set(federation.grid.get_node_ids()) == {1001, 1002}
    federation.flower.offline.add(1001)
    assert set(federation.grid.get_node_ids()) == {1001, 1002}
    monkeypatch.setattr(session_grid, "NODES_S", 0.0)
    assert [node.node_id for node in federation.grid.get_nodes()] == [1002]
