"""What arrives is kept in files that no other program finds and no crash leaves."""

import os

from unlearning.runtime.spool import SpoolFile, make_spool


def test_what_was_added_is_read_and_no_name_is_left(tmp_path):
    """Also where it came in pieces."""
    file = SpoolFile(tmp_path, 6)
    file.extend(b"one")
    file.extend(memoryview(b"two"))
    assert len(file) == 6
    assert file.mapped()[:] == b"onetwo"
    assert list(tmp_path.iterdir()) == []


def test_room_is_taken_for_what_will_come_and_not_for_all_that_is_announced(tmp_path):
    """At most 16 MiB ahead of what has arrived. Where more comes than was expected it is kept all the same."""
    small, large, wrong = SpoolFile(tmp_path, 5000), SpoolFile(tmp_path, 2**40), SpoolFile(tmp_path, 1)
    for file, most in ((small, 2**13), (large, 2**24), (wrong, 2**13)):
        file.extend(b"x" * 3000)
        file.extend(b"y" * 2000)
        assert os.fstat(file._file.fileno()).st_blocks * 512 <= most
        assert file.mapped()[:] == b"x" * 3000 + b"y" * 2000


def test_what_a_process_left_that_died_is_erased_at_the_next_start(tmp_path):
    """Where a file system cannot do without names."""
    (tmp_path / "arriving").mkdir()
    (tmp_path / "arriving" / "left").write_bytes(b"half a model")
    assert list(make_spool(tmp_path / "arriving").iterdir()) == []
    assert (tmp_path / "arriving").stat().st_mode & 0o777 == 0o700
