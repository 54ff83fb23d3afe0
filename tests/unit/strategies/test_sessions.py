"""Both halves of a session over real gRPC streams on loopback: who may come, what is lost and what is not."""

import subprocess
import threading
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from flwr.app import Context, Message

from strategies.exchange import Failure
from strategies.messages import SESSION, arrays_content, compose, failure_values, values_of
from strategies.run_config import RunSettings
from strategies.sessions import session_pb2 as pb
from strategies.sessions.client_half import Answering, SessionStatistics, run_client_session
from strategies.sessions.endpoint import Endpoint, Tls, open_channel
from strategies.sessions.framing import CHUNK_BYTES, Assembler
from strategies.sessions.payloads import ACCOUNT, INVITATION, Invitation, reply_of
from strategies.sessions.server_half import Answers, Session
from strategies.sessions.session_pb2_grpc import SessionServiceStub
from tests.deletion_service import free_port
from tests.hostile import JSON
from tests.sessions import CuttingProxy, ThreadedGrid, Vanished
from unlearning.errors import ConfigurationError, DataError, FlowerUnlearningError, SessionError
from unlearning.methods.method import Instruction, Reply
from unlearning.plain import to_plain
from unlearning.training import TrainingSettings

MODEL = np.arange(3 * CHUNK_BYTES // 4, dtype=np.float32)
"""Three chunks, so that a stream can break in the middle."""
ROOT = Path(__file__).parents[3]


def instruction(factor: float = 1.0, model: np.ndarray = MODEL) -> Instruction:
    return Instruction(
        operation="scale",
        model=model,
        training=TrainingSettings(),
        arrays={"direction": np.ones(4)},
        values={"factor": factor},
    )


def scale(method: str, server_round: int, instruction: Instruction) -> Reply:
    """A client's work that shows what arrived: the model times the factor, the round among the measures."""
    return Reply(
        vector=instruction.model * np.float32(instruction.values["factor"]),
        num_examples=7,
        metrics={"round": float(server_round)},
        arrays={"direction": instruction.arrays["direction"]},
        values={"method": method},
    )


@dataclass
class Federation:
    """Clients 0, 1, ... that attend a session, each with the work of `answers` (or `scale`)."""

    endpoint: Endpoint
    num_clients: int = 2
    answers: dict[str, Answering] = field(default_factory=dict)
    tls: dict[str, Tls] = field(default_factory=dict)
    invitations: dict[str, Invitation] = field(default_factory=dict)
    reconnect_s: float = 5.0

    def __post_init__(self) -> None:
        configs = [{"client-id": str(number)} for number in range(self.num_clients)]
        self.grid = ThreadedGrid(self._attend, configs, {})
        self.session = Session(self.grid, self.endpoint, reconnect_s=self.reconnect_s)

    def exchange(self, instructions: Mapping[str, Instruction], server_round: int = 1) -> Answers:
        return self.session.exchange(server_round, "scaling", instructions, self._invite)

    def _invite(self, values: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Message]:
        return {client: compose(1001 + int(client), SESSION, 1, own) for client, own in values.items()}

    def _attend(self, message: Message, context: Context) -> Message:
        client = str(context.node_config["client-id"])
        invitation = Invitation.from_json(values_of(message.content)[INVITATION])
        self.invitations[client] = invitation
        try:
            account = run_client_session(
                invitation,
                self.answers.get(client, scale),
                tls=self.tls.get(client),
                reconnect_s=self.reconnect_s,
            )
            content = arrays_content({}, {ACCOUNT: to_plain(account)})
        except FlowerUnlearningError as exc:
            content = arrays_content({}, failure_values(exc))
        return Message(content, reply_to=message)


@pytest.fixture
def endpoint() -> Endpoint:
    address = f"127.0.0.1:{free_port()}"
    return Endpoint(address=address, bind=address, timeout_s=60.0)


@pytest.fixture
def federation(endpoint: Endpoint) -> Iterator[Federation]:
    """Two clients in an open session."""
    one = Federation(endpoint)
    with one.session:
        yield one


def accounts(federation: Federation) -> dict[str, SessionStatistics]:
    """What the clients say they did; ends the session."""
    closed = federation.session.close()
    return {
        client: SessionStatistics(**values_of(content)[ACCOUNT]) for client, content in closed.replies.items()
    }


# What travels


def test_each_client_answers_its_own_instruction(federation):
    """Vector, arrays, measures and values arrive as they were sent."""
    answers = federation.exchange({"0": instruction(2.0), "1": instruction(-1.0)}, server_round=9)
    assert not answers.exchange.failures
    for client, factor in (("0", 2.0), ("1", -1.0)):
        reply = answers.replies[client]
        np.testing.assert_array_equal(reply.vector, MODEL * np.float32(factor))
        assert (reply.num_examples, reply.metrics, reply.values) == (7, {"round": 9.0}, {"method": "scaling"})
        np.testing.assert_array_equal(reply.arrays["direction"], np.ones(4))


def test_a_model_travels_once_and_a_new_one_again(federation):
    """The second exchange sends less than a model; a changed model is sent and is the one that is used."""
    sizes = []
    other = MODEL + 1
    for model in (MODEL, MODEL.copy(), other):
        answers = federation.exchange({"0": instruction(1.0, model)})
        np.testing.assert_array_equal(answers.replies["0"].vector, model)
        sizes.append(answers.exchange.bytes_sent)
    assert sizes[0] > MODEL.nbytes
    assert sizes[1] < 2000
    assert sizes[2] > MODEL.nbytes


def test_a_client_is_invited_when_it_is_asked_first(federation):
    """One Flower message a client for the whole session, none to those that are never asked."""
    federation.exchange({"0": instruction()})
    federation.exchange({"0": instruction()})
    assert [message.metadata.dst_node_id for message in federation.grid.sent] == [1001]
    assert set(federation.exchange({"0": instruction(), "1": instruction()}).replies) == {"0", "1"}
    assert [message.metadata.dst_node_id for message in federation.grid.sent] == [1001, 1002]


def test_the_end_brings_the_clients_accounts(federation):
    """How many instructions, over how many connections; bytes agree with the server's count."""
    first = federation.exchange({"0": instruction(), "1": instruction()}).exchange
    federation.exchange({"1": instruction()})
    found = accounts(federation)
    assert {client: account.instructions for client, account in found.items()} == {"0": 1, "1": 2}
    assert {account.connections for account in found.values()} == {1}
    assert found["0"].bytes_received > MODEL.nbytes
    assert first.bytes_received >= found["0"].bytes_sent + MODEL.nbytes


# Who may come


def raw(federation: Federation, *sent: pb.Frame, client: str = "0", connection: int = 2) -> grpc.StatusCode:
    """How the server refuses a stream of these frames from a client that has been invited."""
    invitation = federation.invitations[client]
    hello = pb.Hello(session_id=invitation.session_id, token=invitation.token, connection=connection)
    outgoing = iter([pb.Frame(hello=hello), *sent])
    with open_channel(invitation.address, None) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            list(SessionServiceStub(channel).Attend(outgoing))
        return caught.value.code()


@pytest.mark.parametrize("what", ["token", "session_id"])
def test_a_wrong_token_or_session_is_refused(federation, caplog, what):
    """At once, logged, and the client that was invited is not disturbed."""
    federation.exchange({"0": instruction()})
    forged = replace(federation.invitations["0"], **{what: "0" * 32})
    with pytest.raises(SessionError, match="refuses this client: There is no such session"):
        run_client_session(forged, scale)
    assert "unknown session or wrong token" in caplog.text
    assert set(federation.exchange({"0": instruction()}).replies) == {"0"}


def test_a_second_stream_of_a_client_is_refused(federation, caplog):
    """One that repeats the number of the stream at hand; the first goes on."""
    federation.exchange({"0": instruction()})
    assert raw(federation, connection=1) is grpc.StatusCode.ALREADY_EXISTS
    assert "second stream of client 0" in caplog.text
    assert set(federation.exchange({"0": instruction()}).replies) == {"0"}


def test_a_token_is_good_for_one_client_only(federation):
    """With the token of client 1 nobody takes the place of client 0."""
    federation.exchange({"0": instruction(), "1": instruction()})
    tokens = {invitation.token for invitation in federation.invitations.values()}
    assert len(tokens) == 2
    assert (
        raw(federation, pb.Frame(chunk=pb.Chunk(data=b"x")), client="1") is grpc.StatusCode.INVALID_ARGUMENT
    )
    assert set(federation.exchange({"0": instruction()}).replies) == {"0"}


def test_an_oversize_frame_is_refused(federation):
    """gRPC does not even take it in."""
    federation.exchange({"0": instruction()})
    frame = pb.Frame(chunk=pb.Chunk(data=bytes(3 * CHUNK_BYTES)))
    assert raw(federation, frame) is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_an_oversize_reply_is_refused_by_its_header(federation):
    """Many times the model's size is no reply."""
    federation.exchange({"0": instruction()})
    header = pb.Header(exchange=1, json_bytes=2, arrays=[pb.ArrayHeader(dtype="<f8", shape=[2**40])])
    assert raw(federation, pb.Frame(header=header)) is grpc.StatusCode.INVALID_ARGUMENT


def payload_frames(text: bytes, *, exchange: int = 1, arrays=()) -> list[pb.Frame]:
    """A payload of this JSON and arrays of these headers without bytes."""
    header = pb.Frame(header=pb.Header(exchange=exchange, json_bytes=len(text), arrays=arrays))
    chunks = [text[start : start + CHUNK_BYTES] for start in range(0, len(text), CHUNK_BYTES)]
    return [header, *(pb.Frame(chunk=pb.Chunk(data=chunk)) for chunk in chunks)]


EMPTY = [pb.ArrayHeader(name="vector", dtype="<f4", shape=[0])]
BAD_PARCELS = {
    **{kind: payload_frames(text.encode()) for kind, text in JSON.items() if len(text) < 2**20},
    "JSON of 4 GiB": [pb.Frame(header=pb.Header(exchange=1, json_bytes=2**32))],
    "not UTF-8": payload_frames(b'{"a": "\xff"}'),
    "a shape that overflows": payload_frames(
        b"{}", arrays=[pb.ArrayHeader(dtype="<f4", shape=[2**40, 2**40, 0])]
    ),
    "a hundred dimensions": payload_frames(b"{}", arrays=[pb.ArrayHeader(dtype="<f4", shape=[1] * 100)]),
    "objects": payload_frames(b"{}", arrays=[pb.ArrayHeader(dtype="|O", shape=[0])]),
    "a dtype of brackets": payload_frames(b"{}", arrays=[pb.ArrayHeader(dtype="[" * 9000, shape=[0])]),
    "a dtype that Python would read": payload_frames(
        b"{}", arrays=[pb.ArrayHeader(dtype="(1000000,1000000)f8", shape=[1])]
    ),
    "a name twice": payload_frames(b"{}", arrays=[*EMPTY, *EMPTY]),
    "an array said to be known": payload_frames(
        b"{}", arrays=[pb.ArrayHeader(is_known=True, content_hash="x")]
    ),
}
BAD_REPLIES = {
    "nothing": b"{}",
    "metrics are a list": b'{"num-examples": 1, "metrics": [1], "values": {}}',
    "a metric is an object": b'{"num-examples": 1, "metrics": {"a": {}}, "values": {}}',
    "an infinite count": b'{"num-examples": Infinity, "metrics": {}, "values": {}}',
    "a count of 1.7e308": b'{"num-examples": 1.7e308, "metrics": {}, "values": {}}',
    "a count in words": b'{"num-examples": "many", "metrics": {}, "values": {}}',
    "values are a number": b'{"num-examples": 1, "metrics": {}, "values": 7}',
}


@pytest.mark.parametrize("kind", BAD_PARCELS)
def test_a_bad_payload_closes_its_stream_and_refuses_its_sender(federation, kind):
    """Whatever it is, and the sessions of the others go on."""
    federation.exchange({"0": instruction()})
    line = federation.session._lines.by_client["0"]
    assert raw(federation, *BAD_PARCELS[kind]) is grpc.StatusCode.INVALID_ARGUMENT
    assert line.is_refused
    assert line.lost
    assert line.lost.isprintable()
    assert set(federation.exchange({"1": instruction()}).replies) == {"1"}


@pytest.mark.parametrize("kind", BAD_REPLIES)
def test_a_reply_that_says_something_else_is_refused_by_name(kind):
    """The stream is in order; what came over it is thrown away."""
    [header, *chunks] = payload_frames(BAD_REPLIES[kind], arrays=EMPTY)
    assembler = Assembler(2**20)
    assembler.add(header)
    [payload] = [payload for chunk in chunks if (payload := assembler.add(chunk)) is not None]
    answer = reply_of("0", payload)
    assert isinstance(answer, Failure)
    assert answer.is_refusal


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


# What is lost


def test_a_silent_client_is_left_out_at_the_deadline_and_may_answer_the_next(endpoint):
    """The others' replies count; what it says too late does not."""
    go_on = threading.Event()

    def slow(method: str, server_round: int, instruction: Instruction) -> Reply:
        assert go_on.wait(60) or server_round > 1
        return scale(method, server_round, instruction)

    federation = Federation(replace(endpoint, timeout_s=1.0), answers={"1": slow})
    with federation.session:
        answers = federation.exchange({"0": instruction(), "1": instruction()})
        assert set(answers.replies) == {"0"}
        assert str(answers.exchange.failures["1"]) == "no answer within 1 s"
        go_on.set()
        answers = federation.exchange({"1": instruction(3.0)}, server_round=2)
        np.testing.assert_array_equal(answers.replies["1"].vector, MODEL * np.float32(3))
        assert answers.replies["1"].metrics == {"round": 2.0}


def test_a_client_whose_process_dies_is_not_waited_for(endpoint):
    """Flower's error reply ends the wait long before the deadline, and says why."""

    def dying(method: str, server_round: int, instruction: Instruction) -> Reply:
        raise RuntimeError("out of memory")

    federation = Federation(endpoint, answers={"1": dying}, reconnect_s=60.0)
    with federation.session:
        answers = federation.exchange({"0": instruction(), "1": instruction()})
    assert set(answers.replies) == {"0"}
    assert "out of memory" in str(answers.exchange.failures["1"])
    assert answers.exchange.seconds < endpoint.timeout_s / 2


def test_a_stream_that_does_not_come_back_loses_the_client(endpoint):
    """After the time for reconnecting; Flower has not even noticed."""

    def vanishing(method: str, server_round: int, instruction: Instruction) -> Reply:
        raise Vanished

    federation = Federation(endpoint, answers={"1": vanishing}, reconnect_s=0.5)
    with federation.session:
        answers = federation.exchange({"0": instruction(), "1": instruction()})
        assert str(answers.exchange.failures["1"]).startswith("its stream broke off")
        assert set(answers.replies) == {"0"}


def test_a_client_says_why_it_cannot_answer(endpoint):
    """Its own error arrives as a failure that no second try can help, and its stream goes on."""

    def refusing(method: str, server_round: int, instruction: Instruction) -> Reply:
        if server_round == 1:
            raise DataError("No such ids.")
        return scale(method, server_round, instruction)

    federation = Federation(endpoint, answers={"1": refusing})
    with federation.session:
        answers = federation.exchange({"1": instruction()})
        assert answers.exchange.failures["1"] == Failure("DataError: No such ids.", is_final=True)
        assert set(federation.exchange({"1": instruction()}, server_round=2).replies) == {"1"}


@pytest.mark.parametrize("side", ["from_server", "from_client"])
def test_a_stream_that_breaks_mid_vector_comes_back(endpoint, side):
    """The instruction is asked again, or answered again from memory: same reply, computed once."""
    proxy = CuttingProxy(endpoint.bind, **{side: 2 * CHUNK_BYTES})
    calls: list[int] = []

    def counted(method: str, server_round: int, instruction: Instruction) -> Reply:
        calls.append(server_round)
        return scale(method, server_round, instruction)

    federation = Federation(replace(endpoint, address=proxy.address), 1, answers={"0": counted})
    try:
        with federation.session:
            answers = federation.exchange({"0": instruction(2.0)})
            assert proxy.was_cut.is_set()
            np.testing.assert_array_equal(answers.replies["0"].vector, MODEL * np.float32(2))
            assert calls == [1]
            assert accounts(federation)["0"].connections >= 2
    finally:
        proxy.close()


def test_a_client_gives_up_a_server_that_is_gone():
    """With what to check, after the time for reconnecting."""
    invitation = Invitation(address=f"127.0.0.1:{free_port()}", session_id="s", token="t", timeout_s=1.0)
    with pytest.raises(SessionError, match=r"cannot be reached for 0\.2 s.*Check session-address"):
        run_client_session(invitation, scale, reconnect_s=0.2)


def test_a_client_gives_up_a_server_that_asks_nothing(federation):
    """Three deadlines of the server without an instruction: the node must not be blocked for ever."""
    federation.exchange({"0": instruction()})
    impatient = replace(federation.invitations["0"], timeout_s=0.1)
    federation.session._lines.by_client["0"].connection = 0  # as if the first stream were gone
    with pytest.raises(SessionError, match=r"asked nothing for 0\.3"):
        run_client_session(impatient, scale)


# Addresses and TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Tls]:
    """Made by the script that operators use: a server's, a client's, and a stranger's of another authority."""
    directory = tmp_path_factory.mktemp("certificates")
    for place, kind, name in (
        ("ours", "server", "localhost"),
        ("ours", "client", "site"),
        ("theirs", "client", "site"),
    ):
        script = str(ROOT / "deploy" / "make_certificates.sh")
        subprocess.run(["sh", script, str(directory / place), kind, name], check=True, capture_output=True)

    def files(name: str) -> Tls:
        ours = directory / "ours"
        own = directory / ("theirs" if name == "stranger" else "ours")
        stem = {"server": "server", "client": "site", "stranger": "site"}[name]
        return Tls(ours / "ca.crt", own / f"{stem}.pem", own / f"{stem}.key")

    return files


def test_mutual_tls_carries_a_session(endpoint, certificates):
    """With the operator's certificates; the client without one does not get in, the session goes on."""
    federation = Federation(
        replace(endpoint, tls=certificates("server"), timeout_s=20.0),
        3,
        tls={"0": certificates("client"), "1": certificates("stranger")},
        reconnect_s=0.5,
    )
    with federation.session:
        answers = federation.exchange({name: instruction() for name in ("0", "1", "2")})
    assert set(answers.replies) == {"0"}
    for client in ("1", "2"):
        assert "cannot be reached" in str(answers.exchange.failures[client])


@pytest.mark.parametrize("address", ["0.0.0.0:9101", "[::]:9101", "example.org:9101"])
def test_beyond_this_machine_neither_side_goes_without_tls(address):
    """The server does not listen, the client does not connect, the run does not start."""
    with pytest.raises(SessionError, match="could be reached from other machines"):
        Endpoint(address=address, bind=address, timeout_s=1.0).listen()
    with pytest.raises(SessionError, match="is on another machine"):
        open_channel(address, None)
    with pytest.raises(ConfigurationError, match="can be reached from other machines"):
        RunSettings.from_run_config({"session-address": address})


def test_a_taken_port_is_said_so(endpoint, federation):
    """A second server process must not share the port and take half of the streams."""
    with pytest.raises(SessionError, match="Does another server process still hold the port"):
        endpoint.listen()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"session-address": "9101"}, "'9101' is not of the form HOST:PORT"),
        ({"session-address": "localhost:0"}, "'localhost:0' is not of the form HOST:PORT"),
        ({"session-bind": "127.0.0.1:9101"}, "of no use without session-address"),
        ({"session-address": "localhost:9101", "session-tls-ca": "ca.crt"}, "give all three or none"),
    ],
)
def test_session_settings_are_checked(settings, sentence):
    """Each mistake has its sentence."""
    with pytest.raises(ConfigurationError, match=sentence):
        RunSettings.from_run_config(settings)


def test_an_address_for_clients_may_differ_from_where_the_server_listens():
    """Behind a name or a forwarded port; a file that cannot be read is found when the server starts."""
    files = {f"session-tls-{what}": f"/no-such-{what}" for what in ("ca", "cert", "key")}
    settings = RunSettings.from_run_config(
        {"session-address": "example.org:9101", "session-bind": "0.0.0.0:9101", **files}
    )
    with pytest.raises(ConfigurationError, match="session-tls-cert '/no-such-cert' cannot be read"):
        Endpoint.from_settings(settings)
    local = RunSettings.from_run_config(
        {"session-address": "localhost:9101", "session-bind": "127.0.0.1:9102"}
    )
    found = Endpoint.from_settings(local)
    assert found is not None
    assert (found.address, found.bind, found.tls) == ("localhost:9101", "127.0.0.1:9102", None)
    assert Endpoint.from_settings(RunSettings()) is None
