"""The one writer of the benchmarks' pages: Markdown tables, figures as JSON beside them, and what they depend on."""

import json
import lzma
import platform
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from subprocess import run
from typing import Any

import torch
from rich.console import Console

from unlearning.runtime.durable_files import write_atomically

Row = dict[str, Any]


_MOST_UNPACKED = 16_000
"""Characters of a page's figures that are kept as they are."""
_NUMBERS = re.compile(r"\[(\s+[^][{}\"]+)\]")


def measured(work: Path, parts: Mapping[str, Callable[[], Iterable[Row]]]) -> list[Row]:
    """Return the rows of all parts in their order; those that are in the file `work` are not measured again."""
    found: dict[str, list[Row]] = json.loads(work.read_text(encoding="utf-8")) if work.exists() else {}
    for name, measure in parts.items():
        if name not in found:
            found[name] = list(measure())
            work.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(work, json.dumps(found).encode())
            print(f"{name}: done", flush=True)
    return [row for name in parts for row in found[name]]


def commit() -> str:
    """Return the short hash of the commit that runs, or "unknown"."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    return run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def provenance() -> str:
    """Return machine, versions and commit in one line."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return (
        f"{platform.machine()}, {device}, {torch.get_num_threads()} thread(s), torch {torch.__version__}, "
        f"commit {commit()}"
    )


def to_six_digits(value: Any) -> Any:
    """Return JSON's values with floats to six digits, which is more than a table shows."""
    return json.loads(json.dumps(value), parse_float=lambda digits: float(f"{float(digits):.6g}"))


def as_json(value: Any) -> str:
    """Return indented JSON in which a list of numbers has one line."""
    return _NUMBERS.sub(lambda found: f"[{' '.join(found[1].split())}]", json.dumps(value, indent=1))


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a Markdown table; a first heading may be empty."""
    return [_line(headings), _line(["---"] * len(headings)), *map(_line, rows)]


def between_marks(page: str, name: str, lines: Iterable[str]) -> str:
    """Return the page with these lines in place of those between the marks of a name.

    Raises:
        ValueError: the page lacks the marks, or has them twice.
    """
    parts = re.split(rf"(?s)<!-- {re.escape(name)} -->.*<!-- end of {re.escape(name)} -->", page)
    if len(parts) != 2:
        raise ValueError(f"The page has no place for its table: <!-- {name} --> … <!-- end of {name} -->.")
    made = "\n".join(lines)
    return f"<!-- {name} -->\n{made}\n<!-- end of {name} -->".join(parts)


def median(rows: Iterable[Mapping[str, Any]], key: str) -> str:
    """Return the median of a column to three digits; a dash where no row has a value."""
    values = [row[key] for row in rows if row[key] is not None]
    return f"{statistics.median(values):.3g}" if values else "–"


def grouped(rows: Iterable[Row], keys: Sequence[str]) -> dict[tuple[Any, ...], list[Row]]:
    """Return the rows of equal values under `keys` together, in the order of first appearance."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return groups


def write(output: Path, lines: Iterable[str], found: Mapping[str, Any]) -> None:
    """Write `OUTPUT.md` and, with what they depend on, all figures; show the page.

    The figures go to `OUTPUT.json`, or packed to `OUTPUT.json.xz` where they are many.
    """
    page = "\n".join(lines) + "\n"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.with_name(output.name + ".md").write_text(page, encoding="utf-8")
    content = as_json({"provenance": provenance(), **to_six_digits(found)})
    plain, packed = output.with_name(output.name + ".json"), output.with_name(output.name + ".json.xz")
    if len(content) > _MOST_UNPACKED:
        packed.write_bytes(compressed(f"{content}\n"))
        plain.unlink(missing_ok=True)
    else:
        plain.write_text(content + "\n", encoding="utf-8")
        packed.unlink(missing_ok=True)
    Console(emoji=False).print(page, markup=False, soft_wrap=True)


def compressed(text: str) -> bytes:
    """Return the content of an .xz file of figures, packed as tightly as digits and repeated names can be."""
    digits = {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "lp": 0, "pb": 0}
    return lzma.compress(text.encode(), filters=[digits])


def figures_of(path: Path) -> Any:
    """Return what `write` kept at `OUTPUT.json`, packed or not."""
    packed = path.with_name(path.name + ".xz")
    return json.loads(lzma.decompress(packed.read_bytes()) if packed.exists() else path.read_bytes())


def _line(cells: Sequence[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"
