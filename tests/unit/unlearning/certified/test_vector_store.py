"""Vectors at rest: what comes back, what is refused, and what is gone."""

import stat
from pathlib import Path

import numpy as np
import pytest

from unlearning.certified import UnitVectors, VectorStore, create_key, read_key
from unlearning.errors import CheckpointError, ConfigurationError, DataError

VECTORS = UnitVectors(("alice", "bob"), np.arange(8, dtype=np.float32).reshape(2, 4))


@pytest.fixture(params=["plain", "encrypted"])
def key(request: pytest.FixtureRequest, tmp_path: Path) -> bytes | None:
    return create_key(tmp_path / "keys" / "key") if request.param == "encrypted" else None


def stored(tmp_path: Path, key: bytes | None) -> VectorStore:
    store = VectorStore(tmp_path / "vectors", key)
    store.put(VECTORS)
    return store


def test_vectors_come_back_to_the_bit(tmp_path: Path, key: bytes | None) -> None:
    """In the order asked for, in another process's store, in their dtype."""
    stored(tmp_path, key)
    found = VectorStore(tmp_path / "vectors", key).get(["bob", "alice"])
    assert found.units == ("bob", "alice")
    np.testing.assert_array_equal(found.vectors, VECTORS.vectors[::-1])
    assert found.vectors.dtype == np.float32


def test_an_erased_vector_is_gone(tmp_path: Path, key: bytes | None) -> None:
    """No file is left of it, the other stays, and erasing again does no harm."""
    store = stored(tmp_path, key)
    store.erase(["alice"])
    store.erase(["alice"])
    assert len(list((tmp_path / "vectors").iterdir())) == 1
    assert "alice" not in store
    assert "bob" in store
    with pytest.raises(DataError, match="'alice'"):
        store.get(["alice"])


def test_an_erased_file_is_overwritten_first(tmp_path: Path, key: bytes | None) -> None:
    """A second name of the same file shows zeros."""
    store = stored(tmp_path, key)
    (tmp_path / "link").hardlink_to(next(iter((tmp_path / "vectors").iterdir())))
    size = (tmp_path / "link").stat().st_size
    store.erase(VECTORS.units)
    assert (tmp_path / "link").read_bytes() == bytes(size)


def test_an_encrypted_file_shows_nothing(tmp_path: Path) -> None:
    """Neither the vector's bytes nor the unit's name, and twice the same vector differs."""
    store = stored(tmp_path, create_key(tmp_path / "key"))
    first = {path.name: path.read_bytes() for path in (tmp_path / "vectors").iterdir()}
    store.put(VECTORS)
    for path in (tmp_path / "vectors").iterdir():
        assert path.read_bytes() != first[path.name]
        for row in VECTORS.vectors:
            assert row.tobytes() not in path.read_bytes()
        assert b"alice" not in path.read_bytes()
        assert "alice" not in path.name


def test_a_wrong_key_is_refused(tmp_path: Path) -> None:
    """And so is no key at all, or a key for plain files."""
    stored(tmp_path, create_key(tmp_path / "key"))
    other = create_key(tmp_path / "other")
    with pytest.raises(CheckpointError, match="another one"):
        VectorStore(tmp_path / "vectors", other).get(["alice"])
    with pytest.raises(CheckpointError, match="with the key"):
        VectorStore(tmp_path / "vectors").get(["alice"])
    VectorStore(tmp_path / "plain").put(VECTORS)
    with pytest.raises(CheckpointError, match="without the key"):
        VectorStore(tmp_path / "plain", other).get(["alice"])


def test_an_altered_or_renamed_file_is_refused(tmp_path: Path) -> None:
    """One flipped bit, or bob's file under alice's name."""
    key = create_key(tmp_path / "key")
    store = stored(tmp_path, key)
    one, two = sorted((tmp_path / "vectors").iterdir())
    content = bytearray(one.read_bytes())
    one.write_bytes(two.read_bytes())
    content[-1] ^= 1
    two.write_bytes(content)
    for unit in VECTORS.units:
        with pytest.raises(CheckpointError, match="altered"):
            store.get([unit])


def test_a_key_file_is_its_owners_alone(tmp_path: Path) -> None:
    """Mode 0600 from the start; one that others may read, or that is no key, is refused."""
    path = tmp_path / "key"
    key = create_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_key(path) == key
    path.chmod(0o640)
    with pytest.raises(ConfigurationError, match="0640"):
        read_key(path)
    path.chmod(0o600)
    path.write_bytes(b"short")
    with pytest.raises(ConfigurationError, match="5 bytes"):
        read_key(path)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_key(tmp_path / "none")


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    """What it encrypts would be lost."""
    key = create_key(tmp_path / "key")
    with pytest.raises(ConfigurationError, match="exists"):
        create_key(tmp_path / "key")
    assert read_key(tmp_path / "key") == key


def test_no_units_are_no_vectors(tmp_path: Path) -> None:
    """A question without a unit has no answer."""
    with pytest.raises(DataError, match="No unit"):
        stored(tmp_path, None).get([])
