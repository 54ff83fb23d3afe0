"""Checkpoints hold the whole state, are atomic, and what is damaged is not read."""

import tracemalloc
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from server.federation.checkpoints import CheckpointStore
from server.federation.state import ActiveDeletion, FederationState, Phase, PhaseCost
from unlearning.errors import CheckpointError, VersionMismatch
from unlearning.methods.costs import WorkDone
from unlearning.methods.method import Noise, UnlearningState
from unlearning.requests import Exclusions, Granularity, Target
from unlearning.runtime import archive
from unlearning.runtime.archive import pack, unpack
from unlearning.verification.figures import Measurement, SetMeasure
from unlearning.verification.observations import Outputs

TARGET = Target(Granularity.SAMPLE, "3", frozenset({"a", "b"}))
STATE = FederationState(
    parameters=np.arange(5, dtype=np.float32),
    round=7,
    training_rounds=6,
    phase=Phase.UNLEARNING,
    exclusions=Exclusions().including([Target(Granularity.CLIENT, "1")]),
    deletion=ActiveDeletion(
        request_ids=("r-000001",),
        targets=(TARGET,),
        method="puf-special",
        parameters={"unlearning_rate": 2.0},
        attempt=1,
        started_round=6,
        hash_before="ab",
        method_state=UnlearningState(
            parameters=np.ones(5, dtype=np.float32),
            exchanges=1,
            arrays={"v": np.eye(2)},
            values={"k": 3},
            work=WorkDone(rounds=2),
            noise=Noise(sigma=0.5, delta=1e-5),
        ),
        target_score=0.9,
        work=WorkDone(products=7),
        measurements={"r-000001": (Measurement(stage="before", round=6, test=SetMeasure(10, 0.5, 0.91)),)},
        outputs_before={"test": Outputs(np.array([0.5]), np.array([[0.25, 0.75]], dtype=np.float32))},
        unlearning_cost=PhaseCost(exchanges=1, seconds=2.5, bytes_sent=10, bytes_received=20),
    ),
    event_sequence=12,
)


def test_one_that_another_run_erases_meanwhile_is_not_the_newest(tmp_path, monkeypatch):
    """As where a run is submitted while another goes on; a link to nothing is an error."""
    store, read = CheckpointStore(tmp_path), CheckpointStore._read
    first = store.save(STATE, token=1)

    def erasing(self, entry):
        if entry.path == first:
            store.save(replace(STATE, round=8), token=1)
            first.unlink()
        return read(self, entry)

    monkeypatch.setattr(CheckpointStore, "_read", erasing)
    assert store.newest().round == 8
    (tmp_path / "0000000099-000001.npz").symlink_to("nowhere")
    with pytest.raises(FileNotFoundError):
        store.newest()


def test_everything_survives_a_round_trip():
    """A checkpoint holds exactly the state, the method's own memory included."""
    back = unpack(FederationState, pack(STATE))
    assert back.deletion is not None
    method = back.deletion.method_state
    assert method is not None
    np.testing.assert_array_equal(back.parameters, STATE.parameters)
    assert back.parameters.dtype == np.float32
    np.testing.assert_array_equal(method.parameters, np.ones(5))
    np.testing.assert_array_equal(method.arrays["v"], np.eye(2))
    assert (method.work, method.noise) == (WorkDone(rounds=2), Noise(sigma=0.5, delta=1e-5))
    outputs, own = back.deletion.outputs_before["test"], STATE.deletion.outputs_before["test"]
    np.testing.assert_array_equal(outputs.handles, own.handles)
    np.testing.assert_array_equal(outputs.posteriors, own.posteriors)
    assert (outputs.handles.dtype, outputs.posteriors.dtype) == (np.float64, np.float32)
    without = {"method_state": None, "outputs_before": {}}
    plain, expected = (
        replace(one, parameters=(), deletion=replace(one.deletion, **without)) for one in (back, STATE)
    )
    assert plain == expected


@pytest.mark.parametrize("size", [0, 1, archive._AT_ONCE - 1, archive._AT_ONCE, 2 * archive._AT_ONCE + 5])
def test_arrays_of_any_size_are_read_by_numpy(size):
    """They are written a piece at a time."""
    array = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    content = archive.pack_arrays({"vector": array})
    np.testing.assert_array_equal(np.load(BytesIO(content))["vector"], array)


def test_the_newest_is_read_and_only_some_are_kept(tmp_path):
    """By sequence."""
    store = CheckpointStore(tmp_path, keep=2)
    for number in range(4):
        store.save(replace(STATE, round=number), token=1)
    assert store.newest().round == 3
    assert len(list(tmp_path.glob("*.npz"))) == 2


def test_a_newer_token_goes_before_a_higher_sequence(tmp_path):
    """An old process that still writes after it was replaced does not count."""
    store = CheckpointStore(tmp_path, keep=5)
    store.save(replace(STATE, round=1), token=2)
    store.save(replace(STATE, round=99), token=1)
    assert store.newest().round == 1


def test_one_with_a_hash_in_its_name_is_read_too(tmp_path: Path) -> None:
    """As they were called: without it the federation would start from nothing, with all that it has forgotten."""
    store = CheckpointStore(tmp_path)
    path = store.save(replace(STATE, round=4), token=3)
    path.rename(tmp_path / f"{path.stem}-0123456789abcdef.npz")
    assert store.newest().round == 4
    assert store.save(STATE, token=3).name == "0000000002-000003.npz"


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty"])
def test_a_damaged_checkpoint_is_passed_over(tmp_path, damage):
    """One bit is enough."""
    store = CheckpointStore(tmp_path)
    store.save(replace(STATE, round=1), token=1)
    path = store.save(replace(STATE, round=2), token=1)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes({"flip": bytes(content), "truncate": bytes(content[:-20]), "empty": b""}[damage])
    assert store.newest().round == 1


def test_no_damaged_byte_changes_what_is_read(tmp_path: Path) -> None:
    """Wherever it is in the file: the checkpoint is passed over, or nothing is read of that byte."""
    store = CheckpointStore(tmp_path)
    store.save(replace(STATE, round=1), token=1)
    content = store.save(replace(STATE, round=2), token=1).read_bytes()
    path, passed_over = store.newest_file(), 0
    for place in range(0, len(content), 7):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        found = store.newest()
        passed_over += found.round == 1
        assert found.round == 1 or pack(found) == pack(replace(STATE, round=2)), place
    assert passed_over > len(content) / 7 / 2


def test_no_readable_checkpoint_is_an_error_and_not_a_fresh_start(tmp_path):
    """Starting from scratch would bring back what was forgotten."""
    store = CheckpointStore(tmp_path)
    path = store.save(STATE, token=1)
    path.write_bytes(b"")
    with pytest.raises(CheckpointError):
        store.newest()


def test_a_half_written_file_is_never_taken_for_a_checkpoint(tmp_path):
    """A crash while writing leaves a partial file only."""
    store = CheckpointStore(tmp_path)
    (tmp_path / ".partial-1").write_bytes(pack(STATE)[:100])
    assert store.newest() is None


def test_a_checkpoint_of_a_newer_version_is_not_passed_over(tmp_path, monkeypatch):
    """To go on from the one before would undo what the newer program did; one sentence names both versions."""
    store = CheckpointStore(tmp_path)
    store.save(STATE, token=1)
    with monkeypatch.context() as newer:
        newer.setattr(archive, "VERSION", archive.VERSION + 1)
        path = store.save(replace(STATE, round=8), token=1)
    with pytest.raises(VersionMismatch) as caught:
        store.newest()
    assert path.name in str(caught.value)


def test_a_checkpoint_is_written_without_a_second_copy_of_the_model(tmp_path: Path) -> None:
    """Memory does not grow with it while it is written; while it is read there is one."""
    state = FederationState(parameters=np.arange(12_000_000, dtype=np.float32))
    store = CheckpointStore(tmp_path)
    tracemalloc.start()
    try:
        path = store.save(state, token=1)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        assert store.newest() is not None
        peak_of_reading = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**20
    assert peak_of_reading < state.parameters.nbytes * 1.5
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
