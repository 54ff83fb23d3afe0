"""Federated Newton-CG over sessions does what it does by Flower messages, and survives crashes and losses.

The real server and client code run in this process, the streams are real gRPC on loopback.
"""

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from server.federation.checkpoints import CheckpointStore
from server.federation.state import FederationState, Phase
from strategies.messages import SESSION, UNLEARN, WHOAMI
from strategies.sessions.endpoint import LISTEN_S, Endpoint
from strategies.sessions.session_grid import SessionGrid
from tests.deletion_service import free_port
from tests.federation import InProcessFederation, client, federations
from tests.kills import Killed
from tests.sessions import SessionFederation, Vanished
from unlearning.methods.method import ClientSite, Instruction, Reply
from unlearning.methods.newton_cg import NewtonCg
from unlearning.requests import DeletionRequest, Granularity, Status, Target
from unlearning.tasks import load_site

SETTINGS: dict[str, Any] = {
    "num_clients": 3,
    "rounds": 1,
    "recovery_max_rounds": 0,
    "max_examples": 150,
    "attack_samples": 10,
    "weight_decay": 0.01,
}
LONG_SOLVE: dict[str, Any] = {"iterations": 4, "tolerance": 0.0, "trust_radius": 1e6, "damping": 1.0}
"""A gradient, four products and four preconditioned residuals."""

Making = Callable[..., SessionFederation]
Served = Mapping[str, tuple[SessionFederation, DeletionRequest]]
Step = Callable[[NewtonCg, Instruction, ClientSite], Reply]


@pytest.fixture(autouse=True, scope="module")
def one_computes_at_a_time() -> Iterator[None]:
    """PyTorch's forward mode is one for the process, and these clients are threads of one."""
    lock = threading.Lock()
    original = NewtonCg.client_step

    def step(self: NewtonCg, instruction: Instruction, site: ClientSite) -> Reply:
        with lock:
            return original(self, instruction, site)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NewtonCg, "client_step", step)
        yield


def small(directory: Path, settings: Mapping[str, Any]) -> SessionFederation:
    """A federation that may hold sessions, unless its address for them is empty."""
    address = {"session_address": f"127.0.0.1:{free_port()}"}
    return SessionFederation(directory, {**SETTINGS, **address, **settings})


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Making]:
    with federations(tmp_path, small) as made:
        yield made


@pytest.fixture(scope="module")
def served(one_computes_at_a_time: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """By transport: a federation of the logistic model that has forgotten client 2, and the request."""
    with federations(tmp_path_factory.mktemp("served"), small) as make:
        yield both_transports(make)


def both_transports(make: Making, model: str = "logistic", **parameters: Any) -> Served:
    """Serve the same deletion over sessions and by messages."""
    over = {"session": make("session", model=model)}
    over["messages"] = make("messages", model=model, session_address="")
    return {name: (one, forget_client_2(one, **parameters)) for name, one in over.items()}


def forget_client_2(federation: InProcessFederation, **parameters: Any) -> DeletionRequest:
    """Run a training round, file the request, and run on until it is served."""
    federation.run()
    return federation.forget(client("2"), "newton-cg", **{**LONG_SOLVE, **parameters})


def unlearning_of(federation: InProcessFederation, request: DeletionRequest) -> dict[str, Any]:
    """What the report says of the unlearning."""
    found: dict[str, Any] = federation.report(request.id)["unlearning"]
    return found


def kinds(federation: InProcessFederation) -> list[str]:
    return [message.metadata.message_type for message in federation.grid.sent]


def have_the_same_iterates(over: Served) -> None:
    """The model to the bit and every residual, though over the session graphs are kept between products."""
    session, messages = (unlearning_of(*one) for one in over.values())
    assert session["findings"] == messages["findings"]
    assert len(session["findings"]["solve 1"]["residuals"]) > 2
    hashes = [request.result["model_hash_unlearned"] for _, request in over.values()]
    assert hashes[0] == hashes[1]
    sent = kinds(over["session"][0])
    assert sent.count(SESSION) == len(session["participants"])
    assert UNLEARN not in sent
    assert session["rounds"] == messages["rounds"]


@pytest.mark.slow
def test_both_transports_give_the_same_iterates(served):
    """Of the logistic model."""
    have_the_same_iterates(served)


@pytest.mark.slow
def test_both_transports_give_the_same_iterates_of_a_network(make):
    """Whose products take rounding of their own."""
    have_the_same_iterates(both_transports(make, "cnn", iterations=2, local_iterations=3))


def test_bytes_of_the_session_are_in_the_reports_cost(served):
    """Invitations, frames and accounts; and less than by messages, which carry the model each time."""
    cost = {name: unlearning_of(*one) for name, one in served.items()}
    vectors = 8 * 650 * 9  # nine vectors each way to and from two clients, in float32, of 650 parameters
    assert vectors < cost["session"]["bytes_received"] < 1.2 * cost["messages"]["bytes_received"]
    assert vectors < cost["session"]["bytes_sent"] < 0.7 * cost["messages"]["bytes_sent"]
    assert cost["session"]["seconds"] > 0
    assert cost["session"]["peak_memory"]["client_bytes"] > 2**26  # from the accounts


def test_the_clients_accounts_are_kept_with_the_round(served):
    """How many instructions each answered and how long it computed, for the record."""
    federation, _ = served["session"]
    (record,) = (record for record in federation.ledger.rounds() if record.kind == "unlearning")
    accounts = record.metrics["session"]
    assert {name: account["instructions"] for name, account in accounts.items()} == {"0": 9, "1": 9}
    assert all(0 < account["seconds_computing"] <= account["seconds"] for account in accounts.values())


ROUNDS: dict[str, Any] = {
    "rounds": 3,
    "recovery_max_rounds": 2,
    "recovery_tolerance": 0.0,
    "transport": "session",
}


@pytest.mark.parametrize(
    "method",
    ["puf-regular", *(pytest.param(name, marks=pytest.mark.slow) for name in ("retrain", "newton-cg"))],
)
def test_whole_federations_give_the_same_model_over_both_transports(make, method):
    """Training, measuring, unlearning, recovery and notices: to the bit, and a message by Flower a process only."""
    hashes = {}
    for transport in ("session", "messages"):
        federation = make(f"{transport}-rounds", **{**ROUNDS, "transport": transport})
        federation.run(rounds=2)
        federation.file(client("2"), method)
        hashes[transport] = federation.run().parameters.tobytes()
        if transport == "session":
            assert set(kinds(federation)) == {WHOAMI, SESSION}
    assert hashes["session"] == hashes["messages"]


def test_what_is_forgotten_ends_the_process_that_held_it(make):
    """A site that forgets some of its samples answers from another process afterwards; the others stay."""
    federation = make("forgetting", **ROUNDS)
    federation.run(rounds=2)
    before = kinds(federation).count(SESSION)
    ids = load_site(federation.settings.task(), 1).train.ids[:5].tolist()
    federation.file(Target(Granularity.SAMPLE, "1", sample_ids=frozenset(ids)))
    federation.run()
    invited = [
        message.metadata.dst_node_id
        for message in federation.grid.sent
        if message.metadata.message_type == SESSION
    ][before:]
    assert invited.count(1002) > max(invited.count(1001), invited.count(1003))


@pytest.mark.parametrize("exchanges", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_a_server_that_died_in_a_session_goes_on_in_a_new_one(make, served, monkeypatch, exchanges):
    """From the checkpoint after that many exchanges, to the same bits; nothing is asked twice."""
    _, whole = served["session"]
    expected = whole.result["model_hash_unlearned"]
    save = CheckpointStore.save

    def dying(self: CheckpointStore, state: FederationState, **given: Any) -> None:
        save(self, state, **given)
        method_state = state.deletion.method_state if state.deletion else None
        if state.phase is Phase.UNLEARNING and method_state and method_state.exchanges == exchanges:
            raise Killed

    killed = make("killed")
    killed.run()
    request = killed.file(client("2"), "newton-cg", **LONG_SOLVE)
    monkeypatch.setattr(CheckpointStore, "save", dying)
    with pytest.raises(Killed):
        killed.run()
    monkeypatch.setattr(CheckpointStore, "save", save)
    killed.new_grid()
    killed.run()
    done = killed.ledger.requests.get(request.id)
    assert (done.status, done.result["model_hash_unlearned"]) == (Status.COMPLETED, expected)
    assert kinds(killed).count(SESSION) == 2


@pytest.mark.parametrize("loss", [RuntimeError("killed"), Vanished()], ids=["process", "machine"])
@pytest.mark.slow
def test_a_client_lost_in_a_session_is_named_in_the_report(make, monkeypatch, loss):
    """The solve goes on over those that remain, whether Flower notices the loss or only the stream."""
    monkeypatch.setattr("server.app.SessionGrid", partial(SessionGrid, reconnect_s=0.3))
    # The lost client's process never ends.
    monkeypatch.setattr("strategies.sessions.session_grid.ENDING_S", 0.5)
    step = NewtonCg.client_step

    def failing(self: NewtonCg, instruction: Instruction, site: ClientSite) -> Reply:
        if instruction.operation == "product" and len(site.own) == smallest:
            raise loss
        return step(self, instruction, site)

    federation = make("session")
    federation.run()
    smallest = min(federation.checkpoint().num_examples[name] for name in ("0", "1"))
    monkeypatch.setattr(NewtonCg, "client_step", failing)
    request = federation.forget(client("2"), "newton-cg", **LONG_SOLVE)
    unlearning = unlearning_of(federation, request)
    (gone,) = (name for name in ("0", "1") if federation.checkpoint().num_examples[name] == smallest)
    assert unlearning["findings"]["clients lost during the solve"].startswith(gone)
    assert unlearning["findings"]["clients whose curvature was used"] == [{"0": "1", "1": "0"}[gone]]


def test_a_port_that_is_taken_fails_the_attempt_and_not_the_federation(make, monkeypatch):
    """The request waits for another try; training goes on."""
    assert Endpoint.listen.__kwdefaults__ == {"wait_s": LISTEN_S}
    monkeypatch.setitem(Endpoint.listen.__kwdefaults__, "wait_s", 1.0)  # a minute: an earlier run may end
    federation = make("session", max_attempts=1)
    federation.run()
    port = int(federation.settings.session_address.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)):
        request = federation.file(client("2"), "newton-cg", **LONG_SOLVE)
        federation.run(rounds=2)
    failed = federation.ledger.requests.get(request.id)
    assert (failed.status, failed.retryable) == (Status.FAILED, True)
    assert "Cannot listen for sessions" in failed.reason
    assert federation.checkpoint().training_rounds == 2
