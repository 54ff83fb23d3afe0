"""Bearer tokens: who calls over HTTP, in the place of a certificate.

    {"tokens": [{"name": "hospital-0", "role": "client", "sha256": HEX, "made_at": TIME, "expires_at": TIME, ...}]}

The file is the operator's, mode 600. It has the tokens' hashes only; they are 256 random bits, so a plain SHA-256 hides
them. A change of the file counts from the next call on. Each change is made under a lock, `.FILE.lock` beside it.
The service writes the day on which each was used last to a file of its own: it may not be able to write to this one.
"""

import hashlib
import json
import secrets
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from logging import getLogger
from pathlib import Path
from typing import Annotated

from pydantic import Field

from server.service.access import Caller
from server.service.calls import Role
from unlearning.errors import ConfigurationError
from unlearning.one_line import as_line
from unlearning.requests import is_id
from unlearning.runtime.durable_files import OTHERS, file_lock, neighbour, write_atomically
from unlearning.runtime.json_codec import from_plain, to_plain

_log = getLogger(__name__)

MAX_TOKENS = 2
"""Of one caller: one is in use while the other takes its place."""
DEFAULT_DAYS = 365
_PREFIX = "fu_"  # by which scanners for secrets find one that was published


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """What is known of a token: whose it is, in which role, its SHA-256, and what it may.

    may_erase_clients: whether it may file the erasure of a whole client. is_sandbox: its requests change nothing.
    """

    name: str
    role: Role
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    made_at: datetime
    expires_at: datetime
    may_erase_clients: bool = False
    is_sandbox: bool = False

    @property
    def id(self) -> str:
        """What the token is called in lists: the beginning of its hash."""
        return self.sha256[:12]


@dataclass(frozen=True, slots=True)
class TokenFile:
    """All tokens of a file."""

    tokens: tuple[Token, ...] = ()


def make_token(
    path: Path,
    name: str,
    role: Role,
    now: datetime,
    *,
    days: int = DEFAULT_DAYS,
    may_erase_clients: bool = False,
    is_sandbox: bool = False,
) -> str:
    """Add a new token for this caller, valid for so many days, to the file, which is made if need be; return the token.

    Raises:
        ConfigurationError: the name is malformed, the caller has two tokens, or the file holds something else.
        OSError: it cannot be written.
    """
    if not is_id(name):
        raise ConfigurationError([f"name: {name[:40]!r} is no name: 1 to 200 printable characters."])
    token = _PREFIX + secrets.token_urlsafe(32)
    now = now.replace(microsecond=0)
    made = Token(
        name=name,
        role=role,
        sha256=_digest(token),
        made_at=now,
        expires_at=now + timedelta(days=days),
        may_erase_clients=may_erase_clients,
        is_sandbox=is_sandbox,
    )
    with _lock(path):
        before = read_tokens(path) if path.exists() else ()
        if len(_tokens_of(before, name, role)) >= MAX_TOKENS:
            raise ConfigurationError(
                [
                    f"http-token: {name} has {MAX_TOKENS} tokens as {role} already. `--remove-older` removes all "
                    "but the newest, `--remove` all."
                ]
            )
        _write(path, (*before, made))
    return token


def remove_tokens(path: Path, name: str, role: Role, *, keep: int = 0) -> int:
    """Remove all tokens of this caller from the file but the `keep` newest; return how many were removed.

    Raises:
        ConfigurationError: the file cannot be read or holds something else.
        OSError: it cannot be written.
    """
    if not path.exists():
        read_tokens(path)  # which says so; a lock would make its directory
    with _lock(path):
        before = read_tokens(path)
        own = _tokens_of(before, name, role)
        removed = own[: max(len(own) - keep, 0)]
        _write(path, tuple(item for item in before if item not in removed))
    return len(removed)


def _tokens_of(tokens: tuple[Token, ...], name: str, role: Role) -> tuple[Token, ...]:
    return tuple(item for item in tokens if (item.name, item.role) == (name, role))


def _lock(path: Path) -> AbstractContextManager[None]:
    return file_lock(neighbour(path, f".{path.name}.lock"))


def read_tokens(path: Path) -> tuple[Token, ...]:
    """Return the tokens of a file.

    Raises:
        ConfigurationError: it cannot be read, others can read it, or it holds something else.
    """
    advice = "`flower-unlearn http-token` makes it."
    try:
        mode, content = path.stat().st_mode, path.read_bytes()
    except OSError as exc:
        raise ConfigurationError([f"http-tokens: {path} cannot be read: {exc.strerror}. {advice}"]) from exc
    if mode & OTHERS:
        raise ConfigurationError([f"http-tokens: others on this machine can read {path}. chmod 600 it."])
    try:
        tokens = from_plain(TokenFile, json.loads(content), exactly=True).tokens
    except (ValueError, RecursionError) as exc:
        raise ConfigurationError(
            [f"http-tokens: {path} holds no tokens: {as_line(str(exc), 200)} {advice}"]
        ) from exc
    for token in tokens:
        if not is_id(token.name):
            raise ConfigurationError([f"http-tokens: {path}: {token.name[:40]!r} is no name."])
    return tokens


def last_uses(path: Path) -> Mapping[str, str]:
    """Return the days on which tokens were used last, by the tokens' ids, as the service wrote them down."""
    try:
        return from_plain(dict[str, str], json.loads(path.read_bytes()))
    except FileNotFoundError:
        return {}
    except ValueError as exc:
        _log.warning("%s is damaged, so earlier uses of tokens are not known: %s", path, exc)
        return {}


class Tokens:
    """The callers that the tokens of a file stand for; the file is read again when it has changed.

    uses: the file of the days on which they were used last.

    Raises:
        ConfigurationError: the file cannot be used now. Later no token is accepted then, and it is logged.
    """

    def __init__(self, path: Path, uses: Path, clock: Callable[[], datetime]) -> None:
        self._path, self._uses, self._clock = path, uses, clock
        self._seen = _state(path)
        self._tokens = self._read()
        self._used = dict(last_uses(uses))

    def caller_of(self, authorization: str) -> Caller:
        """Return who calls with this header `Authorization`; what is wrong with it is the caller's `problem`."""
        scheme, _, text = authorization.partition(" ")
        if scheme.lower() != "bearer" or not text:
            return _unknown("The call came without a token (Authorization: Bearer TOKEN).")
        self._refresh()
        token = self._tokens.get(_digest(text.strip()))
        if token is None:
            return _unknown("The token is not known here, or no longer.")
        now = self._clock()
        if token.expires_at <= now:
            return _unknown(f"The token of {token.name!r} expired at {token.expires_at:%Y-%m-%d %H:%M} UTC.")
        self._note_use(token, now)
        return Caller(
            token.name,
            token.role,
            credential="token",
            may_erase_clients=token.may_erase_clients,
            is_sandbox=token.is_sandbox,
        )

    def _note_use(self, token: Token, now: datetime) -> None:
        """Write down that a token was used; once a day, so that no caller keeps the disk busy."""
        day = f"{now.astimezone(UTC):%Y-%m-%d}"
        if self._used.get(token.id) == day:
            return
        self._used[token.id] = day
        known = {item.id for item in self._tokens.values()}
        self._used = {name: used for name, used in self._used.items() if name in known}
        try:
            write_atomically(self._uses, json.dumps(self._used, indent=2).encode() + b"\n")
        except OSError as exc:
            _log.warning("%s cannot be written, so a token's use is not noted: %s", self._uses, exc)

    def _refresh(self) -> None:
        now = _state(self._path)
        if now == self._seen:
            return
        self._seen = now
        try:
            self._tokens = self._read()
        except ConfigurationError as exc:
            _log.error("No token is accepted over HTTP: %s", exc.problems[0])
            self._tokens = {}

    def _read(self) -> Mapping[str, Token]:
        return {item.sha256: item for item in read_tokens(self._path)}


def _unknown(problem: str) -> Caller:
    return Caller("", None, problem=problem, credential="token")


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


def _state(path: Path) -> tuple[int, ...]:
    """Return what changes when the file does."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode


def _write(path: Path, tokens: tuple[Token, ...]) -> None:
    text = json.dumps(to_plain(TokenFile(tokens)), indent=2)
    write_atomically(path, text.encode() + b"\n")
