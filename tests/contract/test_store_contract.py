"""What every store of kept arrays keeps to: in a directory, in memory, in Flower's context."""

import tracemalloc

import numpy as np
import pytest
from flwr.app import RecordDict

from client.context_memory import ContextEntries
from unlearning.errors import CheckpointError
from unlearning.runtime.stores import DirectoryStore, MappedStore, MemoryStore, keep_newest, newest


@pytest.fixture(params=["directory", "memory", "context"])
def store(request, tmp_path):
    return {
        "directory": lambda: DirectoryStore(tmp_path / "kept"),
        "memory": MemoryStore,
        "context": lambda: MappedStore(ContextEntries(RecordDict(), "method")),
    }[request.param]()


def arrays(value: float) -> dict[str, np.ndarray]:
    return {"parameters": np.full(3, value, dtype=np.float32), "count": np.array(7)}


def test_what_was_saved_is_loaded(store):
    """Names, values and types come back."""
    store.save("a", 4, arrays(1.5))
    loaded = store.load("a", 4)
    assert set(loaded) == {"parameters", "count"}
    np.testing.assert_array_equal(loaded["parameters"], arrays(1.5)["parameters"])
    assert loaded["parameters"].dtype == np.float32
    assert int(loaded["count"]) == 7


def test_an_entry_of_the_same_round_is_written_over(store):
    """A round that is done again leaves one entry, the later one."""
    store.save("a", 4, arrays(1.0))
    store.save("a", 4, arrays(2.0))
    assert store.rounds("a") == [4]
    assert store.load("a", 4)["parameters"][0] == 2.0


def test_keys_and_rounds_are_listed_in_order(store):
    """Keys by name, rounds by number and not by their digits."""
    for key, number in (("b", 10), ("a", 2), ("b", 9), ("b", 100)):
        store.save(key, number, arrays(0.0))
    assert store.list_keys() == ["a", "b"]
    assert store.rounds("b") == [9, 10, 100]


@pytest.mark.parametrize("key", ["../up", "a/b", ".", "..", "ä ö", "x" * 200, "%41", "CON"])
def test_any_client_id_is_a_key(store, key):
    """Ids are strangers' text: none leaves the store or meets another."""
    store.save(key, 1, arrays(1.0))
    store.save("other", 1, arrays(2.0))
    assert store.list_keys() == sorted([key, "other"])
    assert store.load(key, 1)["parameters"][0] == 1.0


def test_keys_that_agree_in_their_first_letters_are_kept_apart(store):
    """Long ids are shortened in file names, and still differ."""
    store.save("x" * 199 + "1", 1, arrays(1.0))
    store.save("x" * 199 + "2", 1, arrays(2.0))
    assert store.load("x" * 199 + "1", 1)["parameters"][0] == 1.0


def test_what_is_erased_is_gone(store):
    """All entries of one key, none of another; where nothing is there it is no error, for it is done after a crash."""
    store.erase("a")
    store.erase_rounds("a", until=3)
    assert store.list_keys() == []
    for key in ("a", "b"):
        store.save(key, 1, arrays(1.0))
    store.erase("a")
    assert store.list_keys() == ["b"]
    assert store.rounds("a") == []
    with pytest.raises(CheckpointError):
        store.load("a", 1)


def test_rounds_are_erased_up_to_one_and_beyond_one(store):
    """`until` is erased with those before it, `beyond` itself stays."""
    for number in range(1, 7):
        store.save("a", number, arrays(number))
    store.erase_rounds("a", until=2, beyond=5)
    assert store.rounds("a") == [3, 4, 5]


def test_the_room_it_takes_grows_with_what_is_kept_and_shrinks_when_erased(store):
    """At least the arrays' own bytes; nothing after everything is erased."""
    assert store.num_bytes() == 0
    store.save("a", 1, {"parameters": np.zeros(1000, dtype=np.float32)})
    one = store.num_bytes()
    store.save("a", 2, {"parameters": np.zeros(1000, dtype=np.float32)})
    assert 4000 <= one < store.num_bytes()
    store.erase("a")
    assert store.num_bytes() == 0


def test_the_newest_entry_before_a_round_is_found(store):
    """A round that is done again must not see what its first time has left."""
    for number in (3, 5):
        store.save("a", number, arrays(number))
    assert newest(store, "b") is None
    number, found = newest(store, "a", before=5) or (0, {})
    assert (number, found["parameters"][0]) == (3, 3.0)
    assert (newest(store, "a") or (0, {}))[0] == 5


def test_only_the_newest_entries_are_kept(store):
    """Two rounds stay; one from beyond the present round, of a history that was given up, does not."""
    for number in (1, 2, 3):
        keep_newest(store, "a", number, arrays(number))
    assert store.rounds("a") == [2, 3]
    store.save("a", 9, arrays(9.0))
    keep_newest(store, "a", 4, arrays(4.0))
    assert store.rounds("a") == [3, 4]


def test_a_damaged_entry_is_an_error(tmp_path):
    """Half a file is said to be damaged and not taken for arrays."""
    store = DirectoryStore(tmp_path)
    store.save("a", 1, arrays(1.0))
    (path,) = tmp_path.glob("*/*.npz")
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(CheckpointError):
        store.load("a", 1)


def test_an_entry_of_a_directory_is_written_and_read_a_piece_at_a_time(tmp_path):
    """Beside the numbers themselves it takes hardly any memory, of an update as long as the model."""
    store, update = DirectoryStore(tmp_path), np.arange(12_000_000, dtype=np.float32)
    tracemalloc.start()
    try:
        store.save("a", 1, {"update": update})
        peak_of_writing = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        found = store.load("a", 1)["update"]
        peak_of_reading = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert np.array_equal(found, update)
    assert peak_of_writing < update.nbytes / 2
    assert peak_of_reading < update.nbytes * 1.5
