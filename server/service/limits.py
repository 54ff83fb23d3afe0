"""How much of the deletion service one caller may take: message size, calls a second, calls at once, sample ids.

All counts are kept by the one thread of the service's event loop.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Annotated

from server.ledger import Allowance, LimitExceeded, Quota
from server.service.access import Caller
from server.service.calls import Role
from unlearning.errors import ConfigurationError
from unlearning.requests import MAX_SAMPLE_IDS

MEBIBYTE = 1024 * 1024
DAY_S = 86_400.0
LARGEST_MESSAGE_MIB = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The service's limits, each with its sentence on the command line; a caller has its own count, or it says whose.

    Operators together have as many places of their own as clients and officers have. Of calls a second twice as many
    are let in at once, of sample ids a day's worth.
    """

    max_message_mib: Annotated[float, "Largest message; 30,000 sample ids fit into one of 1 MiB."] = 1.0
    calls_per_s: Annotated[float, "Calls a second of each client and officer."] = 20.0
    operator_calls_per_s: Annotated[float, "Calls a second of each operator."] = 500.0
    max_open_requests: Annotated[int, "Open requests that one caller may have."] = 1000
    max_calls: Annotated[
        int, "Unanswered calls of all clients and officers; operators have as many apart."
    ] = 64
    max_calls_per_caller: Annotated[int, "Unanswered calls of each client and officer."] = 8
    body_timeout_s: Annotated[float, "How long to wait for a call's message."] = 10.0
    max_requests_per_day: Annotated[int, "Requests that one client may file within 24 hours."] = (
        Quota().requests_per_day
    )
    max_samples_per_day: Annotated[int, "Sample ids that a client's requests of 24 hours may name."] = (
        Quota().samples_per_day
    )
    staff_requests_per_day: Annotated[
        int, "Requests that one officer, operator or HTTP token may file within 24 hours."
    ] = 10_000
    max_uploads: Annotated[int, "Long lists of samples on their way, of all clients; operators likewise."] = 2
    sample_ids_per_day: Annotated[int, "Sample ids in long lists that each client may send."] = (
        2 * MAX_SAMPLE_IDS
    )

    def __post_init__(self) -> None:
        problems = [
            f"{item.name.replace('_', '-')}: it must be above 0, got {getattr(self, item.name)}."
            for item in fields(self)
            if not 0 < getattr(self, item.name) < float("inf")
        ]
        if not problems and self.max_message_mib > LARGEST_MESSAGE_MIB:
            problems.append(
                f"max-message-mib: at most {LARGEST_MESSAGE_MIB}, got {self.max_message_mib}; "
                "longer lists of samples come in parts by themselves."
            )
        if problems:
            raise ConfigurationError(problems)

    @property
    def max_message_bytes(self) -> int:
        """The largest message that a caller may send."""
        return int(self.max_message_mib * MEBIBYTE)

    def allowance(self, caller: Caller) -> Allowance:
        """Return how much a caller may file."""
        if caller.is_client or caller.is_sandbox:
            daily = Quota(
                requests_per_day=self.max_requests_per_day, samples_per_day=self.max_samples_per_day
            )
        else:
            most = self.staff_requests_per_day
            daily = Quota(requests_per_day=most, samples_per_day=most * MAX_SAMPLE_IDS)
        return Allowance(max_open=self.max_open_requests, daily=daily)

    def check_size(self, size_bytes: int) -> None:
        """Refuse a message that is too large.

        Raises:
            LimitExceeded: it is.
        """
        if size_bytes > self.max_message_bytes:
            raise LimitExceeded(
                f"The message has {size_bytes:,} bytes; at most {self.max_message_bytes:,} are allowed. "
                "Split the list of samples into several requests, or send it in parts (SubmitSamples).",
                code="message-size",
                size_bytes=size_bytes,
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

    def take(self, now: float, count: int = 1) -> float:
        """Take tokens; return 0 where there were as many, else the seconds until there are."""
        if self._at is not None:
            self._tokens = min(self.capacity, self._tokens + max(0.0, now - self._at) * self.rate_per_s)
        self._at = now
        if self._tokens < count:
            return (count - self._tokens) / self.rate_per_s
        self._tokens -= count
        return 0.0


class Rates:
    """Calls a second of each caller, and sample ids a day that each client sends in parts."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._buckets: dict[tuple[str, Role | None], TokenBucket] = {}
        self._samples: dict[str, TokenBucket] = {}

    def take(self, caller: Caller, now: float) -> None:
        """Count a call at `now` (seconds).

        Raises:
            LimitExceeded: the caller has made too many; says when to try again.
        """
        rate = self._limits.operator_calls_per_s if caller.is_operator else self._limits.calls_per_s
        # As many as there are certificates of the authority.
        bucket = self._buckets.setdefault((caller.name, caller.role), TokenBucket(rate, max(1.0, 2 * rate)))
        wait_s = bucket.take(now)
        if wait_s:
            raise LimitExceeded(
                f"Too many calls: {caller.name!r} may make {rate:g} a second. "
                f"Try again in {max(wait_s, 0.1):.1f} s.",
                code="too-many-calls",
                wait_s=wait_s,
            )

    def take_samples(self, caller: Caller, count: int, now: float) -> None:
        """Count sample ids that have come in parts at `now` (seconds); operators have no quota.

        Raises:
            LimitExceeded: the client has sent too many today; says when to try again.
        """
        if caller.is_operator:
            return
        per_day = self._limits.sample_ids_per_day
        bucket = self._samples.setdefault(caller.name, TokenBucket(per_day / DAY_S, per_day))
        wait_s = bucket.take(now, count)
        if wait_s:
            raise LimitExceeded(
                f"{caller.name!r} may send {per_day:,} sample ids a day in long lists. "
                f"Send a shorter list, or try again in {wait_s / 3600:.1f} h.",
                code="sample-quota",
                wait_s=wait_s,
            )


class Places:
    """Bounds on what may be open at once: `total` for clients and officers, `each` for one, and `total` for operators.

    No other caller takes an operator's place.
    """

    def __init__(self, total: int, each: int, doing: str, advice: str) -> None:
        self._total = total
        self._each = each
        self._doing = doing
        self._advice = advice
        self._taken: Counter[tuple[str, Role | None]] = Counter()

    @contextmanager
    def place(self, caller: Caller) -> Iterator[None]:
        """Hold a place for as long as the block runs.

        Raises:
            LimitExceeded: all places are taken, or all of this caller.
        """
        key = (caller.name, caller.role)
        taken = sum(
            count for (_, role), count in self._taken.items() if (role is Role.OPERATOR) == caller.is_operator
        )
        if not caller.is_operator and self._taken[key] >= self._each:
            raise LimitExceeded(
                f"{caller.name!r} is {self._doing} {self._taken[key]} times already. "
                f"End one of these, or {self._advice}.",
                code="places-of-a-caller",
            )
        if taken >= self._total:
            raise LimitExceeded(
                f"All {self._total} places for {self._doing} are taken. Try again later, or {self._advice}.",
                code="all-places",
            )
        self._taken[key] += 1
        try:
            yield
        finally:
            self._taken[key] -= 1
            if not self._taken[key]:
                del self._taken[key]
