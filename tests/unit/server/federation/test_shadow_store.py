"""The shadow federations on disk."""

import numpy as np
import pytest

from server.federation.shadow_store import ShadowState, ShadowStore
from server.federation.state import PhaseCost
from unlearning.requests import Exclusions, Granularity, Target
from unlearning.runtime.peak_memory import PeakMemory

STATE = ShadowState(
    models=(np.arange(3, dtype=np.float32), np.ones(3, dtype=np.float32)),
    seed=4,
    rounds=2,
    exclusions=Exclusions().including([Target(Granularity.CLASS, class_label=1)]),
    took_part={"0": 2, "1": 1},
    cost=PhaseCost(
        exchanges=2,
        seconds=1.5,
        bytes_sent=10,
        bytes_received=20,
        peak_memory=PeakMemory(client_bytes=7, server_bytes=9),
    ),
)


@pytest.fixture
def store(tmp_path) -> ShadowStore:
    return ShadowStore(tmp_path)


def test_a_state_survives_a_round_trip(store):
    """All of it; the models keep their dtype."""
    store.save(STATE)
    back = store.load()
    np.testing.assert_array_equal(np.stack(back.models), np.stack(STATE.models))
    assert back.models[0].dtype == np.float32
    assert (back.seed, back.rounds, back.exclusions) == (4, 2, STATE.exclusions)
    assert (back.took_part, back.cost) == (STATE.took_part, STATE.cost)


def test_only_the_newest_round_stays(store, tmp_path):
    """Older shadow models would only be more to erase."""
    store.save(STATE)
    store.save(ShadowState(models=STATE.models, seed=4, rounds=3))
    assert store.rounds() == 3
    assert len(list((tmp_path / "shadows").iterdir())) == 1


def test_nothing_is_there_before_the_first_round_and_after_erasure(store, tmp_path):
    """Not even an empty file."""
    assert (store.rounds(), store.load(), store.erase()) == (0, None, 0)
    store.save(STATE)
    assert store.erase() == 1
    assert (store.rounds(), store.load()) == (0, None)
    assert list((tmp_path / "shadows").iterdir()) == []


def test_a_damaged_file_counts_as_none(store, tmp_path):
    """Shadow models can be trained anew, so no error stops the federation."""
    store.save(STATE)
    (path,) = (tmp_path / "shadows").iterdir()
    path.write_bytes(path.read_bytes()[:100])
    assert store.load() is None
