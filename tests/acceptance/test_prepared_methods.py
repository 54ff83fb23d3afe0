"""Methods that prepare in training rounds, through live requests: what is kept, for how long, and at which kills.

One line a method below; where a restart is meant, all nodes are new and only files are left.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from client.memory import DirectoryMemory
from server.federation.checkpoints import CheckpointStore
from server.federation.preparations import Preparations
from server.ledger import LedgerWriter
from strategies.messages import MEASURE, TRAIN, UNLEARN, WHOAMI, named_arrays
from tests.cases import LONG
from tests.federation import InProcessFederation, client
from tests.kills import Killer
from unlearning.errors import ConfigurationError, UnsupportedRequest
from unlearning.parameters import content_hash
from unlearning.requests import Status
from unlearning.runtime.stores import DirectoryStore

PREPARED = [
    pytest.param("pga", "pga", id="pga"),
    pytest.param("federaser", "federaser every=2; pga", id="federaser"),
    pytest.param("fedau-learning", "fedau-learning; pga", id="fedau-learning"),
    pytest.param("sisa", "sisa shards=1 slices=2", id="sisa"),
    pytest.param("hf-online", "hf-online clients=1,2; pga", id="hf-online"),
    pytest.param("exact-ridge", "exact-ridge l2=0.5", id="exact-ridge"),
]
"""Method and the setting `prepare`."""

PREPARED_QUICKLY = [
    one if one.id in ("pga", "sisa") else pytest.param(*one.values, id=one.id, marks=LONG) for one in PREPARED
]
"""The same; one that keeps updates and one that keeps models are in the default tests."""

ASKS_CLIENTS = [one for one in PREPARED if one.id in ("federaser", "sisa")]
"""Those that fail when no client answers: of the four one whose exchange repeats rounds, and one of several models."""

SMALL = {"num_clients": 3, "max_examples": 150, "recovery_max_rounds": 1, "attack_samples": 20}

DURABLE = (
    (CheckpointStore, "save"),
    (CheckpointStore, "erase_older"),
    (LedgerWriter, "move"),
    (DirectoryStore, "save"),
    (DirectoryMemory, "add_tombstones"),
    (Preparations, "erase"),
)
"""The steps before and after which the process may die."""


def kept_files(one: InProcessFederation, of_client: str | None = None) -> dict[str, bytes]:
    """All that is kept for methods, by file: on both sides, or of one client on both sides."""
    places = [one.directory / "kept"]
    places += [
        one.directory / "clients" / name / "kept"
        for name in ([of_client] if of_client is not None else ["0", "1", "2"])
    ]
    files = [path for place in places for path in sorted(place.glob("**/*.npz"))]
    if of_client is not None:
        files = [path for path in files if "clients" in path.parts or is_of(path, of_client)]
    return {str(Path(path).relative_to(one.directory)): path.read_bytes() for path in files}


def places(one: InProcessFederation) -> set[tuple[str, ...]]:
    """What is kept, without the server's generations: the number of the attempt that counts is in their names."""
    found = (Path(name).parts for name in kept_files(one))
    return {parts[:2] + parts[3:] if parts[0] == "kept" else parts for parts in found}


def is_of(path: Path, client_id: str) -> bool:
    """Whether a file on the server is a client's, or names it."""
    with np.load(path) as entry:
        return path.parent.name == client_id or ("clients" in entry and client_id in entry["clients"])


@dataclass(frozen=True, slots=True)
class Whole:
    """What a run with a deletion after its second round comes to, and the number of places where it may be killed."""

    model: str
    files: dict[str, bytes]
    places: set[tuple[str, ...]]
    num_steps: int


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Whole]:
    """Runs a federation with a deletion by this method, once for all tests that compare with it."""

    @cache
    def run(method: str, prepare: str) -> Whole:
        with pytest.MonkeyPatch.context() as patch:
            killer = Killer(patch, DURABLE)
            one = InProcessFederation(tmp_path_factory.mktemp("whole") / "server", asked(method, prepare))
            try:
                model = content_hash(one.run().parameters)
            finally:
                one.close()
        return Whole(model, kept_files(one), places(one), killer.passed)

    return run


def asked(method: str, prepare: str) -> dict[str, Any]:
    """The settings of three rounds, with a deletion after the second."""
    return {**SMALL, "prepare": prepare, "rounds": 3, "requests": f"at=2 client=1 method={method}"}


@pytest.mark.parametrize(("method", "prepare"), PREPARED_QUICKLY)
@pytest.mark.slow
def test_two_deletions_one_after_the_other_with_restarts_between(federation, undisturbed, method, prepare):
    """What is kept outlives all processes, and nothing is kept of the forgotten on either side.

    The first deletion ends in the model and the files of one run; the second starts from its model.
    """
    whole = undisturbed(method, prepare)
    one = federation(prepare=prepare, **SMALL)
    for rounds in (1, 2):
        one.run(rounds=rounds)
        one.new_grid()
    assert kept_files(one, of_client="1")
    one.forget(client("1"), method, rounds=3)
    between = one.checkpoint()
    assert content_hash(between.parameters) == whole.model
    assert kept_files(one) == whole.files
    assert kept_files(one, of_client="1") == {}
    assert kept_files(one, of_client="2")
    one.new_grid()
    done = one.forget(client("2"), method, rounds=4)
    assert done.result["model_hash_before"] == content_hash(between.parameters)
    assert done.result["model_hash_unlearned"] != done.result["model_hash_before"]
    assert kept_files(one, of_client="2") == {}
    assert kept_files(one, of_client="0")


def test_a_cancelled_request_leaves_no_trace(federation):
    """Model and files are those of a federation that was never asked, whatever is kept."""
    outcomes = []
    for name in ("asked", "not-asked"):
        one = federation(name=name, prepare="federaser; pga; hf-online clients=1,2", **SMALL)
        one.run(rounds=2)
        if name == "asked":
            request = one.file(client("1"), "federaser")
            one.ledger.decisions.cancel(request.id, by="test", now=request.created_at)
        state = one.run(rounds=3)
        outcomes.append((content_hash(state.parameters), kept_files(one)))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize(("method", "prepare"), ASKS_CLIENTS)
def test_a_failed_request_leaves_no_trace(federation, method, prepare):
    """All clients die with the method's message: model and files are as they were, and a retry succeeds."""
    one = federation(prepare=prepare, max_attempts=1, **SMALL)
    before = one.run(rounds=3)
    files = kept_files(one)
    request = one.file(client("1"), method)
    one.grid.broken.update(one.node(name) for name in "012")
    one.run(rounds=3)
    failed = one.ledger.requests.get(request.id)
    assert failed.status is Status.FAILED
    assert content_hash(one.checkpoint().parameters) == content_hash(before.parameters)
    assert kept_files(one) == files
    one.grid.broken.clear()
    one.ledger.decisions.retry(request.id, by="test", now=failed.updated_at)
    one.run(rounds=4)
    assert one.ledger.requests.get(request.id).status is Status.COMPLETED


def test_federaser_replays_what_it_wrote_before(federation):
    """After a deletion the history holds calibrated updates under new rounds, then those of recovery."""
    one = federation(prepare="federaser", **SMALL)
    one.run(rounds=3)
    one.file(client("1"), "federaser")
    state = one.run(rounds=3)
    store = DirectoryStore(one.directory / "kept" / "federaser" / state.generations["federaser"])
    assert store.list_keys() == ["0", "2"]
    assert store.rounds("0") == [1, 4, 5, 6]  # the first as it was, two exchanges, one of recovery
    assert [int(store.load("0", number)["trained_in"]) for number in store.rounds("0")] == [1, 2, 3, 6]


def test_federaser_asks_those_of_the_stored_round_and_not_a_sample_of_today(federation):
    """With two of four clients in each round: everybody whose update is stored calibrates it."""
    settings = {**SMALL, "num_clients": 4, "fraction": 0.5}
    one = federation(prepare="federaser", **settings)
    one.run(rounds=4)
    report = one.report(one.forget(client("1"), "federaser", rounds=4).id)
    findings = report["unlearning"]["findings"]
    assert findings["left out of calibrations, their stored updates not used"] == "none"
    assert findings["stored rounds replayed"] == 4


def test_sisa_gives_the_bits_of_a_federation_that_never_had_the_client(federation):
    """Model and kept shard models, with two shards of two slices and a client of the second slice."""
    settings = {**SMALL, "num_clients": 6, "recovery_max_rounds": 0, "rounds": 4}
    settings |= {"prepare": "sisa shards=2 slices=2 slice_rounds=2"}
    one, without = federation(name="with", **settings), federation(name="without", **settings)
    without.grid.offline.add(without.node("2"))
    expected = without.run()
    one.run()
    one.forget(client("2"), "sisa", rounds=4)
    assert content_hash(one.checkpoint().parameters) == content_hash(expected.parameters)
    unlearning = [record for record in one.ledger.rounds() if record.kind == "unlearning"]
    assert [record.metrics["participants"] for record in unlearning] == [["0", "4"]]
    mine, theirs = (
        {path.parts[-2:]: path.read_bytes() for path in (f.directory / "kept").glob("**/shard%20[01]/*.npz")}
        for f in (one, without)
    )
    assert mine
    assert mine == theirs


def test_shards_cannot_be_switched_on_in_a_federation_that_has_begun(federation):
    """Its model is a single one; the message says what to give instead."""
    one = federation(**SMALL)
    one.run(rounds=1)
    with pytest.raises(ConfigurationError):
        one.run(rounds=2, prepare="sisa")


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(1, id="some"),
        pytest.param(4, id="many", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(("method", "prepare"), PREPARED_QUICKLY)
def test_a_kill_at_any_durable_step_changes_no_bit(
    federation, undisturbed, monkeypatch, method, prepare, kills
):
    """For steps spread over a run with a deletion: start again from what is there, compare with no kill."""
    whole = undisturbed(method, prepare)
    killer = Killer(monkeypatch, DURABLE)
    steps = {1 + (2 * number + 1) * whole.num_steps // (2 * kills) for number in range(kills)}
    copies = killer.copy(federation(name="copied", **asked(method, prepare)), steps)
    assert {*copies} == steps
    for step in copies:
        one = federation(name=f"killed-{step}", **asked(method, prepare))
        state = one.run()
        (request,) = one.ledger.requests.select()
        about = f"killed at step {step} of {whole.num_steps}"
        assert request.status is Status.COMPLETED, about
        assert content_hash(state.parameters) == whole.model, about
        assert places(one) == whole.places, about
        one.close()


def sent_to_train(one: InProcessFederation, number: int) -> list[Message]:
    """The messages of a training or recovery round."""
    of_round = [message for message in one.grid.sent if message.metadata.group_id == str(number)]
    return [message for message in of_round if message.metadata.message_type == TRAIN]


def vectors_sent(one: InProcessFederation, number: int) -> set[tuple[int, ...]]:
    """The shapes of HF-online's vectors in a round's messages."""
    name = "prepared.hf-online.vectors"
    arrays = [named_arrays(message.content) for message in sent_to_train(one, number)]
    return {found[name].shape for found in arrays if name in found}


def test_hf_online_adds_a_vector_and_contacts_no_client(federation):
    """The unlearned model is the kept vector added; no message belongs to the deletion but measurements."""
    one = federation(prepare="hf-online", **SMALL)
    before = one.run(rounds=3)
    (entry,) = one.directory.glob("kept/hf-online/0/1/0000000003.npz")
    with np.load(entry) as file:
        expected = before.parameters + file["vector"]
    sent = len(one.grid.sent)
    done = one.forget(client("1"), "hf-online", rounds=3)
    assert done.result["model_hash_unlearned"] == content_hash(expected)
    kinds = {m.metadata.message_type for m in one.grid.sent[sent:] if m.metadata.group_id == "4"}
    assert kinds <= {MEASURE, WHOAMI}
    assert UNLEARN not in {message.metadata.message_type for message in one.grid.sent}


def test_hf_online_sends_no_vector_in_the_first_round_and_none_of_the_forgotten(federation):
    """One a client from the second round on; after the deletion one less, in recovery already."""
    one = federation(prepare="hf-online", **{**SMALL, "recovery_target": 1.0})
    one.run(rounds=2)
    one.file(client("1"), "hf-online")
    state = one.run(rounds=3)
    assert state.round == 5  # two of training, the deletion, one of recovery, one of training
    assert [vectors_sent(one, number) for number in (1, 2, 4, 5)] == [
        set(),
        {(3, 650)},
        {(2, 650)},
        {(2, 650)},
    ]
    assert {name for m in sent_to_train(one, 1) for name in named_arrays(m.content)} == {"vector"}


def test_after_a_deletion_by_another_method_hf_online_is_not_prepared(federation):
    """The vectors are of a model that is no more; with them another client would be forgotten wrongly."""
    one = federation(prepare="hf-online; pga", **SMALL)
    one.run(rounds=2)
    one.file(client("1"), "pga")
    state = one.run(rounds=3)
    assert "hf-online" not in state.prepared_since
    assert not list(one.directory.glob("kept/hf-online/**/*.npz"))
    assert vectors_sent(one, state.round) == set()
    with pytest.raises(UnsupportedRequest):
        one.file(client("2"), "hf-online")
