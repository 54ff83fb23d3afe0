"""When a worker may not serve a message: variables that are read at import differ, or the installed code changed."""

import os
import sys
from collections.abc import Mapping
from importlib.metadata import distribution
from pathlib import Path

_READ_AT_IMPORT = (
    "OMP_",
    "MKL_",
    "OPENBLAS_",
    "NUMEXPR_",
    "PYTHON",
    "TORCH",
    "CUDA",
    "LD_",
    "FLWR_TELEMETRY",
    "FLWR_LOG",
)
_SET_BY_LIBRARIES = ("TORCHINDUCTOR_CACHE_DIR",)  # torch sets it itself, in every process
_PACKAGES = ("client", "strategies", "unlearning")
_DISTRIBUTIONS = ("flower-unlearning", "flwr", "torch", "numpy")


def read_at_import(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that libraries read when they are imported, so that a fork cannot change them."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_READ_AT_IMPORT) and name not in _SET_BY_LIBRARIES
    }


def difference(own: Mapping[str, str], asked: Mapping[str, str]) -> str:
    """Return a sentence on the variables that differ; empty where none does."""
    mine, theirs = read_at_import(own), read_at_import(asked)
    names = sorted(name for name in {*mine, *theirs} if mine.get(name) != theirs.get(name))
    return f"the worker was started with other values of {', '.join(names)}" if names else ""


def installed_code() -> tuple[object, ...]:
    """Return what changes when the code that a worker has imported is installed anew; takes milliseconds."""
    versions = tuple(distribution(name).version for name in _DISTRIBUTIONS)
    roots = [Path(str(sys.modules[name].__file__)).parent for name in _PACKAGES if name in sys.modules]
    return (*versions, max((_newest(root) for root in roots), default=0))


def _newest(directory: Path) -> int:
    """Return the newest time of change of any Python file under `directory`, in ns."""
    newest = 0
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                newest = max(newest, _newest(Path(entry.path)) if entry.name != "__pycache__" else 0)
            elif entry.name.endswith(".py"):
                newest = max(newest, entry.stat().st_mtime_ns)
    return newest
