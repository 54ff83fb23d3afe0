"""The experiment of an app of the user's own: its directory in, its task and data, all methods that go with them out.

The app is one as `flower-unlearn new` writes it: its pyproject.toml names a serverapp and a clientapp, whose modules
have `make_task` and `load_test`, and `load_site`.
"""

import hashlib
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.bench.columns import RETRAIN
from strategies.in_process_grid import read_run_config
from strategies.settings.task_source import LoadSite, LoadTest, TaskSource
from unlearning.errors import AppError, ConfigurationError, RequestError
from unlearning.methods.eligibility import FederationProfile, check_eligible
from unlearning.methods.registry import METHODS, check_supports, preparations
from unlearning.requests import Granularity, Target
from unlearning.tasks.own_code import load_own_site, load_own_test
from unlearning.tasks.task import Examples, Site

FEWEST_SEEDS = 3
"""Fewer say nothing of chance."""

_CASES: Mapping[str, Mapping[str, Any]] = {
    "one client": {"clients": ("0",)},
    "half of a client's samples": {"clients": ("0",), "share": 0.5},
    "a class": {"class": 0},
}
_OF_A_DEPLOYMENT = ("state-dir", "requests", "ledger", "transport", "certificate-key", "approval", "data-dir")


@dataclass(frozen=True, slots=True)
class OwnApp:
    """An app's functions and settings. code: a digest of its own code, with which finished parts are kept."""

    name: str
    source: TaskSource
    load_site: LoadSite
    load_test: LoadTest
    config: Mapping[str, Any]
    code: str

    def data(self, values: Mapping[str, Any]) -> "OwnData":
        """Return the app's data under these settings."""
        settings = self.source.read(values)
        return OwnData(self, settings.own, settings.run.num_clients)


@dataclass(frozen=True, slots=True)
class OwnData:
    """What an app's sites and its server load."""

    app: OwnApp
    settings: Mapping[str, Any]
    num_clients: int

    def site(self, client: str) -> Site:
        """Return a client's data.

        Raises:
            AppError: the app's function raised, or returned no site.
        """
        node = {"partition-id": int(client), "num-partitions": self.num_clients, "client-id": client}
        return load_own_site(self.app.load_site, self.settings, node)

    def test(self) -> Examples | None:
        """Return what the server measures on.

        Raises:
            AppError: the app's function raised, or returned something else.
        """
        return load_own_test(self.app.load_test, self.settings)


@cache
def app_in(directory: str) -> OwnApp:
    """Return the app in a directory.

    Raises:
        ConfigurationError: there is none, or it cannot be imported.
    """
    path = Path(directory).resolve()
    server, client = _components(path)
    sys.path.insert(0, str(path))
    functions = [
        _function(server, "make_task"),
        _function(client, "load_site"),
        _function(server, "load_test"),
    ]
    source = TaskSource.of(functions[0])
    package = path / server.partition(".")[0]
    files = sorted(package.rglob("*.py")) if package.is_dir() else []
    code = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:8]
    config = {key: value for key, value in read_run_config(path, {}).items() if key not in _OF_A_DEPLOYMENT}
    return OwnApp(source.table, source, functions[1], functions[2], config, code)


def values_of(directory: str) -> dict[str, Any]:
    """Return an experiment about an app, as a file would say it, after looking at all that it needs.

    Raises:
        ConfigurationError: there is no app, or its federation cannot be compared; a sentence for each reason.
        AppError: a function of the app raised.
    """
    app = app_in(directory)
    settings = app.source.read(app.config)
    if wrong := list(_problems(settings.run.rounds, settings.run.num_clients, app.data(app.config))):
        raise ConfigurationError(wrong)
    profile = FederationProfile.of(app.source.prepared(app.config), prepare=settings.run.prepare)
    if profile.has_local_layers:
        raise ConfigurationError(
            [
                "local_layers: methods are compared by the server's test data with retraining, and layers that stay at "
                "their sites go with neither."
            ]
        )
    prepared = preparations(settings.run.prepare)
    methods = [name for name in METHODS if _serves(name, profile)]
    entries = dict(zip(prepared, filter(str.strip, settings.run.prepare.split(";")), strict=True))
    cases = [
        {"name": name, **case} for name, case in _CASES.items() if name != "a class" or _has_classes(profile)
    ]
    return {
        "name": app.name.replace("_", "-"),
        "title": f"The app {app.name}",
        "app": directory,
        "run": {key: value for key, value in app.config.items() if key not in ("prepare", "seed")},
        "cases": cases,
        "seeds": tuple(range(5)),
        "methods": [{"method": name, "prepare": entries.get(name, "").strip()} for name in methods],
    }


def _problems(rounds: int, num_clients: int, data: OwnData) -> Iterable[str]:
    """Yield what prevents a comparison; loads every site once."""
    if rounds < 1:
        yield "rounds: a comparison needs a number of rounds; set rounds in the app's pyproject.toml to 1 or more."
    if num_clients < 2:
        yield (
            f"num-clients: {num_clients} sites leave none to go on; set num-clients in the app's pyproject.toml to "
            "2 or more."
        )
        return
    for client in map(str, range(num_clients)):
        if not len(data.site(client).train):
            yield f"client {client}: load_site gives it no training example; lower num-clients or give it some."
    data.test()


def _serves(name: str, profile: FederationProfile) -> bool:
    """Return whether a method that unlearns, or trains on, can serve a client's deletion in such a federation."""
    method, target = METHODS[name], Target(Granularity.CLIENT, "0")
    prepared = preparations(profile.prepare)
    if name == RETRAIN or (method.info.preparation is not None and name not in prepared):
        return False
    try:
        check_supports(method, target)
        check_eligible(method, target, profile, {})
    except RequestError:
        return name in prepared
    return True


def _has_classes(profile: FederationProfile) -> bool:
    return profile.score_name == "accuracy" and profile.num_classes > 1


def _components(path: Path) -> tuple[str, str]:
    """Return the modules of the serverapp and the clientapp."""
    project = path / "pyproject.toml"
    try:
        parts = tomllib.loads(project.read_text(encoding="utf-8"))["tool"]["flwr"]["app"]["components"]
        server, client = str(parts["serverapp"]), str(parts["clientapp"])
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise ConfigurationError(
            [
                f"--app: {path} holds no Flower app ({type(exc).__name__}: {exc}). Name the directory whose "
                "pyproject.toml has [tool.flwr.app.components], as `flower-unlearn new` writes it."
            ]
        ) from exc
    return server.partition(":")[0], client.partition(":")[0]


def _function(module: str, name: str) -> Any:
    found = _imported(module)
    try:
        return getattr(found, name)
    except AttributeError as exc:
        raise ConfigurationError(
            [f"--app: {module} has no {name}; import it there, as `flower-unlearn new` writes it."]
        ) from exc


def _imported(module: str) -> ModuleType:
    try:
        return import_module(module)
    except Exception as exc:
        raise AppError(f"--app: {module} cannot be imported ({type(exc).__name__}: {exc}).") from exc
