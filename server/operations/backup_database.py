"""Copies of a ledger's database: SQLite by its online backup, PostgreSQL by pg_dump and pg_restore."""

import os
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import sqlalchemy as sa

from unlearning.errors import BackupError
from unlearning.runtime.durable_files import open_private

_TIMEOUT_S = 3600.0


def dump_sqlite(url: sa.URL, destination: Path) -> None:
    """Write the database to `destination` as of one moment, while others write to it.

    Raises:
        BackupError: SQLite cannot copy it.
    """
    destination.unlink(missing_ok=True)
    try:
        open_private(destination, is_new=True).close()
        with (
            closing(sqlite3.connect(url.database or "")) as source,
            closing(sqlite3.connect(destination)) as copy,
        ):
            source.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")  # one file, without a -wal beside it
    except sqlite3.Error as exc:
        raise BackupError(f"The ledger {url.database} cannot be copied: {exc}.") from exc
    destination.chmod(0o600)


def dump_postgresql(url: sa.URL, destination: Path) -> None:
    """Write the database to `destination` in pg_dump's own format, as of one moment.

    Raises:
        BackupError: pg_dump is missing or fails.
    """
    destination.unlink(missing_ok=True)
    open_private(destination, is_new=True).close()
    _run("pg_dump", url, "--format=custom", "--no-owner", f"--file={destination}")
    destination.chmod(0o600)


def restore_postgresql(url: sa.URL, source: Path) -> None:
    """Put the dump in the place of the ledger's tables, all or nothing.

    Raises:
        BackupError: pg_restore is missing or fails.
    """
    _run(
        "pg_restore",
        url,
        "--clean",
        "--if-exists",
        "--no-owner",
        "--single-transaction",
        "--exit-on-error",
        source,
    )


def _run(program: str, url: sa.URL, *arguments: str | Path) -> None:
    path = shutil.which(program)
    if path is None:
        raise BackupError(f"{program} is not installed; it comes with PostgreSQL's client programs.")
    # The password goes by the environment: everybody on the machine can read the arguments.
    environment = {**os.environ, "PGPASSWORD": url.password} if url.password else dict(os.environ)
    address = url.set(drivername="postgresql", password=None).render_as_string(hide_password=False)
    done = subprocess.run(
        [path, f"--dbname={address}", *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        reason = done.stderr.strip().splitlines()[-3:]
        raise BackupError(f"{program} failed: {' '.join(reason) or f'exit code {done.returncode}'}")
