"""What the version before archives wrote goes on being read: `tests/data/state_before_archives.tar.xz`, written by it.

state/      a state directory: r-000001 is completed, with its certificate; the server was killed between two
            exchanges of r-000002, by newton-cg; beside it what a client, a peer and a method's store keep
full.npz    a checkpoint with something in every field
"""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from client.memory import DirectoryMemory
from client.peer.items import RELEASE, Item, Kind
from client.peer.journal import DirectoryJournal
from server.certificate.checks import Outcome, check_report, check_signature
from server.certificate.document import decode as read_certificate
from server.federation.checkpoints import decode
from server.federation.shadow_store import ShadowStore
from server.federation.state import FederationState, Phase, PhaseCost
from tests.federation import InProcessFederation
from unlearning.archive import pack, unpack
from unlearning.certified.privacy_accountant import AccountedRelease
from unlearning.errors import CheckpointError, VersionMismatch
from unlearning.parameters import content_hash
from unlearning.plain import from_plain, to_plain
from unlearning.requests import Forget, Granularity, Status, Target
from unlearning.stores import DirectoryStore
from unlearning.verification.discrimination import Estimate
from unlearning.verification.measurement import Measurement

DATA = Path(__file__).parents[1] / "data"
SETTINGS: dict[str, Any] = {
    "num_clients": 3,
    "max_examples": 60,
    "recovery_max_rounds": 1,
    "attack_samples": 8,
    "shadow_federations": 4,
    "prepare": "federaser every=1",
    "weight_decay": 0.01,
    "rounds": 2,
}


def unpacked(directory: Path) -> Path:
    shutil.unpack_archive(
        DATA / "state_before_archives.tar.xz", directory
    )  # tarfile's filters begin with 3.11.4
    return directory


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where it was unpacked; to be read only."""
    return unpacked(tmp_path_factory.mktemp("before"))


@pytest.fixture(scope="module")
def full(written: Path) -> bytes:
    return (written / "full.npz").read_bytes()


def entries(content: bytes) -> dict[str, Any]:
    """What a file of the version before holds; its JSON is `meta`."""
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    return {**arrays, "meta": json.loads(arrays["meta"].tobytes())}


def file_of(entries: dict[str, Any]) -> bytes:
    """The inverse of `entries`."""
    text = np.frombuffer(json.dumps(entries["meta"]).encode(), dtype=np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, **{**entries, "meta": text})
    return buffer.getvalue()


def test_a_deletion_goes_on_where_the_version_before_was_killed(tmp_path: Path) -> None:
    """From the method's state in the checkpoint to the end, and the ledger stays whole.

    The request that lay at client 1's site comes in; it names a sample that there is not.
    """
    one = InProcessFederation(unpacked(tmp_path) / "state", SETTINGS)
    before = one.checkpoint()
    assert before is not None
    assert before.deletion is not None
    assert before.deletion.method_state is not None
    assert (before.phase, before.deletion.method_state.exchanges) == (Phase.UNLEARNING, 2)
    done = one.run()
    completed, begun, from_a_site = one.ledger.list_requests()
    assert (completed.status, begun.status) == (Status.COMPLETED, Status.COMPLETED)
    assert (from_a_site.status, from_a_site.submitted_role) == (Status.FAILED, "site")
    assert done.exclusions.clients.keys() == {"2"}
    assert not one.ledger.verify()
    again = one.checkpoint()
    assert again is not None
    assert content_hash(again.parameters) == content_hash(done.parameters)
    one.close()


def check_full(state: FederationState) -> None:
    """Whether everything is there that was in the fields of `full.npz`."""
    assert (state.round, state.training_rounds, state.phase) == (7, 6, Phase.RECOVERING)
    assert (state.exclusions.clients, state.exclusions.classes) == (
        {"1": Forget(everything=True)},
        frozenset({2}),
    )
    assert (state.num_examples, state.prepared_since) == ({"0": 10, "3": 12}, {"fedau": 1})
    assert (state.generations, state.event_sequence) == ({"fedau": "r-000001-1"}, 12)
    np.testing.assert_array_equal(state.parameters, np.arange(5, dtype=np.float32))
    batch = state.deletion
    assert batch is not None
    assert batch.targets == (Target(Granularity.SAMPLE, "3", frozenset({"a", "b"})),)
    assert (batch.request_ids, batch.participants) == (("r-000001",), ("0", "3"))
    assert batch.parameters == {"unlearning_rate": 2.0, "none": None}
    assert (batch.hash_before, batch.hash_unlearned, batch.accepted_loss) == ("ab", "cd", 10.0)
    assert (batch.target_score, batch.scores, batch.scores_before) == (0.9, {"test": 0.5}, {"test": 0.75})
    method = batch.method_state
    assert method is not None
    assert (method.exchanges, method.finished) == (1, True)
    assert method.values == {"k": 3, "nan": float("inf")}
    assert method.findings == {"σ": 0.5, "list": [1, "x"]}
    np.testing.assert_array_equal(method.arrays["v"], np.eye(2))
    np.testing.assert_array_equal(method.arrays["cg.x"], np.arange(3))
    assert batch.before is not None
    np.testing.assert_array_equal(batch.before.parameters, np.full(5, 2))
    assert batch.before.num_examples == {"0": 11}
    (measured,) = batch.measurements["r-000001"]
    assert (measured.stage, measured.round, measured.not_measured) == (
        "before",
        6,
        ("retained data: nobody",),
    )
    assert measured.test is not None
    assert measured.forgotten is not None
    assert (measured.test.score, measured.forgotten.loss) == (0.91, None)
    assert measured.figures["yeom"].tpr == Estimate(0.1, 0.0, 0.2)
    outputs = batch.outputs_before["test"]
    assert (outputs.handles.dtype, outputs.posteriors.dtype) == (np.float64, np.float32)
    np.testing.assert_array_equal(outputs.posteriors, [[0.25, 0.75]])
    assert batch.shadow_fits is not None
    np.testing.assert_array_equal(batch.shadow_fits["test"].inside.counts, [4.0])
    assert batch.shadow_notes == {"3": "offline"}
    assert (batch.recovery_cost, batch.measuring_cost) == (PhaseCost(exchanges=2), PhaseCost(exchanges=3))
    assert (batch.unlearning_cost.seconds, batch.unlearning_cost.peak_memory.client_bytes) == (2.5, 7)


def test_every_field_of_a_checkpoint_is_read_and_kept(full: bytes) -> None:
    """From the old form, and once more from the new one."""
    check_full(decode(full))
    check_full(decode(pack(decode(full))))


def test_a_checkpoint_of_version_2_is_read() -> None:
    """A field's name is its name in the file: one that is renamed keeps its old name as an alias."""
    check_full(decode((DATA / "checkpoint_version_2.npz").read_bytes()))


def test_a_checkpoint_of_a_still_earlier_version_takes_the_defaults(full: bytes) -> None:
    """Such as were written before the gate, shadow models, memory and preparations."""
    meta = entries(full)["meta"]
    for name in ("prepared_since", "generations"):
        del meta[name]
    for name in ("before", "scores", "scores_before", "accepted_loss", "shadow_fits", "shadow_cost"):
        del meta["batch"][name]
    del meta["batch"]["unlearning_cost"]["peak_memory"]
    del meta["batch"]["measurements"]["r-000001"][0]["figures"]
    state = decode(file_of({**entries(full), "meta": meta}))
    assert (state.prepared_since, state.generations) == ({}, {})
    assert state.deletion is not None
    assert (state.deletion.before, state.deletion.shadow_fits, state.deletion.accepted_loss) == (
        None,
        None,
        0.0,
    )
    assert state.deletion.unlearning_cost == PhaseCost(
        exchanges=1, seconds=2.5, bytes_sent=10, bytes_received=20
    )
    assert state.deletion.measurements["r-000001"][0].figures == {}


def test_shadow_fits_of_an_earlier_version_are_left_out_with_a_note(full: bytes) -> None:
    """They were fitted to rounded confidences; the deletion goes on without LiRA, and its report says why."""
    older = {**entries(full), "shadow.test.inside-means": np.zeros(1)}
    back = decode(file_of(older)).deletion
    assert back is not None
    assert back.shadow_fits is None
    assert "of an earlier version" in back.shadow_notes[""]
    assert back.shadow_notes["3"] == "offline"


@pytest.mark.parametrize("change", ["older", "newer", "a field more"])
def test_what_cannot_be_read_is_refused_with_a_sentence(
    full: bytes, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version that is not known, and a field that is not known, which may say what must not be forgotten."""
    meta = entries(full)["meta"]
    if change == "newer":
        monkeypatch.setattr("unlearning.archive.VERSION", 3)
        content = pack(decode(full))
        expected = "version 3, this program reads version 2. Use the flower-unlearning that wrote it"
    elif change == "older":
        content = file_of({**entries(full), "meta": {**meta, "version": 0}})
        expected = "version 0, this program reads version 1"
    else:
        content = file_of({**entries(full), "meta": {**meta, "mood": "good"}})
        expected = "mood: Unexpected keyword argument"
    with pytest.raises(VersionMismatch if change == "newer" else CheckpointError, match=expected):
        decode(content)


def test_shadow_federations_are_read(written: Path) -> None:
    """Models, whose dtype stays, and all that is said of them."""
    state = ShadowStore(written / "state").load()
    assert state is not None
    (path,) = (written / "state" / "shadows").iterdir()
    found = entries(path.read_bytes())
    np.testing.assert_array_equal(np.stack(state.models), found["models"])
    assert state.models[0].dtype == np.float32
    assert (state.rounds, state.took_part) == (1, found["meta"]["took_part"])
    assert state.cost.bytes_sent == found["meta"]["cost"]["bytes_sent"]
    assert state.cost.peak_memory.server_bytes == found["meta"]["cost"]["peak_memory"]["server_bytes"]


def test_the_certificate_and_the_report_are_what_they_were(written: Path) -> None:
    """Signature and hash hold, and each measurement comes out of its type as it went in."""
    directory = written / "state" / "reports" / "r-000001"
    file = read_certificate((directory / "certificate.json").read_bytes())
    key = load_pem_public_key((written / "state" / "certificate-signing.pub").read_bytes())
    assert check_signature(file, key).outcome is Outcome.HOLDS  # type: ignore[arg-type]  # it is an Ed25519 key
    assert check_report(file.certificate, directory / "report.json").outcome is Outcome.HOLDS
    report = json.loads((directory / "report.json").read_text(encoding="utf-8"))
    for item in report["measurements"]:
        assert json.dumps(to_plain(from_plain(Measurement, item)), sort_keys=True) == json.dumps(
            item, sort_keys=True
        )


def test_what_a_client_remembers_is_read(written: Path) -> None:
    """Tombstones, keys, and what was filed at its site."""
    clients = written / "state" / "clients"
    assert DirectoryMemory(clients / "0").tombstones() == Forget(classes=frozenset({3}))
    assert len(DirectoryMemory(clients / "2").keys()) == 1
    (waiting,) = DirectoryMemory(clients / "1").outbox()
    assert from_plain(Target, waiting["target"]) == Target(Granularity.SAMPLE, "1", frozenset({"a"}))


def test_a_peers_journal_is_read(written: Path) -> None:
    """Items in their order, the model, and what its requests forget; nothing is moved aside."""
    journal = DirectoryJournal(written / "state" / "clients" / "0")
    items = journal.items()
    assert [item.id for item in items] == ["member/1/", "request/0/0-key", "correction/0/0-key"]
    assert items[2].seal is not None
    assert items[2].seal.content == "content"
    np.testing.assert_array_equal(items[2].vector, np.arange(3.0))
    release = from_plain(AccountedRelease, items[2].values["account"][RELEASE], exactly=True)
    assert (release.unmet, release.after) == (("one",), "bb")
    assert release.sensitivity is not None
    assert release.sensitivity.constants is not None
    assert journal.targets() == {"0-key": Forget(sample_ids=frozenset({"a", "b"}))}
    model = journal.model()
    assert model is not None
    assert (model.round, model.applied, model.has_trained) == (4, frozenset({"correction/0/0-key"}), True)
    assert model.vector.dtype == np.float32


def test_what_a_foreign_item_says_stays_what_it_said() -> None:
    """Whatever names its values have, none is taken for an array."""
    values = {"$array": "vector", "a": {"vector": None, "b.c": [1, [2]], "arrays": {"vector": ["a"]}}}
    item = Item(kind=Kind.MEMBER, origin="1", values=values, vector=np.ones(2))
    back = unpack(Item, pack(item), older=dict)
    assert back.values == values
    np.testing.assert_array_equal(back.vector, np.ones(2))


def test_a_methods_store_is_read(written: Path) -> None:
    """Named arrays alone, as they go on being written."""
    found = DirectoryStore(written / "state" / "kept" / "a store").load("client 0", 17)
    np.testing.assert_array_equal(found["update"], np.arange(4, dtype=np.float32))
    assert found["clients"].tolist() == ["0", "1"]
