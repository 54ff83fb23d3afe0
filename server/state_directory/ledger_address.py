"""Which database is the ledger: what was asked for, what the environment names, or SQLite in the state directory.

A URL with a password is a secret. It comes by the environment of the programs that open the ledger, and nowhere
else: FLOWER_UNLEARNING_LEDGER holds the URL, FLOWER_UNLEARNING_LEDGER_FILE names a file of mode 600 that does.
"""

import os
import re
import sqlite3
from difflib import get_close_matches
from pathlib import Path

from unlearning.errors import ConfigurationError
from unlearning.runtime.durable_files import OTHERS

VARIABLE, FILE_VARIABLE = "FLOWER_UNLEARNING_LEDGER", "FLOWER_UNLEARNING_LEDGER_FILE"
LEDGER_FILE = "ledger.db"
# What follows a ? is taken for parameters, and %41 for A.
_READ_OTHERWISE = re.compile(r"\?|%[0-9A-Fa-f]{2}")
_RELATIVE = re.compile(r"sqlite(\+pysqlite)?:///(?!/|~/)")
LEAST_SQLITE = (3, 35)
"""Released in March 2021; RHEL 9 and Debian 11 have 3.34."""


def old_sqlite(version: tuple[int, ...] = sqlite3.sqlite_version_info) -> str:
    """Return what to say where this Python's SQLite is too old for a ledger and for Flower's SuperLink, else "".

    Both use RETURNING, and Flower's migrations DROP COLUMN.
    """
    if version >= LEAST_SQLITE:
        return ""
    found, least = (".".join(map(str, numbers)) for numbers in (version, LEAST_SQLITE))
    return (
        f"This Python has SQLite {found}; a ledger in a file and Flower's SuperLink need {least}. Make the virtual "
        "environment with a Python that brings its own, as uv and conda install them."
    )


def ledger_url(state_dir: Path) -> str:
    """Return the default ledger: SQLite in the state directory.

    Raises:
        ConfigurationError: the directory's path has what a URL would take for something else.
    """
    path = state_dir.absolute()
    if found := _READ_OTHERWISE.search(str(path)):
        raise ConfigurationError(
            [
                f"state-dir: {path} has {found[0]!r}, which means something else in a database's URL. Name another "
                "directory."
            ]
        )
    return f"sqlite:///{path / LEDGER_FILE}"


def asked_ledger(option: str, state_dir: Path) -> str:
    """Return the ledger of a command: its option, else what the environment names, else the default.

    Raises:
        ConfigurationError: what the environment says cannot be used.
    """
    return option or ledger_of_environment() or ledger_url(state_dir)


def ledger_of_run(setting: str, state_dir: Path) -> str:
    """Return the ledger of a run: what the environment names, or the run's setting, else the default.

    Raises:
        ConfigurationError: both are given and differ, what the environment says cannot be used, or a file's path is
            not the whole one.
    """
    named = ledger_of_environment()
    if named and setting and named != setting:
        raise ConfigurationError(
            [
                f"ledger: the run names one and {VARIABLE} or {FILE_VARIABLE} another. Leave out one of the two."
            ]
        )
    url = named or setting or ledger_url(state_dir)
    if _RELATIVE.match(url):
        raise ConfigurationError(
            [
                f"ledger: {url} is no whole path, and a run works in a directory of Flower's, so the deletion service "
                "would open another file. Give sqlite:////path/to/ledger.db."
            ]
        )
    return url


def ledger_of_environment() -> str:
    """Return the URL that the environment gives; empty where it gives none.

    Raises:
        ConfigurationError: both variables are set or one is misspelt, or the file cannot be read, is empty, or open to
            others.
    """
    pair = (VARIABLE, FILE_VARIABLE)
    if wrong := [
        name for name in os.environ if name not in pair and get_close_matches(name, pair, cutoff=0.9)
    ]:
        raise ConfigurationError(
            [f"ledger: nothing reads the variable {min(wrong)}; {VARIABLE} or {FILE_VARIABLE} is meant."]
        )
    url, file = os.environ.get(VARIABLE, ""), os.environ.get(FILE_VARIABLE, "")
    if not file:
        return url
    if url:
        raise ConfigurationError(
            [f"ledger: {VARIABLE} and {FILE_VARIABLE} are both set. Unset one of the two."]
        )
    path = Path(file)
    try:
        mode, url = path.stat().st_mode, path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigurationError(
            [f"ledger: {FILE_VARIABLE} names {path}, which cannot be read: {exc}."]
        ) from exc
    if mode & OTHERS:
        raise ConfigurationError(
            [f"ledger: others on this machine can read {path}. chmod 600 it, and change the password in it."]
        )
    if not url:
        raise ConfigurationError([f"ledger: {path} is empty; it shall hold the ledger's URL."])
    return url
