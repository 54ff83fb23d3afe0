"""Makes the tables and the picture of docs/choosing.md and the comparisons of `flower-unlearn plan`, from docs/results.

python -m benchmarks.choosing
"""

import json
from pathlib import Path

import typer

from benchmarks.choosing.measured import CASES, comparison
from benchmarks.choosing.page import with_tables
from benchmarks.choosing.picture import draw
from server.requests.plan_data import FILE, Comparison
from unlearning.runtime.json_codec import to_plain

PAGE = Path("docs/choosing.md")
PICTURE = PAGE.with_suffix(".png")


def comparisons() -> dict[str, Comparison]:
    """Return all comparisons by their key."""
    return {case.key: comparison(case) for case in CASES}


def for_plans(found: dict[str, Comparison]) -> str:
    """Return the content of the package's file: the comparisons that plans show."""
    items = [to_plain(found[case.key]) for case in CASES if case.in_plans]
    return json.dumps(items, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Write all three."""
    found = comparisons()
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), CASES, found), encoding="utf-8")
    FILE.write_text(for_plans(found), encoding="utf-8")
    draw(CASES, found, PICTURE)
    typer.echo(f"{PAGE}, {PICTURE}, {FILE}")


if __name__ == "__main__":
    typer.run(main)
