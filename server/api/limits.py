"""How much of the deletion service one caller may take: message size, calls a second, streams."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from server.api.access import Caller, Role
from server.ledger import LimitExceeded
from unlearning.errors import ConfigurationError

MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The service's limits; each caller has its own count unless said otherwise.

    max_message_mib: a list of a million sample ids of ordinary length fits into the default.
    calls_per_s: of clients and officers, with twice as many at once; operator_calls_per_s likewise.
    max_open_requests: filed by one caller and not over.
    max_watchers: of all callers together; each holds a thread. Clients and officers have
        max_watchers_per_caller each.
    """

    max_message_mib: float = 64.0
    calls_per_s: float = 20.0
    operator_calls_per_s: float = 500.0
    max_open_requests: int = 1000
    max_watchers: int = 16
    max_watchers_per_caller: int = 4

    def __post_init__(self) -> None:
        names = (
            "max_message_mib",
            "calls_per_s",
            "operator_calls_per_s",
            "max_open_requests",
            "max_watchers",
        )
        problems = [
            f"{name.replace('_', '-')}: it must be above 0, got {getattr(self, name)}."
            for name in (*names, "max_watchers_per_caller")
            if not 0 < getattr(self, name) < float("inf")
        ]
        if not problems and self.max_message_mib > 512:
            problems.append(f"max-message-mib: at most 512, got {self.max_message_mib}.")
        if problems:
            raise ConfigurationError(problems)

    @property
    def max_message_bytes(self) -> int:
        """The largest message that a caller may send."""
        return int(self.max_message_mib * MEBIBYTE)

    def check_size(self, size_bytes: int) -> None:
        """Refuse a message that is too large.

        Raises:
            LimitExceeded: it is.
        """
        if size_bytes > self.max_message_bytes:
            raise LimitExceeded(
                f"The message has {size_bytes:,} bytes; at most {self.max_message_bytes:,} are allowed. "
                "Split the list of samples into several requests."
            )


@dataclass(slots=True)
class TokenBucket:
    """`rate_per_s` tokens flow in, at most `capacity` are kept; times are seconds of any one clock."""

    rate_per_s: float
    capacity: float
    _tokens: float = field(init=False)
    _at: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._tokens = self.capacity

    def take(self, now: float) -> float:
        """Take one token: 0 where there was one, else the seconds until there is."""
        if self._at is not None:
            self._tokens = min(self.capacity, self._tokens + max(0.0, now - self._at) * self.rate_per_s)
        self._at = now
        if self._tokens < 1:
            return (1 - self._tokens) / self.rate_per_s
        self._tokens -= 1
        return 0.0


class Rates:
    """Calls a second of each caller."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._buckets: dict[tuple[str, Role | None], TokenBucket] = {}
        self._lock = threading.Lock()

    def take(self, caller: Caller, now: float) -> None:
        """Count a call at `now` (seconds).

        Raises:
            LimitExceeded: the caller has made too many; says when to try again.
        """
        operator = caller.role is Role.OPERATOR
        rate = self._limits.operator_calls_per_s if operator else self._limits.calls_per_s
        with self._lock:
            # As many as there are certificates of the authority.
            bucket = self._buckets.setdefault(
                (caller.name, caller.role), TokenBucket(rate, max(1.0, 2 * rate))
            )
            wait_s = bucket.take(now)
        if wait_s:
            raise LimitExceeded(
                f"Too many calls: {caller.name!r} may make {rate:g} a second. "
                f"Try again in {max(wait_s, 0.1):.1f} s."
            )


class Watchers:
    """The streams that are open."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._open: Counter[tuple[str, Role | None]] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def place(self, caller: Caller) -> Iterator[None]:
        """A place for one stream, for as long as the block runs.

        Raises:
            LimitExceeded: all places are taken, or all of this caller.
        """
        key = (caller.name, caller.role)
        with self._lock:
            if self._open.total() >= self._limits.max_watchers:
                raise LimitExceeded(
                    f"{self._limits.max_watchers} callers are watching already. Ask for the status instead."
                )
            if caller.role is not Role.OPERATOR and self._open[key] >= self._limits.max_watchers_per_caller:
                raise LimitExceeded(
                    f"{caller.name!r} is watching {self._open[key]} times already. "
                    "End one of these, or ask for the status instead."
                )
            self._open[key] += 1
        try:
            yield
        finally:
            with self._lock:
                self._open[key] -= 1
                if not self._open[key]:
                    del self._open[key]
