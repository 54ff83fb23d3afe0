"""Fixtures of the console's tests: a real deletion service, and browsers that came in by a console's link."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from server.console.auth import LoginLink
from server.console.launch import Settings, who_calls
from server.console.rendering import Console
from server.console.routes import make_app
from server.console.saved_filters import SavedFilters
from server.ledger import Ledger
from server.service.client import DeletionClient
from server.service.grpc_server import RunningServer, serve
from strategies.tls_files import TlsFiles
from tests.certificates import Authority
from tests.deletion_service import LiveLoop

PORT = 4711


class Browser:
    """A browser without JavaScript that is signed in: it follows no redirect by itself, and fills in its token."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.app = make_app(console)
        self.client = TestClient(self.app, base_url=f"http://127.0.0.1:{PORT}", follow_redirects=False)
        assert self.client.get(console.login.link).status_code == 303

    def get(self, path: str, **options: Any) -> Any:
        return self.client.get(path, **options)

    def page(self, path: str) -> str:
        answer = self.get(path)
        assert answer.status_code == 200, answer.text
        return answer.text

    @property
    def csrf(self) -> str:
        session = self.console.login.session_of(self.client.cookies[self.console.login.cookie_name])
        assert session is not None
        return session.csrf

    def post(self, path: str, files: Any = None, **fields: str | list[str]) -> Any:
        return self.client.post(path, data={"csrf": self.csrf, **fields}, files=files)

    def follow(self, answer: Any) -> str:
        """The page that a form leads to."""
        assert answer.status_code == 303, answer.text
        return str(answer.headers["location"])


def errors(answer: Any) -> dict[str, str]:
    """The sentences beside fields, by the field."""
    return dict(re.findall(r'<p class="error" id="(\w+)-error">([^<]*)</p>', answer.text))


class Desk:
    """A deletion service over a ledger, and consoles of people who call it."""

    def __init__(self, directory: Path, tls: TlsFiles | None = None) -> None:
        self.directory = directory
        self.tls = tls
        self.ledger = Ledger.open(f"sqlite:///{directory / 'ledger.db'}")
        self.loop = LiveLoop(self.ledger)
        self.loop.announce()
        self.said: list[str] = []
        self.service = self.start("127.0.0.1:0")
        self._stack = ExitStack()

    def start(self, address: str) -> RunningServer:
        return serve(self.ledger, self.directory / "reports", address, self.tls)

    def calling(self, tls: TlsFiles | None = None) -> DeletionClient:
        return self._stack.enter_context(DeletionClient(self.service.address, tls, timeout_s=20))

    def console(self, tls: TlsFiles | None = None) -> Console:
        settings = Settings(address=self.service.address, tls=tls, name="ada")
        caller, _ = who_calls(settings)
        login = LoginLink(PORT, self.said.append)
        return Console(
            service=self.calling(tls),
            caller=caller,
            address=self.service.address,
            login=login,
            filters=SavedFilters(self.directory / "config" / "filters.json"),
        )

    def browser(self, tls: TlsFiles | None = None) -> Browser:
        return Browser(self.console(tls))

    def close(self) -> None:
        self._stack.close()
        self.service.stop(0)
        self.ledger.close()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.close()


@pytest.fixture
def browser(desk: Desk) -> Browser:
    return desk.browser()


@pytest.fixture
def people(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def guarded(tmp_path: Path, people: Authority) -> Iterator[Desk]:
    """A deletion service that asks for certificates, without a federation."""
    desk = Desk(tmp_path, people.certify("server"))
    yield desk
    desk.close()
