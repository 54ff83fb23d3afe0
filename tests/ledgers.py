"""Ledgers on SQLite and PostgreSQL for tests: servers, databases, and the way of a request.

A new ledger starts as a copy of one that the migrations made, and goes through them again.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from benchmarks.speed.postgresql import private_server
from server.ledger import Allowance, Ledger, LedgerWriter, NewRequest, Refusal, database
from server.ledger.database import Database
from unlearning.requests import DeletionRequest, Granularity, Status, Target

NOW = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
LATER = NOW + timedelta(minutes=5)
MIGRATE = Database.migrate
PREPARE_SQLITE = database._prepare_sqlite
CLIENT_3 = Target(Granularity.CLIENT, "3")
CLIENT_4 = Target(Granularity.CLIENT, "4")
WAY = [Status.SCHEDULED, Status.UNLEARNING, Status.RECOVERING, Status.VERIFYING, Status.COMPLETED]
ROUTES = {
    Status.RECEIVED: [],
    **{status: WAY[:length] for length, status in enumerate(WAY, start=1)},
    Status.AWAITING: [Status.AWAITING],
    Status.ACCEPTED: [Status.AWAITING, Status.ACCEPTED],
    **{end: [end] for end in (Status.FAILED, Status.CANCELLED, Status.REFUSED)},
    Status.REPLACED: [Status.FAILED, Status.REPLACED],
    Status.REOPENED: [*WAY, Status.REOPENED],
}


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    """The URL of a PostgreSQL server where databases may be made: a given one, or a private one."""
    given = os.environ.get("FLOWER_UNLEARNING_POSTGRESQL_URL")
    if given:
        yield given
        return
    with contextlib.ExitStack() as stack:
        try:
            url = stack.enter_context(private_server(is_durable=False))
        except FileNotFoundError:
            pytest.skip("no PostgreSQL server here, and FLOWER_UNLEARNING_POSTGRESQL_URL is not set")
        yield url


@contextlib.contextmanager
def new_database(server: str, template: str = "template1", *, terms: str = "") -> Iterator[sa.URL]:
    """A PostgreSQL database, gone at the end; `terms` go to the statement that makes it."""
    name = f"ledger_{os.urandom(6).hex()}"
    admin = sa.create_engine(server, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name} TEMPLATE {template} {terms}")
    yield sa.make_url(server).set(database=name)
    with admin.connect() as connection:
        connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
    admin.dispose()


@pytest.fixture(scope="session")
def postgresql_template(postgresql_server: str) -> Iterator[str]:
    """The name of a database that the migrations made."""
    with new_database(postgresql_server) as url:
        Ledger.open(url.render_as_string(hide_password=False)).close()
        yield str(url.database)


@pytest.fixture(autouse=True, scope="session")
def new_sqlite_ledgers_are_copies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Wherever the code under test opens one for the first time; and each compiles no statement that one before has."""
    create_engine = sa.create_engine
    template = tmp_path_factory.mktemp("template") / "ledger.db"
    made = Database(f"sqlite:///{template}")
    made.migrate()
    made.close()
    dialect, compiled = made._engine.dialect, {}

    def migrate_a_copy(self: Database) -> None:
        url = sa.make_url(self.name)
        if url.get_backend_name() == "sqlite":
            copy_if_new(template, Path(url.database or ""))
        MIGRATE(self)

    def create_a_sharing_engine(url: sa.URL, **given: Any) -> sa.Engine:
        engine = create_engine(url, **given)
        if engine.dialect.name == "sqlite":  # statements are known by their dialect
            engine.dialect = dialect
            engine.update_execution_options(compiled_cache=compiled)
        return engine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Database, "migrate", migrate_a_copy)
        patch.setattr(sa, "create_engine", create_a_sharing_engine)
        yield


def copy_if_new(template: Path, path: Path) -> None:
    """Copy whole or not at all, also where two threads open the same new ledger at once."""
    if path.parent.is_dir() and not path.exists():
        beside = path.with_name(f"{path.name}.{os.urandom(6).hex()}")
        shutil.copy(template, beside)
        with contextlib.suppress(FileExistsError):
            os.link(beside, path)
        os.unlink(beside)  # noqa: PTH108 - a test of kills counts what Path does


@pytest.fixture(autouse=True, scope="session")
def nothing_waits_for_the_disk() -> Iterator[None]:
    """Tests kill processes and never cut the power, so what they write in this process need not reach the disk."""

    def prepare(connection: Any, record: object) -> None:
        PREPARE_SQLITE(connection, record)
        connection.execute("PRAGMA synchronous = OFF")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "_prepare_sqlite", prepare)
        patch.setattr(os, "fsync", lambda file: os.fstat(file))  # refuses a closed file, as fsync does
        yield


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database for a ledger that has not been opened yet."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'ledger.db'}"
        return
    server, template = map(request.getfixturevalue, ("postgresql_server", "postgresql_template"))
    with new_database(server, template) as made:
        yield made.render_as_string(hide_password=False)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'ledger.db'}"
        return
    with new_database(request.getfixturevalue("postgresql_server")) as made:
        yield made.render_as_string(hide_password=False)


CANARY = "canary-hunter2-4711"


@pytest.fixture
def url_with_password(postgresql_server: str) -> Iterator[str]:
    """The URL of a database on a server that takes any password."""
    with new_database(postgresql_server) as made:
        yield made.set(password=CANARY).render_as_string(hide_password=False)


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    opened = Ledger.open(url)
    yield opened
    opened.close()


@pytest.fixture
def sqlite_ledger(tmp_path: Path) -> Iterator[Ledger]:
    """A ledger where it does not matter what database it is in."""
    opened = Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}")
    yield opened
    opened.close()


@pytest.fixture
def token(ledger: Ledger) -> int:
    return ledger.acquire_fence("loop", now=NOW)


@pytest.fixture
def sql(url: str, ledger: Ledger) -> Iterator[sa.Engine]:
    """A way to the database that does not pass through the ledger's code."""
    engine = sa.create_engine(url)
    yield engine
    engine.dispose()


@pytest.fixture
def owner(sql: sa.Engine) -> Iterator[sa.Connection]:
    """A connection of somebody who owns the database: no trigger, no foreign key stands in the way."""
    with sql.connect() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(sa.text("SET session_replication_role = replica"))
        else:
            for name in connection.scalars(
                sa.text("SELECT name FROM sqlite_master WHERE type = 'trigger'")
            ).all():
                connection.execute(sa.text(f"DROP TRIGGER {name}"))
        connection.commit()
        yield connection


def submit(ledger: Ledger, target: Target = CLIENT_3, *, key: str = "key", **changes: Any) -> DeletionRequest:
    """File a request; `changes` are of its fields, of the time `now`, and of what the submitter may file."""
    now = changes.pop("now", NOW)
    allowance = Allowance(max_open=changes.pop("max_open", None), daily=changes.pop("quota", None))
    values: dict[str, Any] = {"method": "puf", "parameters": {"rate": 2.0}, "submitted_by": "ada"}
    new = NewRequest(target=target, idempotency_key=key, **values | changes)
    return ledger.requests.submit(new, now=now, allowance=allowance)


def advance(ledger: Ledger, request_id: str, to: Status, token: int, **changes: Any) -> DeletionRequest:
    for step in ROUTES[to]:
        live_at(ledger, token, LATER).move(request_id, step, **changes)
    return ledger.requests.get(request_id)


def live_at(ledger: Ledger, token: int, now: datetime = LATER) -> LedgerWriter:
    """What the holder of this token writes with at one moment."""
    return ledger.live(token, lambda: now)


def refusal(**changes: object) -> Refusal:
    values = {"at": NOW, "caller": "eve", "role": "client", "call": "ListClients", "reason": "not yours"}
    return Refusal(**{**values, **changes})  # type: ignore[arg-type]  # field names are checked by the call
