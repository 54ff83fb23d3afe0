"""This project's packages under one name: `flower_unlearning.client` is the module `client`, and so is each below it.

    from flower_unlearning.client import make_client_app

Nothing is loaded twice, so classes are the same and what was pickled under one name is read under the other. The stubs
in this folder (`.pyi`) tell type checkers and editors of those modules that apps import.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

from flower_unlearning_names import PACKAGES, refuse_shadows

refuse_shadows()


class _SameModule(MetaPathFinder, Loader):
    """Finds the module of the name without `flower_unlearning.`, and loads no other."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how `fullname` is loaded; None where it is none of the packages' or there is no such module."""
        name = _own_name(fullname)
        if name.partition(".")[0] not in PACKAGES or (found := find_spec(name)) is None:
            return None
        return ModuleSpec(
            fullname, self, origin=found.origin, is_package=found.submodule_search_locations is not None
        )

    def exec_module(self, module: ModuleType) -> None:
        """Put the module itself in the place of the empty one that Python has made."""
        sys.modules[module.__name__] = import_module(_own_name(module.__name__))


def _own_name(fullname: str) -> str:
    """Return the name without `flower_unlearning.`; empty where it is not below that."""
    return fullname.removeprefix(f"{__name__}.") if fullname.startswith(f"{__name__}.") else ""


sys.meta_path.insert(0, _SameModule())  # before what would find the same file and make a second module of it
