"""What a plan says (`flower-unlearn plan`).

How it is worked out: `server.requests.planning`; which method it recommends: `server.requests.recommending`; what was
measured before: `server.requests.comparisons`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from unlearning.one_line import list_first
from unlearning.requests import Target
from unlearning.verification.difference.holders import Holder

_SHOWN = 20  # of the ids that a client does not have


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedDistance:
    """How a method did in one comparison.

    distance, spread, nothing: in points, of the method and of the model as it was (`Figures`).
    is_worse: whether it ended further off than that; None where the two differ by no more than chance.
    rank: the places that it can have, of `num_ranked` methods. ranks: all that it can have over the measured data sets.
    source: `Comparison.source`. is_own: whether it is of the user's own runs.
    """

    distance: float
    spread: float | None
    nothing: float
    is_worse: bool | None
    rank: tuple[int, int]
    num_ranked: int
    ranks: str = ""
    source: str
    is_own: bool = False

    @property
    def text(self) -> str:
        """The line of a plan."""
        remark = {
            True: ", so it is worse than that",
            False: "",
            None: ", which is no clear difference",
        }[self.is_worse]
        spread = "" if self.spread is None else f" ± {self.spread:.1f}"
        elsewhere = f"; {self.ranks}" if self.ranks else ""
        return (
            f"{self.distance:.1f}{spread} points off Retrain, doing nothing {self.nothing:.1f}{remark}; place "
            f"{places(self.rank)} of {self.num_ranked} ({self.source}){elsewhere}"
        )


def places(rank: tuple[int, int]) -> str:
    """Return the places that a method can have, for people."""
    return f"{rank[0]}" if rank[0] == rank[1] else f"{rank[0]} to {rank[1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Medians over the deletions by one method among the newest that this federation has completed."""

    deletions: int
    seconds: float
    bytes: float
    recovery_rounds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMethod:
    """What is known beforehand of serving a request by one method.

    refusal: why it cannot; empty if it can. waits_for: the clients that it would wait for; empty if for none.
    bytes, flops: of unlearning by the closed formula; None where there is none, or nothing to count with.
    rounds: the same as a number of training rounds' bytes.
    compared: how it did in the committed comparison that is nearest to this federation; None where none is near.
    guarantee: what holds of its result without any test, in a sentence; empty where nothing does.
    reveals: what the deletion itself would tell those who see a part of it.
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
    compared: PublishedDistance | None = None
    guarantee: str = ""
    reveals: tuple[Holder, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleCheck:
    """What the client says of the samples that a plan names. is_online: whether it is there and a run can ask it.

    is_answered: whether it has said it; until then a plan that is made again soon may have it.
    unknown: the ids that it does not have, as they were given. removed: those that it could train on before and no
    longer has, which methods can forget that work without them. num_forgotten: how many it has forgotten already.
    moved: why its ids may name other samples than they did at first; empty where they do not.
    """

    client: str
    num_samples: int
    is_online: bool = True
    is_answered: bool = False
    unknown: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    num_forgotten: int = 0
    moved: str = ""

    @property
    def forbids(self) -> bool:
        """Whether no method may forget what these ids name."""
        return bool(self.unknown or self.moved)

    @property
    def sentence(self) -> str:
        """Say it to people."""
        if self.moved:
            return f"Client {self.client} says: {self.moved}"
        if not self.is_answered and not (self.unknown or self.removed):
            why = (
                "it has not answered yet, or the run has ended in the last 35 s"
                if self.is_online
                else "it is offline, or the federation does not run"
            )
            return f"The ids were not checked at client {self.client}: {why}."
        parts = []
        if self.unknown:
            parts.append(
                f"Client {self.client} does not have {len(self.unknown):,} of the {self.num_samples:,} samples: "
                f"{list_first(self.unknown, _SHOWN)}. Correct the file; "
                "of what it never had there is nothing to forget."
            )
        elif self.removed:
            parts.append(
                f"Client {self.client} no longer has {len(self.removed):,} of the {self.num_samples:,} samples: "
                f"{list_first(self.removed, _SHOWN)}. Methods that work without them can make the model forget them."
            )
        else:
            parts.append(f"Client {self.client} has all {self.num_samples:,} samples.")
        if self.num_forgotten:
            parts.append(f"{self.num_forgotten:,} of them it has forgotten already.")
        return " ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All methods for one target: the recommended one, others that can serve it, the rest; and a recovery round's cost.

    round_seconds: the median of recent training rounds; None before the first one.
    recommended, why: the method that a request without one gets, and the reason in a sentence; empty where none can.
    ranking: what the measurements nearest to this federation tell of an order of methods; empty where none is near.
    cannot_show: what tests will not be able to say of so few records; empty where there are enough.
    samples: what the client says of those that the target names; None where it names none.
    """

    target: str
    recommended: str
    why: str
    cannot_show: str
    recovery_max_rounds: int
    recovery_bytes: int
    recovery_flops: float | None
    round_seconds: float | None
    methods: tuple[PlannedMethod, ...]
    samples: SampleCheck | None = None
    ranking: str = ""


def joined(plans: Sequence[Plan], target: Target) -> Plan:
    """Return the plan for a target from those for the parts of its list of samples."""
    checks = [one.samples for one in plans if one.samples is not None]
    if len(plans) == 1 or not checks:
        return plans[0]
    samples = SampleCheck(
        client=checks[0].client,
        num_samples=sum(one.num_samples for one in checks),
        is_online=all(one.is_online for one in checks),
        is_answered=all(one.is_answered for one in checks),
        unknown=tuple(item for one in checks for item in one.unknown),
        removed=tuple(item for one in checks for item in one.removed),
        num_forgotten=sum(one.num_forgotten for one in checks),
        moved=next((one.moved for one in checks if one.moved), ""),
    )
    worst = max(checks, key=lambda one: (one.forbids, bool(one.removed)))
    base, own = next(one for one in plans if one.samples is worst), worst.sentence
    methods = tuple(
        replace(item, refusal=samples.sentence) if worst.forbids or item.refusal == own else item
        for item in base.methods
    )
    return replace(base, target=target.describe(), samples=samples, methods=methods)
