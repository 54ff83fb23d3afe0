"""Methods of other installed packages, found by their entry points in the group `flower_unlearning.methods`.

    [project.entry-points."flower_unlearning.methods"]
    drop-client = "hospital.methods:DropClient"

The name is the method's own, the object a `Method` or a class of one that is made without arguments. Every machine of
a federation needs the package: a client that lacks it says so by the method's name.
"""

from collections.abc import Collection, Iterable
from importlib.metadata import EntryPoint, entry_points
from logging import getLogger

from unlearning.methods.method import Method
from unlearning.untrusted import reason_of

_log = getLogger(__name__)

GROUP = "flower_unlearning.methods"


def installed_methods(
    own: Collection[str], found: Iterable[EntryPoint] | None = None
) -> tuple[dict[str, Method], dict[str, str]]:
    """Return the methods of other packages by name, and why others of them cannot be used.

    own: names that are taken. found: the entry points; those of this environment if not given.
    """
    methods: dict[str, Method] = {}
    unusable: dict[str, str] = {}
    for entry in entry_points(group=GROUP) if found is None else found:
        try:
            methods[entry.name] = _method_of(entry, {*own, *methods})
        except Exception as exc:  # noqa: BLE001 - whatever another package's import leads to must not stop ours
            unusable[entry.name] = f"{entry.value} of {_package(entry)}: {reason_of(exc)}"
            _log.warning("The method %s is left out. %s", entry.name, unusable[entry.name])
    return methods, unusable


def _method_of(entry: EntryPoint, taken: Collection[str]) -> Method:
    """Return the method that an entry point names.

    Raises:
        ValueError: it is none, or its name is not the entry's or is taken.
    """
    loaded = entry.load()
    method = loaded() if isinstance(loaded, type) else loaded
    if not isinstance(method, Method):
        raise ValueError(f"it is a {type(method).__name__}, and no Method")
    if method.info.name != entry.name:
        raise ValueError(
            f"its MethodInfo calls it {method.info.name}; the entry point must have the same name"
        )
    if entry.name in taken:
        raise ValueError("there is a method of that name already")
    return method


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "an unknown package"
