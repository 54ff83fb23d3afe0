"""Whatever is in a peer's journal, the peer starts: what does not fit is moved aside, with one sentence."""

from pathlib import Path

import numpy as np
import pytest

from client.peer.gossip import GossipMessage, Kind
from client.peer.journal import Journal
from client.peer.known_items import KnownItems
from tests.peers import FOUR, correction_item, counting_peer, member_item, request_item, samples


def keep(directory: Path, *items: GossipMessage) -> None:
    """Put items into a journal unchecked, as the version before did."""
    journal = Journal(directory)
    journal.items()
    for item in items:
        journal.put(item)


def quarantined(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "peer" / "quarantine").glob("*"))


def test_a_stranger_without_neighbours_in_the_journal_does_not_keep_the_peer_down(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The item that the version before wrote down and could not start with."""
    keep(tmp_path, member_item("1", "0", "2"), member_item("x"), member_item("2", "1", "3"))
    peer = counting_peer("0", FOUR, Journal(tmp_path))
    assert peer.graph == FOUR
    assert quarantined(tmp_path) == ["000001.npz"]
    [record] = [one for one in caplog.records if "quarantine" in one.getMessage()]
    assert "no member" in record.getMessage()


def test_what_depends_on_an_item_that_does_not_fit_goes_with_it(tmp_path: Path) -> None:
    """A stranger's request and correction, too; the peer starts again and again."""
    keep(tmp_path, member_item("x", "0"), request_item("x"), correction_item("x", leaves=True))
    for _ in range(2):
        peer = counting_peer("0", FOUR, Journal(tmp_path))
        assert list(peer.record.items) == ["member/0/"]
        assert not peer.model.vector.any()
    assert len(quarantined(tmp_path)) == 3


def test_a_damaged_file_is_moved_aside_and_its_number_is_not_given_again(tmp_path: Path) -> None:
    """The neighbours send the item again; the ones behind it keep their order."""
    keep(tmp_path, member_item("1", "0", "2"), member_item("2", "1", "3"), member_item("3", "0", "2"))
    (tmp_path / "peer" / "items" / "000000.npz").write_bytes(b"PK\x03\x04 half a file")
    peer = counting_peer("0", FOUR, Journal(tmp_path))
    assert peer.receive(member_item("1", "0", "2"), "1")
    again = counting_peer("0", FOUR, Journal(tmp_path))
    assert list(again.record.items) == ["member/2/", "member/3/", "member/0/", "member/1/"]
    assert quarantined(tmp_path) == ["000000.npz"]


def test_a_correction_in_the_model_stays_there_though_its_item_does_not_fit(tmp_path: Path) -> None:
    """Taking it out would bring back what was forgotten; models that include it can still be mixed in."""
    peer = counting_peer("0", FOUR, Journal(tmp_path))
    correction = correction_item("1")
    for item in (member_item("1", "0", "2"), request_item("1"), correction):
        peer.receive(item, "1")
    (tmp_path / "peer" / "items" / "000002.npz").unlink()  # the request
    again = counting_peer("0", FOUR, Journal(tmp_path))
    assert correction.id not in again.record.items
    assert correction.id in again.model.applied
    np.testing.assert_array_equal(again.model.vector, [1.0, 0.0, 0.0])


def test_what_was_asked_to_be_forgotten_here_stays_forgotten_without_its_request(tmp_path: Path) -> None:
    """The request's file is lost; the target is a file of its own."""
    peer = counting_peer("0", FOUR, Journal(tmp_path))
    peer.file(samples("0", "3"), "key")
    for path in (tmp_path / "peer" / "items").glob("*.npz"):
        path.write_bytes(b"")
    again = counting_peer("0", FOUR, Journal(tmp_path))
    assert again.forget_set().sample_ids == {"3"}


def test_curvatures_are_dropped_at_the_next_start_where_a_process_ended_before_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The correction is in the model by then, and nothing would look at them again."""
    peer = counting_peer("0", FOUR, Journal(tmp_path))
    for other, neighbours in (("1", "02"), ("2", "13"), ("3", "02")):
        peer.receive(member_item(other, *neighbours), "1")
    peer.receive(request_item("1", curvature=True), "1")
    numbers = {"num_examples": 10, "deleted": 0}
    for other in "23":
        peer.receive(
            GossipMessage(
                kind=Kind.STATISTICS, origin=other, subject="1-key", values=numbers, vector=np.ones(3)
            ),
            "1",
        )
    monkeypatch.setattr(KnownItems, "drop_curvatures", _end)
    with pytest.raises(KeyboardInterrupt):
        peer.receive(correction_item("1"), "1")
    monkeypatch.undo()
    again = counting_peer("0", FOUR, Journal(tmp_path))
    assert again.model.applied == {"correction/1/1-key"}
    for journal in (again.record.items.values(), Journal(tmp_path).items()):
        kept = [item.vector for item in journal if item.kind is Kind.STATISTICS]
        assert kept == [None, None]


def _end(*_: object) -> None:
    raise KeyboardInterrupt
