from pathlib import Path

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def test_the_results_stay_small():
    """Pages, small pictures and compressed rows: a clone is not made of them."""
    assert sum(path.stat().st_size for path in RESULTS.iterdir()) < 3_000_000


def test_every_picture_is_shown_by_a_page():
    """A picture that no page shows goes."""
    pages = "".join(path.read_text(encoding="utf-8") for path in RESULTS.glob("*.md"))
    assert [path.name for path in RESULTS.glob("*.png") if f"({path.name})" not in pages] == []
