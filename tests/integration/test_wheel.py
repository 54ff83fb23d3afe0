"""The wheel of the container image is built from what its Dockerfile copies, and nothing in it is missing."""

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import REPOSITORY

DOCKER = REPOSITORY / "deploy" / "docker"
PACKAGED = (
    "benchmarks",
    "client",
    "deploy",
    "flower_unlearning",
    "flower_unlearning_names.py",
    "server",
    "strategies",
    "unlearning",
)
pytestmark = pytest.mark.slow

IMPORT_ALL = """
import importlib, sys
from pathlib import Path
wheel, checkout, names = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
sys.path[:] = [str(wheel), *(place for place in sys.path if Path(place or ".").resolve() != checkout)]
for name in names:
    importlib.import_module(name)
ours = {name: Path(module.__file__) for name, module in sys.modules.items()
        if name.partition(".")[0] in {other.partition(".")[0] for other in names} and getattr(module, "__file__", None)}
assert set(names) <= set(ours), set(names) - set(ours)
print([str(path) for path in ours.values() if not path.is_relative_to(wheel)])
"""


def is_ignored(path: str, patterns: list[str]) -> bool:
    """As Docker decides: the last pattern counts that fits the path or a folder above it."""
    parts = path.split("/")
    above = ["/".join(parts[: count + 1]) for count in range(len(parts))]
    ignored = False
    for pattern in patterns:
        text = re.escape(pattern.removeprefix("!")).replace(r"\*\*/", "(.*/)?").replace(r"\*", "[^/]*")
        if any(re.fullmatch(text, one) for one in above):
            ignored = not pattern.startswith("!")
    return ignored


def files_below(*sources: Path) -> Iterator[Path]:
    for source in sources:
        yield from [source] if source.is_file() else (path for path in source.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the first stage of the Dockerfile has in its working directory before it installs."""
    directory = tmp_path_factory.mktemp("source")
    ignore = (DOCKER / "Dockerfile.dockerignore").read_text().splitlines()
    patterns = [line for line in ignore if line and not line.startswith("#")]
    for line in re.findall(r"(?m)^COPY (?!--from)(.+)$", (DOCKER / "Dockerfile").read_text()):
        *sources, target = line.split()
        assert target == "./" or sources == [target]  # a file or folder keeps its place
        for path in files_below(*(REPOSITORY / name for name in sources)):
            inside = path.relative_to(REPOSITORY)
            if not is_ignored(inside.as_posix(), patterns):
                (directory / inside).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, directory / inside)
    return directory


@pytest.fixture(scope="module")
def built(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel and the source distribution."""
    directory = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(directory)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return directory


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel in an empty directory."""
    directory = tmp_path_factory.mktemp("installed")
    [wheel] = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory)
    return directory


def packaged() -> set[str]:
    """Every file of the packages in the checkout."""
    found = files_below(*(REPOSITORY / name for name in PACKAGED))
    return {path.relative_to(REPOSITORY).as_posix() for path in found if "__pycache__" not in path.parts}


def test_every_file_of_the_packages_is_in_the_wheel_and_nothing_else(installed: Path) -> None:
    """Templates, styles, protocol, migrations, measured comparisons, experiments, the files of deploy/."""
    inside = {path.relative_to(installed).as_posix() for path in files_below(installed)}
    assert {name for name in inside if ".dist-info/" not in name} == packaged()


def test_every_module_of_the_wheel_can_be_imported_without_the_checkout(
    installed: Path, tmp_path: Path
) -> None:
    """In a process that has the wheel in the checkout's place, and none of its modules from anywhere else."""
    files = [path.relative_to(installed) for path in installed.rglob("*.py")]
    modules = sorted(
        ".".join(path.with_suffix("").parts).removesuffix(".__init__")
        for path in files
        if path.name != "__main__.py"
        and "migrations" not in path.parts
        and not path.name.endswith(
            "_app.py"
        )  # Flower loads those of benchmarks/speed, with their environment
    )
    command = [sys.executable, "-P", "-c", IMPORT_ALL, str(installed), str(REPOSITORY), *modules]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_the_source_distribution_has_what_the_wheel_is_built_from(built: Path, source: Path) -> None:
    """It is built from the same files."""
    [path] = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {path.relative_to(source).as_posix() for path in files_below(source)} <= inside
