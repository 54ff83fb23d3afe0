"""The page of what deletions reveal."""

from pathlib import Path

from benchmarks.difference.__main__ import _page, _reading

STAGE = {"auc": [0.9, 0.8, 0.95], "errors": {"models": 1.2e-7}}
ROWS = {
    "samples puf-special 1": {"unlearned": STAGE, "recovered": STAGE | {"errors": {"models": 7.5}}},
    "ridge digits": {
        "lines": [{"dtype": "float64", "together": 1, "sums": 1e-9, "similar": 0.2, "classes": "6 of 6"}]
    },
    "client pga": {"failed": "no"},
    "step": {"shown": [[0.0]], "errors": [1.0]},
}


def test_each_part_has_its_line() -> None:
    """Figures with intervals, errors by what is known beside the models, and why a method cannot."""
    page = "\n".join(_page(ROWS, "words"))
    assert (
        "| puf-special | 1 | 0.90 (0.80 to 0.95) | 0.90 (0.80 to 0.95) | 1.2e-07 (models) | 7.5 (models) |"
        in page
    )
    assert "| digits | float64 | 1 | 1e-09 | 0.2 | 6 of 6 |" in page
    assert "- `pga`: no" in page


def test_what_people_wrote_of_the_figures_stays(tmp_path: Path) -> None:
    """A page that is made again keeps the section, and a first one has none."""
    page = tmp_path / "page.md"
    assert _reading(page) == ""
    page.write_text("\n".join(_page(ROWS, "It leaks.\n\nA lot.")))
    assert _reading(page) == "It leaks.\n\nA lot."
