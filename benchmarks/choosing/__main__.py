"""Makes the tables and picture on choosing a method and the comparisons of `flower-unlearn plan`, from docs/results.

python -m benchmarks.choosing
"""

import json
from pathlib import Path

import typer

from benchmarks.choosing.measured import CASES, comparison
from benchmarks.choosing.page import with_advice, with_distances
from benchmarks.choosing.picture import draw
from server.requests.comparisons import FILE, Comparison
from unlearning.runtime.json_codec import to_plain

PAGE = Path("docs/explanation-choosing-a-method.md")
DISTANCES = Path("docs/results/distances.md")
PICTURE = Path("docs/pictures/choosing.png")


def comparisons() -> dict[str, Comparison]:
    """Return all comparisons by their key."""
    return {case.key: comparison(case) for case in CASES}


def for_plans(found: dict[str, Comparison]) -> str:
    """Return the content of the package's file: the comparisons that plans show."""
    items = [to_plain(found[case.key]) for case in CASES if case.in_plans]
    return json.dumps(items, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Write all four."""
    found = comparisons()
    PAGE.write_text(with_advice(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")
    distances = with_distances(DISTANCES.read_text(encoding="utf-8"), CASES, found)
    DISTANCES.write_text(distances, encoding="utf-8")
    FILE.write_text(for_plans(found), encoding="utf-8")
    draw(CASES, found, PICTURE)
    typer.echo(f"{PAGE}, {DISTANCES}, {PICTURE}, {FILE}")


if __name__ == "__main__":
    typer.run(main)
