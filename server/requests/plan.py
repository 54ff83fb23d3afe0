"""What a plan says: the answer of `flower-unlearn plan`. How it is worked out is in `server.requests.planning`."""

from dataclasses import dataclass

from server.requests.comparisons import PublishedRanks


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Medians over the deletions that this federation has completed by one method."""

    deletions: int
    seconds: float
    bytes: float
    recovery_rounds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMethod:
    """What is known beforehand of serving a request by one method.

    refusal: why it cannot; empty if it can. waits_for: whom it would wait for; empty if for nobody.
    bytes, flops: of unlearning by the closed formula; None where there is none, or nothing to count with.
    rounds: the same as a number of training rounds' bytes.
    compared: how it did in the committed comparison that is nearest to this federation; None where it is in none.
    """

    method: str
    title: str
    remark: str = ""
    refusal: str = ""
    waits_for: str = ""
    bytes: int | None = None
    flops: float | None = None
    rounds: float | None = None
    measured: Measured | None = None
    compared: PublishedRanks | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All methods for one target, those that can serve it first; and what a recovery round costs.

    round_seconds: the median of recent training rounds; None before the first one.
    """

    target: str
    recovery_max_rounds: int
    recovery_bytes: int
    recovery_flops: float | None
    round_seconds: float | None
    methods: tuple[PlannedMethod, ...]
