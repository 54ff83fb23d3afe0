"""Write the tables of docs/reference-settings.md and the defaults in pyproject.toml: `make docs`."""

import ast
import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

from server.operations.retention import Retention
from strategies.settings.run_config import FIELDS, RunSettings

_ROOT = Path(__file__).parents[1]


def write_tables(page: str) -> str:
    """Return `page` with the table of each group of settings below the heading that is the group's docstring."""
    defaults = RunSettings().to_run_config()
    for group in reversed(RunSettings.__bases__):
        heading = re.escape((group.__doc__ or "").splitlines()[0].split(";")[0].rstrip("."))
        page = _with_table(page, heading, [(name, defaults[name], text) for name, text in _describe(group)])
    hints = get_type_hints(Retention, include_extras=True)
    kept = [
        (one.name.replace("_", "-"), one.default, hints[one.name].__metadata__[0])
        for one in fields(Retention)
    ]
    return _with_table(page, "Retention", kept)


def _with_table(page: str, heading: str, settings: Iterable[tuple[str, Any, str]]) -> str:
    rows = [f"| `{name}` | {_show(default)} | {text} |\n" for name, default, text in settings]
    table = "".join(["| setting | default | meaning |\n", "|---|---|---|\n", *rows])
    found = re.search(rf"(?m)^## {heading}\n\n(?:[^|#\n].*\n+)*((?:\|.*\n)+)", page)
    assert found is not None, f"docs/reference-settings.md needs the heading {heading} with a table"
    return page[: found.start(1)] + table + page[found.end(1) :]


def write_defaults(project: str) -> str:
    """Return pyproject.toml's text with every setting and its default, in the order of the definitions."""
    lines = [
        f"{name} = {json.dumps(value, ensure_ascii=False)}\n"
        for name, value in RunSettings().to_run_config().items()
    ]
    pattern = r"(?m)^(\[tool\.flwr\.app\.config\]\n(?:#.*\n)*)(?:[^\[#\n].*\n)*"
    return re.sub(pattern, lambda match: match[1] + "".join(lines), project)


FILES: Mapping[Path, Callable[[str], str]] = {
    _ROOT / "docs" / "reference-settings.md": write_tables,
    _ROOT / "pyproject.toml": write_defaults,
}


def _describe(group: type) -> Iterator[tuple[str, str]]:
    """Give the name and the sentence of each setting of a group, with those that it has from another one first."""
    for part in reversed(group.__mro__[:-1]):
        [definition] = ast.parse(inspect.getsource(part)).body
        assert isinstance(definition, ast.ClassDef)
        for field, text in zip(definition.body, definition.body[1:], strict=False):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(said))):
                    yield FIELDS[name].alias or name, " ".join(said.split())


def _show(value: Any) -> str:
    return "empty" if value == "" else f"`{str(value).lower() if isinstance(value, bool) else value}`"


if __name__ == "__main__":
    for path, write in FILES.items():
        path.write_text(write(path.read_text(encoding="utf-8")), encoding="utf-8")
