"""What the user's own runs measured comes into the ledger, where plans read it, and goes with its file."""

import json
import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from server.ledger import Ledger
from server.requests.comparisons import Comparison, Figures, OwnRuns, own_comparisons
from tests.ledgers import NOW, live_at
from unlearning.requests import Granularity
from unlearning.runtime.json_codec import to_plain

FIGURES = Figures(distance=1, spread=0.5, bytes=10, seconds=1, nearer_than=("natural",))
OWN = Comparison(
    title="hospital, one client", page="", granularity=Granularity.CLIENT, num_parameters=7, num_seeds=5,
    made_on="2026-11-24", nothing=FIGURES, retrain=FIGURES, methods={"natural": FIGURES},
)  # fmt: skip


def test_plans_follow_the_file(ledger: Ledger, token: int, tmp_path: Path) -> None:
    """It comes while the federation runs, is damaged, and goes."""
    path, writer = tmp_path / "comparisons.json", live_at(ledger, token, NOW)
    runs = OwnRuns(path)
    runs.announce(ledger, writer)
    assert own_comparisons(ledger) == []
    path.write_text(json.dumps([to_plain(OWN)]))
    runs.announce(ledger, writer)
    assert own_comparisons(ledger) == [OWN]
    idle = Mock(spec=[])  # writes nothing
    runs.announce(ledger, idle)
    OwnRuns(path).announce(ledger, idle)
    path.write_text('[{"title": 3}]')
    os.utime(path, ns=(1, 1))
    runs.announce(ledger, writer)
    assert own_comparisons(ledger) == []
    path.unlink()
    runs.announce(ledger, writer)
    assert own_comparisons(ledger) == []


@pytest.mark.parametrize("text", ["{", "[1]", '[{"title": "x"}]', "\udcff"])
def test_a_damaged_file_is_no_reason_to_stop(ledger: Ledger, token: int, tmp_path: Path, text: str) -> None:
    """Plans do without it."""
    path = tmp_path / "comparisons.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    OwnRuns(path).announce(ledger, live_at(ledger, token, NOW))
    assert own_comparisons(ledger) == []
