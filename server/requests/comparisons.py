"""What was measured of methods before: the committed comparisons, and the user's own runs.

`comparisons.json` is made from the rows of docs/results by `python -m benchmarks.choosing`, which also makes
docs/explanation-choosing-a-method.md and docs/results/distances.md; a test compares them. Own runs come from a file of
the state directory into the ledger, where plans read them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from logging import getLogger
from pathlib import Path

from server.ledger import OWN_COMPARISONS, Ledger, LedgerWriter
from unlearning.errors import DataError
from unlearning.requests import Granularity
from unlearning.runtime.json_codec import from_plain, to_plain

FILE = Path(__file__).with_name("comparisons.json")
NOTHING = "nothing"
"""The model as it was, among the names in `Figures.nearer_than`."""
_log = getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One method in one comparison, means over seeds.

    distance: to Retrain of its own kind and the same seed, the largest of those of test, retained and forget accuracy,
        in points.
    spread: its standard deviation over seeds; None of fewer than two.
    bytes, seconds: of unlearning and recovery together. failed: how many seeds have no figures, for the method failed.
    nearer_than: the others of the comparison that it ended nearer to retraining than, by more than chance explains
        (`benchmarks.bench.comparing`); `NOTHING` is the model as it was.
    """

    distance: float
    bytes: float
    seconds: float
    failed: int = 0
    spread: float | None = None
    nearer_than: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The distance, with its spread where there is one."""
        return f"{self.distance:.1f}" + ("" if self.spread is None else f" ± {self.spread:.1f}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Methods that forgot the same in the same federation.

    title: for people, such as "CIFAR-10, CNN, IID, one client". page: of docs/results; empty for the user's own runs.
    input_dimensions: of one input, 3 for pictures and 1 for rows of a table or counts of words.
    made_on: the days of the runs, in ISO 8601. nothing: the model as it was, `bytes` and `seconds` of its training;
    retrain: the same of retraining.
    """

    title: str
    page: str
    granularity: Granularity
    num_parameters: int
    input_dimensions: int = 3
    num_seeds: int = 0
    made_on: str = ""
    nothing: Figures
    retrain: Figures
    methods: Mapping[str, Figures]

    def is_nearer(self, first: str, second: str) -> bool:
        """Return whether one of `methods`, or `NOTHING`, ended nearer to retraining than one, by more than chance."""
        found = self.nothing if first == NOTHING else self.methods[first]
        return second in found.nearer_than

    def rank(self, name: str) -> tuple[int, int]:
        """Return the places, from 1, that a method can have as far as the seeds tell.

        Source: Mogstad, Romano, Shaikh, Wilhelm, Inference for Ranks, Review of Economic Studies 91(1), 2024.
        """
        others = [other for other in self.methods if other != name]
        nearer = sum(self.is_nearer(other, name) for other in others)
        further = sum(self.is_nearer(name, other) for other in others)
        return 1 + nearer, len(self.methods) - further

    @property
    def front(self) -> list[str]:
        """The methods that none ended nearer than, by name; all of them where the seeds tell none apart."""
        return [name for name in self.methods if self.rank(name)[0] == 1]

    @property
    def ranking(self) -> str:
        """What the seeds tell of an order, in a sentence."""
        if len(self.front) == len(self.methods):
            return f"No method is better than another here: {self.source}."
        return f"Not told apart from the nearest to retraining: {', '.join(self.front)} ({self.source})."

    @property
    def source(self) -> str:
        """Where the figures come from, with the number of seeds: the title, or of own runs their date."""
        seeds = f"{self.num_seeds} seed{'' if self.num_seeds == 1 else 's'}"
        return f"{self.title if self.page else f'your own runs of {self.made_on}'}, {seeds}"


@cache
def known() -> list[Comparison]:
    """Return all comparisons, in the order of the page."""
    return from_plain(list[Comparison], json.loads(FILE.read_text(encoding="utf-8")))


def own_comparisons(ledger: Ledger) -> list[Comparison]:
    """Return what the user's own runs measured for this federation; empty where there are none."""
    return from_plain(list[Comparison], ledger.facts().get(OWN_COMPARISONS) or [])


class OwnRuns:
    """The file that `flower-unlearn bench --app` writes; it may come, change and go while the federation runs."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: int | None = -1

    def announce(self, ledger: Ledger, writer: LedgerWriter) -> None:
        """Write into the ledger what the file says, where it has changed; a damaged one counts for nothing."""
        changed = self._path.stat().st_mtime_ns if self._path.exists() else None
        if changed == self._seen:
            return
        self._seen = changed
        said = [to_plain(item) for item in self._read()] if changed else []
        if said != (ledger.facts().get(OWN_COMPARISONS) or []):
            writer.set_facts({OWN_COMPARISONS: said})

    def _read(self) -> list[Comparison]:
        try:
            return from_plain(list[Comparison], json.loads(self._path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, DataError) as exc:
            _log.error("%s is damaged (%s), so plans do without own runs: make it again.", self._path, exc)
            return []
