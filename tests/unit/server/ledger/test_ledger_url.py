"""Which addresses a ledger accepts, and what SQLite is told."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa

from server.ledger import Ledger, LedgerUnavailable
from server.ledger.database import Database, checked_url
from server.state_directory.ledger_address import old_sqlite
from tests.ledgers import PREPARE_SQLITE, new_database
from tests.waiting import WAIT_S, wait_until
from unlearning.errors import ConfigurationError

FORMS = r"sqlite:////.*postgresql\+psycopg://"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        *((url, "it needs a file") for url in ("sqlite://", "sqlite:///:memory:")),
        *((url, FORMS) for url in ("mysql://host/db", "not a url", "sqlite+aiosqlite:///x.db")),
        *((url, "path alone") for url in ("sqlite:////x.db?mode=ro", "sqlite:///file:/x.db?uri=true")),
    ],
)
def test_a_ledger_in_memory_in_another_database_or_with_parameters_is_refused(url: str, message: str) -> None:
    """A ledger outlives its process; the message shows the two forms that are supported."""
    with pytest.raises(ConfigurationError, match=message):
        Ledger.open(url)


def test_an_sqlite_that_knows_no_returning_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As RHEL 9 has it for its own Python; a ledger in PostgreSQL does without."""
    assert not old_sqlite((3, 35, 0))
    monkeypatch.setattr("server.ledger.database.old_sqlite", lambda: old_sqlite((3, 34, 1)))
    with pytest.raises(ConfigurationError, match=r"SQLite 3\.34\.1.* need 3\.35"):
        Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}")
    Database("postgresql://db.invalid/ledger")


def test_a_home_directory_is_what_a_shell_takes_it_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No directory of the name ~ is made; one of an account that is not there stays as it is written."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert checked_url("sqlite:///~/ledger.db").database == str(tmp_path / "ledger.db")
    assert checked_url("sqlite:///~no-such-account/ledger.db").database == "~no-such-account/ledger.db"


def test_a_password_is_not_shown() -> None:
    """Messages name the database without its password."""
    database = Database("postgresql://ada:secret@db.invalid/ledger")
    assert "secret" not in database.name
    assert "db.invalid" in database.name


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_that_cannot_write_every_name_is_refused(postgresql_server: str, encoding: str) -> None:
    """As a cluster of the locale C has it: the driver then gives bytes for texts. No connection stays open."""
    terms = f"ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C'"
    alone = sa.create_engine(postgresql_server, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
    with new_database(postgresql_server, "template0", terms=terms) as url, alone.connect() as admin:
        with pytest.raises(ConfigurationError, match=f"{encoding}.*createdb") as refused:
            Ledger.open(url.render_as_string(hide_password=False))
        count = sa.text("SELECT count(*) FROM pg_stat_activity WHERE datname = :name")
        # While the error is held, so is what its frames have.
        what = f"an end of the connection after: {refused.value}"
        wait_until(lambda: admin.execute(count, {"name": url.database}).scalar_one() == 0, what=what)


def test_a_servers_defaults_do_not_reach_the_ledger(
    postgresql_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot of before the write lock would be stale behind it; the driver reads dates of one style alone."""
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    admin = sa.create_engine(postgresql_server, isolation_level="AUTOCOMMIT")
    with new_database(postgresql_server) as url:
        with admin.connect() as connection:
            for setting in (
                "default_transaction_isolation = 'serializable'",
                "datestyle = 'German'",
                "synchronous_commit = off",
            ):
                connection.exec_driver_sql(f"ALTER DATABASE {url.database} SET {setting}")
        admin.dispose()
        database = Database(url.render_as_string(hide_password=False))
        names = ("transaction_isolation", "datestyle", "synchronous_commit", "client_encoding")
        for opened in (database.writing, database.reading, database.writing):
            with opened() as connection:
                found = [connection.exec_driver_sql(f"SHOW {name}").scalar_one() for name in names]
            assert found == ["read committed", "ISO, DMY", "on", "UTF8"]
        database.close()


def test_a_file_that_is_no_database_is_explained(tmp_path: Path) -> None:
    """The driver's error becomes ours, with the address."""
    path = tmp_path / "ledger.db"
    path.write_bytes(b"certainly not a database file" * 100)
    with pytest.raises(LedgerUnavailable):
        Ledger.open(f"sqlite:///{path}")


def test_sqlite_commits_are_flushed_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every connection has the write-ahead log, full synchronisation and foreign keys."""
    monkeypatch.setattr("server.ledger.database._prepare_sqlite", PREPARE_SQLITE)
    database = Database(f"sqlite:///{tmp_path / 'ledger.db'}")
    with database.reading() as connection:
        settings = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    database.close()
    assert settings == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 20_000}


def test_many_may_open_a_new_ledger_at_the_same_moment(tmp_path: Path) -> None:
    """As a service and a ServerApp that start together on a new machine; forty times, for it is a matter of moments."""

    def opened(path: Path, together: threading.Barrier) -> object:
        database = Database(f"sqlite:///{path}")
        together.wait()
        with database.reading() as connection:
            found = connection.exec_driver_sql("PRAGMA journal_mode").scalar()
        database.close()
        return found

    with ThreadPoolExecutor(8) as threads:
        for number in range(40):
            path, together = tmp_path / f"{number}.db", threading.Barrier(8, timeout=WAIT_S)
            assert [*threads.map(opened, [path] * 8, [together] * 8)] == ["wal"] * 8


def test_opening_twice_keeps_what_is_there(tmp_path: Path) -> None:
    """Migrating a ledger that is up to date changes nothing."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    first, second = Ledger.open(url), Ledger.open(url)
    assert first.acquire_fence("a", now=datetime.now(UTC)) == 1
    assert second.acquire_fence("b", now=datetime.now(UTC)) == 2
    first.close()
    second.close()
