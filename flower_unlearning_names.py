"""The names of this project's packages, which a module of an app must not take away.

Flower puts an app's directory before everything that is installed. A `server.py` there would stand in place of the
package `server`, in this process or in the next one, and what follows would be an error that explains nothing. Each of
the packages looks when it is imported, and so do the apps that they make. This is a module of its own because any of
the four may be the one that is hidden.
"""

from importlib.machinery import PathFinder
from pathlib import Path

PACKAGES = ("client", "server", "strategies", "unlearning")


class HiddenPackage(ImportError):
    """A module of the user's hides a package of this project."""


def refuse_shadows() -> None:
    """Refuse to go on where another module would be imported in place of one of the packages.

    Raises:
        HiddenPackage: there is one; names both files.
    """
    for name in PACKAGES:
        own = Path(__file__).parent / name / "__init__.py"
        found = PathFinder.find_spec(name)
        if found is None or found.origin is None or not own.exists():
            continue
        if not own.samefile(found.origin):
            raise HiddenPackage(
                f"{found.origin} hides flower-unlearning's package {name!r} ({own}): call your module something "
                "else, for Flower puts an app's directory before what is installed."
            )
