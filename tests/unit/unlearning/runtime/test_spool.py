"""What arrives is kept in files that no other program finds and no crash leaves."""

import os

import pytest

from unlearning.runtime.spool import SpoolFile, make_spool


def test_what_was_added_is_read_and_no_name_is_left(tmp_path):
    """Also where it came in pieces."""
    file = SpoolFile(tmp_path, 6)
    file.extend(b"one")
    file.extend(memoryview(b"two"))
    assert len(file) == 6
    assert file.mapped()[:] == b"onetwo"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("expected", "taken"),
    [
        (5000, [(0, 4000), (4000, 1000)]),
        (2**40, [(0, 4000), (4000, 4000)]),
        (1, [(0, 1), (1, 0)]),  # more comes, and is kept all the same
    ],
)
def test_room_is_taken_a_step_ahead_of_what_has_come_and_never_more_than_will(
    tmp_path, monkeypatch, expected, taken
):
    """Steps of 4,000 bytes here. A disk that gives none ahead is written to all the same."""
    asked = []
    monkeypatch.setattr("unlearning.runtime.spool._AT_ONCE", 4000)
    monkeypatch.setattr(os, "posix_fallocate", lambda _, *room: asked.append(room) or os.write(-1, b""))
    file = SpoolFile(tmp_path, expected)
    file.extend(b"x" * 3000)
    file.extend(b"y" * 2000)
    assert asked == taken
    assert file.mapped()[:] == b"x" * 3000 + b"y" * 2000


def test_what_is_announced_takes_no_room(tmp_path):
    """But for 16 MiB of it."""
    file = SpoolFile(tmp_path, 2**40)
    file.extend(b"x" * 5000)
    assert os.fstat(file._file.fileno()).st_blocks * 512 <= 2**24


def test_what_a_process_left_that_died_is_erased_at_the_next_start(tmp_path):
    """Where a file system cannot do without names."""
    (tmp_path / "arriving").mkdir()
    (tmp_path / "arriving" / "left").write_bytes(b"half a model")
    assert list(make_spool(tmp_path / "arriving").iterdir()) == []
    assert (tmp_path / "arriving").stat().st_mode & 0o777 == 0o700
