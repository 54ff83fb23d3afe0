"""A private PostgreSQL server, for the load test and for the ledger's tests."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def private_server(*, is_durable: bool) -> Iterator[str]:
    """Yield the URL of an empty database on a server of its own, which nobody else reaches.

    is_durable: with the server's usual durability; without, it starts and stops quicker.

    Raises:
        FileNotFoundError: PostgreSQL is not installed.
    """
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not programs:
        raise FileNotFoundError("There is no PostgreSQL server on this machine.")
    # Not below a test's directory: that is closed to the user `postgres`, and a socket's path must be short.
    directory = Path(tempfile.mkdtemp(prefix="pg-"))
    owner: dict[str, Any] = {}
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        account = pwd.getpwnam("postgres")
        os.chown(directory, account.pw_uid, account.pw_gid)
        owner = {"user": account.pw_uid, "group": account.pw_gid}
    pg_ctl, data = str(programs[-1].with_name("pg_ctl")), str(directory / "data")

    def run(*command: str) -> None:
        subprocess.run(command, check=True, cwd=directory, stdout=subprocess.DEVNULL, timeout=120, **owner)

    terms = ("-A", "trust", "-U", "ledger", "--encoding=UTF8")
    run(str(programs[-1]), "-D", data, *terms, *(() if is_durable else ("--no-sync",)))
    options = f"-c listen_addresses='' -k {directory}"
    run(pg_ctl, "-D", data, "-w", "-l", str(directory / "log"), "-o", options, "start")
    try:
        yield f"postgresql+psycopg://ledger@/postgres?host={directory}"
    finally:
        run(pg_ctl, "-D", data, "-m", "fast" if is_durable else "immediate", "-w", "stop")
        shutil.rmtree(directory)
