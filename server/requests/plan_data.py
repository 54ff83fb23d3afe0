"""What a plan says (`flower-unlearn plan`), and the committed comparisons of which it quotes the nearest.

`comparisons.json` is made from the rows of docs/results by `python -m benchmarks.choosing`, which also makes the page
docs/choosing.md; a test compares the three. How a plan is worked out: `server.requests.planning`; which method it
recommends: `server.requests.recommending`.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from unlearning.requests import Granularity
from unlearning.runtime.json_codec import from_plain

_SHOWN = 20  # of the ids that a client does not have
FILE = Path(__file__).with_name("comparisons.json")
_CLEAR = 2.0  # standard errors of a difference, beyond which it is no accident of three seeds


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One method in one comparison, means over seeds.

    distance: to Retrain of the same seed, the largest of those of test, retained and forget accuracy, in points.
    error: its standard error over seeds; None of fewer than two.
    bytes, seconds: of unlearning and recovery together. failed: how many seeds have no figures, for the method failed.
    """

    distance: float
    bytes: float
    seconds: float
    failed: int = 0
    error: float | None = None

    def is_clearly_nearer_than(self, other: "Figures") -> bool:
        """Return whether it ends nearer to retraining by more than chance explains."""
        if self.error is None or other.error is None:
            return False
        return other.distance - self.distance > _CLEAR * math.hypot(self.error, other.error)

    def is_further_than(self, other: "Figures") -> bool:
        """Return whether it ends further from retraining, in the decimals that people are shown."""
        return round(self.distance, 1) > round(other.distance, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Methods that forgot the same in the same federation.

    title: for people, such as "CIFAR-10, CNN, IID, one client". page: of docs/results.
    nothing: the model as it was, `bytes` and `seconds` of its training; retrain: the same of retraining.
    """

    title: str
    page: str
    granularity: Granularity
    num_parameters: int
    nothing: Figures
    retrain: Figures
    methods: Mapping[str, Figures]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedDistance:
    """How a method did in one comparison.

    distance, nothing: in points, of the method and of the model as it was (`Figures.distance`).
    is_worse: whether it ended further off than that; None where the two differ by no more than chance.
    """

    title: str
    distance: float
    nothing: float
    is_worse: bool | None

    @property
    def text(self) -> str:
        """The line of a plan."""
        remark = {
            True: ", so it is worse than that",
            False: "",
            None: ", which is no clear difference",
        }[self.is_worse]
        return (
            f"{self.distance:.1f} points off Retrain, doing nothing {self.nothing:.1f}{remark} ({self.title})"
        )


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

    refusal: why it cannot; empty if it can. waits_for: the clients that it would wait for; empty if for none.
    bytes, flops: of unlearning by the closed formula; None where there is none, or nothing to count with.
    rounds: the same as a number of training rounds' bytes.
    compared: how it did in the committed comparison that is nearest to this federation; None where none is near.
    guarantee: what holds of its result without any test, in a sentence; empty where nothing does.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleCheck:
    """What the client says of the samples that a plan names. is_online: whether it can be asked now.

    is_answered: whether it has said it; until then a plan that is made again soon may have it.
    unknown: the ids that it does not have, as they were given. num_forgotten: how many it has forgotten already.
    """

    client: str
    num_samples: int
    is_online: bool = True
    is_answered: bool = False
    unknown: tuple[str, ...] = ()
    num_forgotten: int = 0

    @property
    def sentence(self) -> str:
        """Say it to people."""
        if not self.is_answered:
            why = "it has not answered yet" if self.is_online else "it is offline"
            return f"The ids were not checked at client {self.client}: {why}."
        parts = []
        if self.unknown:
            more = len(self.unknown) - _SHOWN
            shown = ", ".join(self.unknown[:_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
            parts.append(
                f"Client {self.client} does not have {len(self.unknown):,} of the {self.num_samples:,} samples: "
                f"{shown}. Correct the file; no method can forget what the site does not have."
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


@cache
def known() -> list[Comparison]:
    """Return all comparisons, in the order of the page."""
    return from_plain(list[Comparison], json.loads(FILE.read_text(encoding="utf-8")))
