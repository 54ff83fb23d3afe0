"""What arrives is kept in files that no other program finds and no crash leaves."""

from unlearning.runtime.spool import SpoolFile, make_spool


def test_what_was_added_is_read_and_no_name_is_left(tmp_path):
    """Also where it came in pieces."""
    file = SpoolFile(tmp_path)
    file.extend(b"one")
    file.extend(memoryview(b"two"))
    assert len(file) == 6
    assert file.mapped()[:] == b"onetwo"
    assert list(tmp_path.iterdir()) == []


def test_what_a_process_left_that_died_is_erased_at_the_next_start(tmp_path):
    """Where a file system cannot do without names."""
    (tmp_path / "arriving").mkdir()
    (tmp_path / "arriving" / "left").write_bytes(b"half a model")
    assert list(make_spool(tmp_path / "arriving").iterdir()) == []
    assert (tmp_path / "arriving").stat().st_mode & 0o777 == 0o700
