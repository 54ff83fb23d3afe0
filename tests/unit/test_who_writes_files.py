"""Files are made by `durable_files`: private, durable, of the service's user also where root makes them."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WRITERS = {"mkdir", "write_text", "write_bytes", "touch", "copyfile", "copy", "copy2", "copytree"}
OF_PATHS = {"copyfile", "copy", "copy2", "copytree"}
"""Functions of shutil; others have methods of these names."""
ELSEWHERE = {
    "unlearning/runtime/archive.py": "members of a file that its caller has opened",
    "unlearning/runtime/durable_files.py": "makes them",
    "server/federation/preparations.py": "links and copies of the ServerApp, which the service starts",
    "server/operations/host_setup.py": "files that are carried to a site",
    "client/site_setup.py": "files that are carried to the server",
    "strategies/installation.py": "systemd's units are root's",
    "server/cli/app_commands.py": "an app's source, in its author's directory",
    "server/cli/verification.py": "where the caller says, which may be a device or a pipe",
}


def own_writers(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        name, owner = node.func.attr, ast.unparse(node.func.value)
        modes = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
        opens = name == "open" and owner != "os" and any(str(mode)[:1] in "wax" for mode in modes if mode)
        if opens or (name in WRITERS and (name not in OF_PATHS or owner == "shutil")):
            yield f"{path.relative_to(ROOT)}:{node.lineno} {owner}.{name}"


@pytest.mark.parametrize("package", ["unlearning", "strategies", "client", "server"])
def test_files_are_made_in_one_way(package):
    """What opens, copies or makes a directory by itself leaves a service with a file of root's."""
    found = []
    for path in sorted((ROOT / package).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name not in ELSEWHERE:
            found += own_writers(path)
    assert found == []
