"""One number says what fits together: the sentence, state directories and archives."""

import numpy as np
import pytest

from client.memory import DirectoryMemory, _private
from client.peer.journal import Journal, PeerModel
from server.state_directory.files import private_state
from unlearning.errors import CheckpointError, VersionMismatch
from unlearning.protocol import PROTOCOL_VERSION, VERSION_FILE, check_protocol
from unlearning.runtime import archive


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (
            None,
            "The site has a protocol version before 1 and the server has 1: upgrade flower-unlearning at the site.",
        ),
        (
            0,
            "The site has a protocol version before 1 and the server has 1: upgrade flower-unlearning at the site.",
        ),
        (2, "The site has protocol version 2 and the server has 1: upgrade flower-unlearning at the server."),
    ],
)
def test_the_sentence_names_both_versions_and_the_side_to_upgrade(found, sentence):
    """A message without a number is of a program from before there were numbers."""
    with pytest.raises(VersionMismatch) as caught:
        check_protocol(found, other="the site", own="the server")
    assert str(caught.value) == sentence


@pytest.mark.parametrize("found", ["1", 1.0, True, [1], {}, float("nan"), -1, 10**30, ""])
def test_what_is_no_number_of_a_version_is_refused(found):
    """It is the sender's, so it may be anything; the sentence stays one."""
    with pytest.raises(VersionMismatch) as caught:
        check_protocol(found, other="the site", own="the server")
    assert len(str(caught.value)) < 120


@pytest.mark.parametrize("use", [private_state, DirectoryMemory, Journal])
@pytest.mark.parametrize("newer", [str(PROTOCOL_VERSION + 1), "?", ""])
def test_a_state_directory_of_a_newer_version_is_not_used(tmp_path, use, newer):
    """Of server, site and peer alike; the file that says so stays."""
    (tmp_path / VERSION_FILE).write_text(newer)
    _private.cache_clear()
    with pytest.raises(VersionMismatch, match=f"this program has {PROTOCOL_VERSION}: upgrade"):
        use(tmp_path)
    assert (tmp_path / VERSION_FILE).read_text() == newer


@pytest.mark.parametrize("use", [private_state, DirectoryMemory, Journal])
@pytest.mark.parametrize("older", [None, "0"])
def test_a_state_directory_says_the_version_that_has_used_it(tmp_path, use, older):
    """One of before is taken over."""
    if older is not None:
        (tmp_path / VERSION_FILE).write_text(older)
    _private.cache_clear()
    use(tmp_path)
    assert (tmp_path / VERSION_FILE).read_text() == str(PROTOCOL_VERSION)


def test_a_peers_files_of_a_newer_version_are_not_put_aside(tmp_path, monkeypatch):
    """They are whole: the peer does not start, instead of going on without an item."""
    journal = Journal(tmp_path)
    with monkeypatch.context() as newer:
        newer.setattr(archive, "VERSION", archive.VERSION + 1)
        journal.put_model(PeerModel(round=1, vector=np.ones(2)))
        (tmp_path / "peer" / "items").mkdir()
        content = (tmp_path / "peer" / "model.npz").read_bytes()
        (tmp_path / "peer" / "items" / "000000.npz").write_bytes(content)
    with pytest.raises(VersionMismatch, match=r"000000.npz cannot be read. It is of version 3"):
        journal.items()
    with pytest.raises(VersionMismatch, match="It is of version 3"):
        Journal(tmp_path)
    assert (tmp_path / "peer" / "items" / "000000.npz").exists()


@pytest.mark.parametrize("version", ["x", None, 0])
def test_a_version_that_never_was_is_damage(version):
    """Only a higher number is a newer program's."""
    with pytest.raises(CheckpointError):
        archive.check_version(version)
