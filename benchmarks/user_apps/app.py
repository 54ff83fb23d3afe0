"""The app of a kind: what it is made of, and its directory for `flwr run`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from benchmarks.user_apps.kind import SETTINGS, TEST_SITE, Kind
from benchmarks.user_apps.kinds import KINDS
from client import make_client_app
from server import make_server_app
from unlearning.tasks import Examples, Site, Task

TABLE = "user_app"
Settings = Mapping[str, Any]


class Functions:
    """The three functions of the app of one kind."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind

    def make_task(self, settings: Settings) -> Task:
        """Return the kind's task."""
        return self.kind.task()

    def load_site(self, settings: Settings, node_config: Settings) -> Site:
        """Return a site's examples; nothing is held out."""
        train = self.kind.examples(int(node_config["partition-id"]))
        return Site(train, train.select(train.ids[:0].astype(int)))

    def load_test(self, settings: Settings) -> Examples:
        """Return what the server measures on."""
        return self.kind.examples(TEST_SITE)


def client_app(name: str) -> ClientApp:
    """Return the ClientApp of a kind."""
    made = Functions(KINDS[name])
    return make_client_app(made.make_task, made.load_site, table=TABLE, **made.kind.client)


def server_app(name: str) -> ServerApp:
    """Return the ServerApp of a kind."""
    made = Functions(KINDS[name])
    given = {"load_test": made.load_test, **made.kind.server}
    return make_server_app(made.make_task, table=TABLE, **given)


def settings_of(name: str, method: str) -> dict[str, Any]:
    """Return the run's settings: client 1 is deleted after all rounds but one."""
    kind = KINDS[name]
    values = {**SETTINGS, **kind.settings}
    return {**values, "requests": f"at={values['rounds'] - 1} client=1 method={method}"}


def write(name: str, settings: Mapping[str, Any], directory: Path) -> Path:
    """Write the kind's app as a user has it; returns its directory."""
    package = directory / "user_app"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    for side in ("client", "server"):
        lines = f"from benchmarks.user_apps.app import {side}_app\n\napp = {side}_app({name!r})\n"
        (package / f"{side}_app.py").write_text(lines, encoding="utf-8")
    components = {f"{side}app": f"user_app.{side}_app:app" for side in ("server", "client")}
    app = {"publisher": "somebody", "components": components, "config": {**settings, TABLE: {"kind": name}}}
    project = {"name": "user-app", "version": "1.0.0", "license": "Apache-2.0", "dependencies": []}
    written = {"project": project, "tool": {"flwr": {"app": app}}}
    (directory / "pyproject.toml").write_text(tomli_w.dumps(written), encoding="utf-8")
    return directory
