"""The figures that Wu et al. published, from `published.yaml`, to stand beside what is measured here."""

from pathlib import Path
from typing import Any

import yaml

Key = tuple[str, str, str, str, str]
Published = tuple[float, float, float, float]

_FOUND: dict[str, Any] = yaml.safe_load(
    Path(__file__).with_name("published.yaml").read_text(encoding="utf-8")
)

TIME_SAVED: float = _FOUND["time_saved"]
TABLES: dict[tuple[str, str], tuple[str, str]] = {
    (one["partition"], one["case"]): (one["title"], one["what"]) for one in _FOUND["tables"]
}
"""A table's title and what it is about, by partition and what is deleted."""
PUBLISHED: dict[Key, Published] = {
    (one["partition"], one["case"], *name.split()): tuple(row)
    for one in _FOUND["tables"]
    for name, row in one["rows"].items()
}
"""Test accuracy ± deviation and attack ± deviation by partition, what is deleted, graph, data set and method."""
