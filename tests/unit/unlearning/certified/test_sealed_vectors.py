"""Vectors at rest: what comes back, and what is refused."""

import stat
from pathlib import Path

import numpy as np
import pytest

from unlearning.certified.sealed_vectors import create_key, read_key, seal, unseal
from unlearning.errors import CheckpointError, ConfigurationError

VECTOR = np.arange(4, dtype=np.float32)


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "encrypted"])
def test_a_vector_comes_back_to_the_bit(tmp_path: Path, is_encrypted: bool) -> None:
    """In its dtype."""
    key = create_key(tmp_path / "key") if is_encrypted else None
    found = unseal(seal(VECTOR, "alice", key), "alice", key)
    np.testing.assert_array_equal(found, VECTOR)
    assert found.dtype == np.float32


def test_a_vector_of_before_there_was_a_key_is_read(tmp_path: Path) -> None:
    """It is plain; what is written from now on is not."""
    found = unseal(seal(VECTOR, "alice", None), "alice", create_key(tmp_path / "key"))
    np.testing.assert_array_equal(found, VECTOR)


def test_an_encrypted_entry_shows_nothing(tmp_path: Path) -> None:
    """Neither the vector's bytes nor the unit's name, and twice the same vector differs."""
    key = create_key(tmp_path / "key")
    one, two = (seal(VECTOR, "alice", key)["sealed"].tobytes() for _ in range(2))
    assert one != two
    assert VECTOR.tobytes() not in one
    assert b"alice" not in one


def test_a_wrong_key_is_refused(tmp_path: Path) -> None:
    """And so is no key at all."""
    entry = seal(VECTOR, "alice", create_key(tmp_path / "key"))
    with pytest.raises(CheckpointError):
        unseal(entry, "alice", create_key(tmp_path / "other"))
    with pytest.raises(CheckpointError):
        unseal(entry, "alice", None)


@pytest.mark.parametrize("position", [0, 10, -1], ids=["its kind", "its nonce", "its last byte"])
def test_an_altered_or_renamed_entry_is_refused(tmp_path: Path, position: int) -> None:
    """One flipped bit, or bob's entry under alice's name."""
    key = create_key(tmp_path / "key")
    with pytest.raises(CheckpointError):
        unseal(seal(VECTOR, "bob", key), "alice", key)
    content = seal(VECTOR, "alice", key)["sealed"].copy()
    content[position] ^= 1
    with pytest.raises(CheckpointError):
        unseal({"sealed": content}, "alice", key)


def test_a_key_file_is_its_owners_alone_and_is_never_overwritten(tmp_path: Path) -> None:
    """Mode 0600 from the start; one that others may read, that is no key or is missing, is refused."""
    path = tmp_path / "key"
    key = create_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(ConfigurationError):
        create_key(path)
    assert read_key(path) == key
    path.chmod(0o640)
    with pytest.raises(ConfigurationError):
        read_key(path)
    path.chmod(0o600)
    path.write_bytes(b"short")
    with pytest.raises(ConfigurationError):
        read_key(path)
    with pytest.raises(ConfigurationError):
        read_key(tmp_path / "none")
