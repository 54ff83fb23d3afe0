"""The pages on choosing a method and the comparisons of `flower-unlearn plan`: from the committed rows, and by hand."""

import json
import lzma
from pathlib import Path

import pytest

from benchmarks.choosing import __main__ as command
from benchmarks.choosing.advice import rendered
from benchmarks.choosing.measured import CASES, Case, comparison, rows_of
from benchmarks.choosing.page import with_advice, with_distances
from benchmarks.choosing.picture import STYLES, draw
from server.requests.comparisons import FILE, Figures
from unlearning.methods.registry import METHODS
from unlearning.requests import Granularity

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def found():
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        yield command.comparisons()


@pytest.fixture
def at_root(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.mark.usefixtures("at_root")
def test_every_figure_of_the_pages_is_that_of_the_committed_rows(found):
    """Tables that are made again are those that are there; if this fails: python -m benchmarks.choosing."""
    page = command.PAGE.read_text(encoding="utf-8")
    assert with_advice(page, found) == page
    page = command.DISTANCES.read_text(encoding="utf-8")
    assert with_distances(page, CASES, found) == page


def test_what_plan_says_is_that_of_the_committed_rows(found):
    """The package's file is made by the same command."""
    assert FILE.read_text(encoding="utf-8") == command.for_plans(found)


def row(method: str, seed: int, scores: tuple[float, float, float], size: int, **more: object) -> dict:
    named = {"method": method, "seed": seed, "setting": "", "case": "one client"}
    figures = dict(zip(("test", "retained", "forget"), scores, strict=True))
    return {**named, **figures, "bytes": size, "seconds": 2.0, "storage": 400, **more}


ROWS = [
    row("original", 0, (0.9, 0.9, 0.95), 100),
    row("original", 1, (0.9, 0.9, 0.95), 100),
    row("retrain", 0, (0.9, 0.9, 0.8), 100),
    row("retrain", 1, (0.9, 0.9, 0.7), 100),
    row("natural", 0, (0.9, 0.85, 0.82), 10),
    row("natural", 1, (0.9, 0.85, 0.66), 30),
    row("pga", 0, (0.0, 0.0, 0.0), 0, failed="it blew up"),
    row("pga", 1, (0.5, 0.9, 0.7), 20),
]


def test_the_distance_is_the_largest_of_three_and_the_mean_over_seeds(tmp_path):
    """By hand: natural 0, 5 and (2 + 4) / 2 points: 5; the Original (15 + 25) / 2 ± 5; PGA 40 where it survived."""
    packed = lzma.compress("".join(json.dumps(one) + "\n" for one in ROWS).encode())
    (tmp_path / "digits-small.jsonl.xz").write_bytes(packed)
    made = comparison(Case("made", "digits-small", "", "one client", "Made up"), tmp_path)
    assert made.nothing == Figures(distance=20, bytes=100, seconds=2, spread=7.07107, nearer_than=())
    assert made.methods["natural"] == Figures(distance=5, bytes=20, seconds=2, spread=0)
    assert made.methods["pga"] == Figures(distance=40, bytes=20, seconds=2, failed=1)
    assert (made.granularity, made.num_parameters, [*made.methods]) == (
        Granularity.CLIENT,
        100,
        ["natural", "pga"],
    )
    assert rendered("{made/natural/distance} {made/natural/bytes}", {"made": made}) == "5.0 ± 0.0 5×"


@pytest.mark.usefixtures("at_root")
def test_every_method_of_the_rows_has_a_marker_of_its_own(found, tmp_path):
    """Readers who see no colours tell them apart; the picture is drawn of all of them, and small."""
    methods = {name for one in found.values() for name in one.methods}
    assert methods <= {*STYLES} <= {*METHODS}
    assert len({marker for _, marker in STYLES.values()}) == len(STYLES)
    draw(CASES[:2], found, tmp_path / "picture.png")
    assert 5_000 < (tmp_path / "picture.png").stat().st_size < 100_000


def test_a_page_without_a_place_for_a_table_is_refused(found):
    """Else the table would be lost in silence."""
    with pytest.raises(ValueError, match="no place"):
        with_distances("# A page", CASES, found)


@pytest.mark.usefixtures("at_root")
def test_the_cases_have_rows():
    """A case whose setting was renamed would be empty."""
    for case in CASES:
        assert any(
            (one["setting"], one["case"]) == (case.setting, case.case) for one in rows_of(case.experiment)
        )
