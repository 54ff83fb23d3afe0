import json
import re
from pathlib import Path

import pytest

from benchmarks.tables import as_json

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def test_the_results_stay_small():
    """Pages, small pictures and compressed rows: a clone is not made of them."""
    assert sum(path.stat().st_size for path in RESULTS.iterdir()) < 3_000_000


def test_figures_keep_their_values_and_lists_have_one_line():
    value = {"a": [1, -2.5, 1e-300], "b": [], "c": [[1], [2, None]], "d": ["1,\n  2"], "e": [{"f": [0.1]}]}
    assert json.loads(as_json(value)) == value
    assert ' "a": [1, -2.5, 1e-300],' in as_json(value).splitlines()


def test_every_picture_is_shown_by_a_page():
    """A picture that no page shows goes."""
    pages = "".join(path.read_text(encoding="utf-8") for path in RESULTS.glob("*.md"))
    assert [path.name for path in RESULTS.glob("*.png") if f"({path.name})" not in pages] == []


@pytest.mark.parametrize("name", ["README.md", "claims.md"])
def test_every_figure_of_a_claim_is_on_its_page(name):
    """Digit by digit, so that a table that is made again takes its claims along."""
    rows = re.findall(
        r"(?m)^\|[^|]+\|([^|]+)\| \[[^]]+\]\(([^)#]+)\) \|", (RESULTS / name).read_text("utf-8")
    )
    assert rows
    missing = [
        (figure, page)
        for figures, page in rows
        for figure in re.findall(r"\d+(?:[.,]\d+)*(?:e[+-]\d+)?", figures)
        if not re.search(rf"(?<![\d.]){re.escape(figure)}(?![\d.])", (RESULTS / page).read_text("utf-8"))
    ]
    assert missing == []


def test_every_page_of_results_is_in_the_list():
    """With the command that made it."""
    listed = (RESULTS / "pages.md").read_text("utf-8")
    own = {"README.md", "claims.md", "pages.md"}
    assert [
        path.name for path in RESULTS.glob("*.md") if f"({path.name})" not in listed and path.name not in own
    ] == []
