"""The ledger's connection to SQLite or PostgreSQL: one writer at a time, durable commits, migrations.

Several processes share a ledger (deletion service, ServerApp, supervisor). Every write transaction
takes the one write lock first: BEGIN IMMEDIATE on SQLite, an advisory lock on PostgreSQL. So what a
transaction has read is still true when it writes, and events become visible in the order of their
sequence numbers.
"""

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cache
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, SQLAlchemyError

from server.ledger.records import Event, LedgerUnavailable, RoundRecord
from server.ledger.schema_rules import create_schema
from server.state_directory.ledger_address import old_sqlite
from unlearning.errors import ConfigurationError, IllegalMove, VersionMismatch
from unlearning.runtime.durable_files import close_to_others, make_private, open_private, sqlite_files

# Imported where a ledger is opened: a seventh of what a command's start takes, and most commands open none.
if TYPE_CHECKING:
    from alembic.config import Config

_log = getLogger(__name__)
_Numbered = TypeVar("_Numbered", Event, RoundRecord)
_PAGE_SIZE = 1000

# How long a writer waits for the others; each holds the lock for a few milliseconds.
BUSY_TIMEOUT_S = 20
_WAL_PAUSE_S = 0.01
# Any fixed number that no other application of the database uses.
_ADVISORY_LOCK = 0x466C_556E
# Tables of which something can be erased, and how long rewriting one waits for its readers.
_ERASABLE, _REWRITE_LOCK_S = ("request_samples", "request_texts"), 3
_MIGRATIONS = Path(__file__).parent / "migrations"


class Database:
    """An open ledger database; safe to use from several threads."""

    def __init__(self, url: str) -> None:
        self._url = checked_url(url)
        self._engine = _create_engine(self._url)
        # SQLite has waiting writers sleep up to 100 ms between two looks; threads queue here instead.
        self._turn = threading.Lock()

    @property
    def name(self) -> str:
        """The address without its password, for messages."""
        return self._url.render_as_string(hide_password=True)

    @property
    def url(self) -> str:
        """The address with its password, for another process of this service."""
        return self._url.render_as_string(hide_password=False)

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    @contextmanager
    def reading(self, *, at_one_moment: bool = False) -> Iterator[sa.Connection]:
        """Open a transaction that only reads; where asked for, all of it sees the database as of one moment.

        Raises:
            LedgerUnavailable: the database cannot be read.
        """
        with self._translate_errors(), self._engine.connect() as connection:
            is_fixed = at_one_moment and connection.dialect.name == "postgresql"  # SQLite reads so anyway
            if is_fixed:
                connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                if (
                    is_fixed
                ):  # first of all: a table that `clear` rewrites has no rows for a session that looks back
                    connection.exec_driver_sql(f"LOCK TABLE {', '.join(_ERASABLE)} IN ACCESS SHARE MODE")
                yield connection

    def clear(self, column: "sa.Column[Any]") -> bool:
        """Have what was erased in a column gone from the database's files; return whether it could be done.

        SQLite has overwritten it (secure_delete) and empties its write-ahead log. PostgreSQL keeps old rows until a
        VACUUM, whose free space still has their bytes; so the column's table is rewritten.

        Raises:
            LedgerUnavailable: the database cannot be written, or is locked for too long.
        """
        if self._engine.dialect.name == "postgresql":
            self._rewrite(column)
            return True
        with self._translate_errors(), closing(self._engine.raw_connection()) as connection:
            (busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return not busy

    def _rewrite(self, column: "sa.Column[Any]") -> None:
        """Copy a table's rows as they stand into new files; the old ones are empty from the commit on.

        VACUUM FULL would take old rows along as long as some other session may look back at them.
        """
        assert column.table.name in _ERASABLE, "`reading` at one moment locks these"
        kind = column.type.compile(self._engine.dialect)
        with self.writing() as connection:
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{_REWRITE_LOCK_S}s'")
            # A type that stays and a value that stays, which PostgreSQL cannot see beforehand.
            connection.exec_driver_sql(
                f"ALTER TABLE {column.table.name} ALTER COLUMN {column.name} TYPE {kind} "
                f"USING (ARRAY[{column.name}])[1]"
            )

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """Open a transaction that holds the write lock; durable once the block has ended without error.

        Raises:
            LedgerUnavailable: the database cannot be written, or is locked for too long.
            IllegalMove: a rule of the database forbids the change.
        """
        with self._turn, self._translate_errors(), self._engine.connect() as plain:
            connection = plain.execution_options(ledger_writes=True)
            with connection.begin():
                if connection.dialect.name == "postgresql":
                    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
                yield connection

    def migrate(self) -> None:
        """Create the schema in an empty database, or bring it forward; safe when several processes do it at once.

        Raises:
            LedgerUnavailable: the database cannot be written.
            VersionMismatch: a newer version of this program has migrated it.
        """
        from alembic import command

        if self._url.get_backend_name() == "sqlite":
            _make_private_file(Path(self._url.database or "").resolve())
        config = _alembic()
        with self.writing() as connection:
            known = self._known_revision(connection)
            if known == _revisions()[0]:
                return
            config.attributes["connection"] = connection
            if known is None:
                create_schema(connection)
                command.stamp(config, "head")
            else:
                command.upgrade(config, "head")

    def refuse_newer(self) -> None:
        """Refuse a ledger of a newer schema than this program knows, for those who do not migrate it.

        Raises:
            VersionMismatch: it is one. LedgerUnavailable: the database cannot be read.
        """
        with self.reading() as connection:
            self._known_revision(connection)

    def _known_revision(self, connection: sa.Connection) -> str | None:
        from alembic.runtime.migration import MigrationContext

        found = MigrationContext.configure(connection).get_current_revision()
        if found is not None and found not in _revisions():
            raise VersionMismatch(
                f"The ledger at {self.name} has schema {found}, and this program knows those up to "
                f"{_revisions()[0]}: a newer flower-unlearning has opened it. Upgrade this one, or restore the backup "
                "of before the upgrade."
            )
        return found

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except IntegrityError as exc:
            raise IllegalMove(f"The ledger refused the change: {exc.orig}") from exc
        except SQLAlchemyError as exc:
            cause = exc.orig if isinstance(exc, DBAPIError) else exc
            raise LedgerUnavailable(
                f"The ledger at {self.name} cannot be used: {cause}. "
                "Check that its disk or server is up and writable, then try again."
            ) from exc


def all_pages(read: Callable[[int, int], list[_Numbered]], *, after: int) -> Iterator[_Numbered]:
    """Yield all rows that `read` gives after a sequence number, at most a number of them; a short page is the last."""
    while True:
        page = read(after, _PAGE_SIZE)
        yield from page
        if len(page) < _PAGE_SIZE:
            return
        after = page[-1].sequence


def _alembic() -> "Config":
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    return config


@cache
def _revisions() -> tuple[str, ...]:
    """Return the revisions of the schema, the newest first; reading them takes a twentieth of a second."""
    from alembic.script import ScriptDirectory

    return tuple(one.revision for one in ScriptDirectory.from_config(_alembic()).walk_revisions())


def checked_url(text: str) -> sa.URL:
    """Return where a ledger is.

    Raises:
        ConfigurationError: it is no URL of a database that a ledger can be in.
    """
    try:
        url = sa.make_url(text)
    except (ArgumentError, ValueError):
        # Not repeated: it may hold a password, and a message is logged.
        raise ConfigurationError([f"ledger: what was given is not a database URL. {_EXAMPLES}"]) from None
    if url.drivername in ("postgresql", "postgres"):
        url = url.set(drivername="postgresql+psycopg")
    if url.drivername not in ("sqlite", "sqlite+pysqlite", "postgresql+psycopg"):
        raise ConfigurationError([f"ledger: {url.drivername!r} is not supported. {_EXAMPLES}"])
    if any("password" in name for name in url.query):  # a message hides the one before the host only
        raise ConfigurationError(["ledger: give the password as USER:PASSWORD@HOST, not as a parameter."])
    if url.get_backend_name() != "sqlite":
        return url
    if url.database in (None, "", ":memory:"):
        raise ConfigurationError([f"ledger: it must outlive this process, so it needs a file. {_EXAMPLES}"])
    if url.query or str(url.database).startswith("file:"):
        raise ConfigurationError(
            [f"ledger: for SQLite give the file's path alone, no parameters. {_EXAMPLES}"]
        )
    return url.set(database=os.path.expanduser(str(url.database)))  # noqa: PTH111 - pathlib's fails for unknown accounts


def missing_file(url: sa.URL) -> str:
    """Return the path of an SQLite file that is not there; empty where it is, and for PostgreSQL."""
    path = "" if url.get_backend_name() != "sqlite" else str(url.database)
    return path if path and not Path(path).is_file() else ""


_EXAMPLES = "Use sqlite:////path/to/ledger.db or postgresql+psycopg://user@host/database."


def _create_engine(url: sa.URL) -> sa.Engine:
    if url.get_backend_name() == "sqlite":
        assert url.database is not None
        if too_old := old_sqlite():
            raise ConfigurationError([f"ledger: {too_old}"])
        engine = sa.create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S})
        sa.event.listen(engine, "connect", _closing_on_error(_prepare_sqlite))
        sa.event.listen(engine, "begin", _begin_sqlite)
        return engine
    try:
        engine = sa.create_engine(
            url,
            pool_pre_ping=True,
            isolation_level="READ COMMITTED",  # others' snapshots would be of before the write lock was taken
            connect_args={"connect_timeout": BUSY_TIMEOUT_S, "client_encoding": "utf8"},
        )
    except ImportError as exc:
        raise ConfigurationError(
            ["ledger: PostgreSQL needs a driver; pip install 'flower-unlearning[postgresql]'."]
        ) from exc
    sa.event.listen(engine, "connect", _closing_on_error(_prepare_postgresql))
    return engine


def _closing_on_error(prepare: Callable[[Any, object], None]) -> Callable[[Any, object], None]:
    """Return what prepares a connection, or closes it where it cannot: SQLAlchemy 2.0 leaves it open."""

    def listener(connection: Any, record: object) -> None:
        try:
            prepare(connection, record)
        except BaseException:
            connection.close()
            raise

    return listener


def _prepare_postgresql(connection: Any, _record: object) -> None:
    """Refuse a database that cannot hold every text; make commits durable and dates readable, whatever is set."""
    found = connection.info.parameter_status("server_encoding")
    if found != "UTF8":
        raise ConfigurationError(
            [
                f"ledger: the database {connection.info.dbname!r} has the encoding {found}, in which not every name "
                "and reason can be written. Create it with: createdb --encoding=UTF8 --template=template0 NAME"
            ]
        )
    connection.execute("SET datestyle = 'ISO'")
    connection.execute(
        "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
    )
    connection.commit()


def _make_private_file(path: Path) -> None:
    """Let only the owner read a ledger: SQLite gives its -wal and -shm the mode of the database."""
    try:
        make_private(path.parent)
        # Only a new file is opened: closing one that this process has open already would end SQLite's locks on it.
        if not path.exists():
            with contextlib.suppress(FileExistsError):
                open_private(path, is_new=True).close()
        opened = close_to_others(sqlite_files(path))
    except OSError as exc:
        raise LedgerUnavailable(
            f"The ledger {path} cannot be opened for its owner alone: {exc}. Run this as its owner."
        ) from exc
    if opened:
        _log.warning("The ledger %s could be read by others; from now on by its owner alone.", path)


def _prepare_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # transactions begin where _begin_sqlite says, nowhere else
    connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_S * 1000}")
    _write_ahead(connection)
    connection.execute("PRAGMA synchronous = FULL")  # a commit is on disk when it returns
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA secure_delete = ON")  # what is erased is overwritten


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Turn the file to a write-ahead log, which it then stays.

    Where another turns a new file at the same moment, SQLite refuses at once instead of waiting for `busy_timeout`.
    """
    until = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as exc:
            if exc.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(_WAL_PAUSE_S)
        else:
            return


def _begin_sqlite(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get("ledger_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
