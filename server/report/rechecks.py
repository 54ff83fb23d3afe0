"""The rechecks of a completed deletion as a section of its page: a curve over further rounds, and a table.

The section of `report.html` is written again with each recheck; `report.json`, which the certificate names, stays.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from markupsafe import Markup

from server.report.templating import environment
from unlearning.runtime.durable_files import write_atomically

BEGIN, END = "<!-- rechecks -->", "<!-- end of rechecks -->"
LEVELS = {
    "score": "score on the forgotten data",
    "auc": "AUC of the loss attack",
    "class-test": "test records of the class recognised",
}
"""What is drawn, by its name in `unlearning.verification.persistence.levels`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recheck:
    """One recheck. rounds: since the completion, None where nothing was measured.

    levels: by `before` (the deletion), `completion` and `now`. planted: z by client whose owner planted noise.
    """

    at: datetime
    reopened: bool
    rounds: int | None = None
    now: str | None = None
    then: str | None = None
    missing: Sequence[str] = ()
    levels: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    planted: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, at: datetime, detail: Mapping[str, Any], *, reopened: bool) -> "Recheck":
        """Return the recheck that an event of the ledger has in its detail."""
        names = ("rounds", "now", "then", "missing", "levels", "planted")
        return cls(at=at, reopened=reopened, **{name: detail[name] for name in names if name in detail})


def section(found: Sequence[Recheck]) -> Markup:
    """Return the section as HTML."""
    from server.report.plots import recheck_plot  # it draws

    measured = [one for one in found if one.rounds is not None and one.levels.get("now")]
    points = tuple((one.rounds or 0, tuple(sorted(one.levels["now"].items()))) for one in measured)
    at_first = measured[0].levels if measured else {}
    plot = recheck_plot(
        ((0, tuple(sorted(at_first.get("completion", {}).items()))), *points),
        tuple(sorted(at_first.get("before", {}).items())),
        tuple(LEVELS.items()),
    )
    template = environment("server.report").get_template("rechecks.html")
    return Markup(template.render(found=found, at_first=at_first, names=LEVELS, plot=Markup(plot)))


def update_page(page: Path, found: Sequence[Recheck]) -> None:
    """Write the section of a report's page again; a page that is gone, or has none, stays so."""
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if begin and end:
        write_atomically(page, f"{head}{BEGIN}{section(found)}{END}{tail}".encode())
