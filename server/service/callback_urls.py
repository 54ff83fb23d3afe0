"""Which URLs may be called back: only those that the operator allowed, so no caller makes this machine call others."""

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias
from urllib.parse import SplitResult, unquote, urlsplit

from strategies.tls_files import is_loopback
from unlearning.errors import ConfigurationError, InvalidRequest

_LONGEST = 2000
_DEFAULT_PORTS = {"https": 443, "http": 80}


@dataclass(frozen=True, slots=True)
class AllowedUrls:
    """URLs that may be called, as the operator lists them: each itself, or, where it ends in `/`, all below it.

    Raises:
        ConfigurationError: lists all that can be no URL of a callback.
    """

    urls: tuple[str, ...]

    def __post_init__(self) -> None:
        problems = [f"http-callback-url: {url[:200]!r} {why}" for url in self.urls if (why := _problem(url))]
        if problems:
            raise ConfigurationError(problems)

    def check(self, url: str) -> None:
        """Refuse a URL that the operator did not allow.

        Raises:
            InvalidRequest: it is malformed, or not one of these.
        """
        why = _problem(url)
        if why:
            raise InvalidRequest(f"status_callback_urls: {url[:200]!r} {why}")
        if not self.includes(url):
            raise InvalidRequest(
                f"status_callback_urls: {url[:200]!r} is none that this service calls. Ask the federation's operator "
                "to allow it (--http-callback-url), or leave it out and ask for the status."
            )

    def includes(self, url: str) -> bool:
        """Return whether a well-formed URL is allowed."""
        asked = urlsplit(url)
        for text in self.urls:
            allowed = urlsplit(text)
            if origin_of(text) != origin_of(url):
                continue
            if (asked.path, asked.query) == (allowed.path, allowed.query):
                return True
            if not allowed.query and allowed.path.endswith("/") and asked.path.startswith(allowed.path):
                return True
        return False


Origin: TypeAlias = tuple[str, str, int | None]


@lru_cache(maxsize=10_000)
def origin_of(url: str) -> Origin:
    """Return scheme, host and port of a well-formed URL."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or _DEFAULT_PORTS.get(parts.scheme)


def _problem(url: str) -> str:
    """Return what is wrong with a URL, empty where nothing is. Two readers shall not see two things in one."""
    if len(url) > _LONGEST or not url.isascii() or not url.isprintable() or set(url) & set(' \\"<>^`{|}'):
        return (
            f"is malformed: at most {_LONGEST:,} printable ASCII characters without blanks and backslashes."
        )
    try:
        parts = urlsplit(url)
        origin_of(url)
    except ValueError as exc:
        return f"is malformed: {exc}."
    if parts.username is not None or parts.password is not None or parts.fragment or "#" in url:
        return "has a name, a password or a fragment; leave them out."
    if not parts.hostname or not _is_secure(parts):
        return "must begin with https:// (or http:// and an address of this machine's loopback)."
    decoded = unquote(parts.path)
    if (
        "%" in decoded
        or "\\" in decoded
        or {".", ".."} & set(decoded.split("/"))
        or "%2f" in parts.path.lower()
    ):
        return "has a path that goes up or is escaped twice; write it plainly."
    return ""


def _is_secure(parts: SplitResult) -> bool:
    if parts.scheme == "https":
        return True
    return parts.scheme == "http" and parts.hostname != "localhost" and is_loopback(f"{parts.hostname}:0")
