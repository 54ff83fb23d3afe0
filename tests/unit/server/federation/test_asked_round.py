"""The number of a round of secure aggregation outlives the process that asked for it, until its result is saved."""

from pathlib import Path

import numpy as np
import pytest

from server.federation.checkpoints import AskedRound
from server.federation.state import FederationState


def at(number: int) -> FederationState:
    """A state after the round `number`."""
    return FederationState(parameters=np.zeros(1), round=number)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "asked-round"


def test_a_round_that_was_saved_is_followed_by_the_next(path: Path) -> None:
    """Of training, which is the next one, and of a measurement, which has the number of the round before."""
    asked = AskedRound(path)
    for number, saved in ((4, 4), (4, 4), (5, 5)):
        asked.begin(number)
        assert path.read_text() == str(number)
        asked.end(at(saved))
        assert not path.exists()
        assert asked.skip(at(saved)).round == saved


def test_where_none_was_asked_no_file_is_touched(path: Path) -> None:
    """As in every commit of a run without secure aggregation."""
    path.write_text("5", encoding="ascii")
    AskedRound(path).end(at(5))
    assert path.exists()


def test_a_round_of_which_nothing_was_saved_is_skipped(path: Path) -> None:
    """Also where an earlier state was saved since: a deletion's attempt failed."""
    asked = AskedRound(path)
    asked.begin(5)
    asked.end(at(4))
    assert path.exists()
    assert asked.skip(at(4)).round == 5


@pytest.mark.parametrize(
    ("written", "round_after"), [("5", 5), ("4", 5), ("9", 9), ("", 5), ("x²", 5), ("²", 5)]
)
def test_a_later_process_skips_what_was_asked(path: Path, written: str, round_after: int) -> None:
    """From the state after round 4: a round, a measurement of that state, an older checkpoint, a damaged file."""
    path.write_text(written, encoding="utf-8")
    later = AskedRound(path)
    later.resume(at(4))
    assert later.skip(at(4)).round == round_after
    later.end(at(4))
    assert path.exists()


def test_without_a_file_nothing_is_skipped(path: Path) -> None:
    asked = AskedRound(path)
    asked.resume(at(4))
    assert asked.skip(at(4)).round == 4
