"""Experiment files: those that come with the project, and the sizes in which a file has its experiment."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from unlearning.errors import ConfigurationError

SHIPPED = Path(__file__).parent / "experiments"
# libyaml's, where PyYAML has it: all files are read to find one by its name, in 0.02 s instead of 0.12.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def shipped_experiments() -> dict[str, tuple[Path, str]]:
    """Return the experiments that come with the project, by name: file and size."""
    return {
        f"{path.stem}-{size}" if size else path.stem: (path, size)
        for path in sorted(SHIPPED.glob("*.yaml"))
        for size in _sizes(_parse(path))
    }


def read_values(path: Path, size: str) -> Any:
    """Return what a file says, in one of its sizes where it has several.

    Raises:
        ConfigurationError: it cannot be read, has no such size, or not the form of an experiment.
    """
    value = _parse(path)
    if not isinstance(value, dict):
        raise ConfigurationError(
            [f"{path} is no experiment: it names none of name, run, cases, methods, seeds."]
        )
    try:
        return _in_size(value, path, size)
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        raise ConfigurationError(
            [
                f"{path}: run and each of sizes have names and values, settings and published lists of these ({exc})."
            ]
        ) from exc


def _parse(path: Path) -> Any:
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER)
    except OSError as exc:
        raise ConfigurationError([f"{path} cannot be read: {exc.strerror}."]) from exc
    except (yaml.YAMLError, UnicodeError) as exc:
        raise ConfigurationError([f"{path} is no YAML: {exc}"]) from exc


def _sizes(value: Any) -> list[str]:
    sizes = value.get("sizes") if isinstance(value, dict) else None
    return [*sizes] if isinstance(sizes, dict) and sizes else [""]


def _in_size(value: dict[str, Any], path: Path, size: str) -> Any:
    if size not in _sizes(value):
        raise ConfigurationError(
            [f"{path} has the sizes {', '.join(_sizes(value))}: name one, as in {path}:{_sizes(value)[0]}."]
            if "sizes" in value
            else [f"{path} has no sizes; leave out :{size}."]
        )
    plain = {key: item for key, item in value.items() if key != "sizes"}
    changes = dict((value.get("sizes") or {}).get(size) or {}) if size else {}
    changes["run"] = {**(plain.get("run") or {}), **(changes.get("run") or {})}
    name = {"name": f"{plain.get('name', path.stem)}-{size}"} if size else {}
    sized = {**plain, **changes, **name}
    if "published" in sized and "sizes" in value:
        elsewhere = _setting_names([plain, *value["sizes"].values()]) - _setting_names([sized])
        sized["published"] = [
            item for item in sized["published"] if not {*item.get("settings", ["every"])} <= elsewhere
        ]
    return sized


def _setting_names(values: Iterable[Any]) -> set[str]:
    return {setting["name"] for value in values for setting in (value or {}).get("settings", ())}
