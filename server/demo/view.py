"""What a person sees of a demo: lines as things happen, and the outcome in figures and in plain words."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from textwrap import wrap
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from server.demo.scenario import Scenario
from server.ledger import Event, RoundRecord
from server.ledger.records import SUBMITTED
from server.report.words import WEAK_ATTACK, count, duration, share
from unlearning.requests import Status
from unlearning.verification.measurement import CONFIDENCE, CONFIDENCE_POWER, YEOM

MEANINGS: Mapping[Status, str] = {
    Status.RECEIVED: "filed and durable; its data sits out every round from the next on",
    Status.SCHEDULED: "checked again with the live federation; it is next",
    Status.UNLEARNING: "the model is measured as it is, then the method runs",
    Status.RECOVERING: "the unlearned model recovers without the data; the one before can still come back",
    Status.VERIFYING: "the gate let it pass, the data is excluded for good, the report is written",
    Status.COMPLETED: "the report is ready",
    Status.FAILED: "given up",
    Status.CANCELLED: "withdrawn",
}

_MOST_NAMES = 6


class Narrator:
    """Says what happens: each line with the time since the start; a terminal also shows what is going on."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = time.monotonic()
        self._progress: Progress | None = None
        self._going_on = ""

    @contextmanager
    def telling(self) -> Iterator[None]:
        """While this lasts, a terminal has a moving line at the bottom: what is going on, since when."""
        if not self._console.is_terminal:
            yield
            return
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=self._console, transient=True) as self._progress:
            self._progress.add_task("", total=None)
            yield

    def now(self, text: str) -> None:
        """Say what is going on; without a terminal once, when it begins."""
        if self._progress is not None:
            task = self._progress.task_ids[0]
            if text != self._going_on:
                self._progress.reset(task, description=f"{text} …")
        elif text != self._going_on:
            self.say(f"{text} …")
        self._going_on = text

    def say(self, text: str, style: str = "") -> None:
        """Say what has happened."""
        minutes, seconds = divmod(int(time.monotonic() - self._started), 60)
        head = f"{minutes:>2}:{seconds:02}  "
        lines = wrap(text, max(20, self._console.width - len(head))) or [""]
        told = Text(head, style="dim")
        told.append(("\n" + " " * len(head)).join(lines), style=style)
        self._console.print(told)

    def event(self, event: Event) -> None:
        """Say what has become of a request."""
        if event.kind == SUBMITTED:
            status: Status | None = Status.RECEIVED
        else:
            status = event.to_status
        said = event.detail.get("reason") or event.detail.get("text") or ""
        if status is not None:
            said = f"{MEANINGS[status]} ({said})" if said else MEANINGS[status]
        self.say(f"request {event.request_id} {status or event.kind}: {said}", "bold cyan")

    def round(self, record: RoundRecord) -> None:
        """Say how a round ended."""
        metrics = record.metrics
        clients = _clients(metrics.get("participants") or [])
        self.say(
            f"round {record.round}  {record.kind:<10}  {clients:<16}  "
            f"test accuracy {share(metrics.get('test_score'))}  {duration(metrics.get('seconds'))}"
        )


def introduce(console: Console, scenario: Scenario) -> None:
    """Say what is about to happen."""
    target, digits = scenario.target.describe(), scenario.alone
    console.print(
        f"{scenario.num_clients} clients hold {scenario.num_examples_all:,} pictures of handwritten digits and "
        "learn to read them together: a small network, trained with FedAvg; no picture leaves its client. "
        f"{target[0].upper()}{target[1:]} has {scenario.num_examples:,} of the pictures"
        + (f", among them nearly all of the {_digits(digits)} that there are" if digits else "")
        + f". While training goes on it asks to be forgotten, by {scenario.method}.\n"
    )


def outcome_table(report: Mapping[str, Any]) -> Table:
    """The measurements of a report (docs/report.md): before, after unlearning, after recovery."""
    stages = [_stage(report, "before"), _stage(report, "unlearned"), _stage(report, "recovery")]
    table = Table(title="What was measured", title_justify="left", title_style="bold")
    table.add_column("")
    for name in ("before", "after\nunlearning", "after\nrecovery"):
        table.add_column(name, justify="right", vertical="bottom")
    for name, data in (
        ("accuracy on test data", "test"),
        ("accuracy on the others' training data", "retained"),
        ("accuracy on the forgotten data", "forgotten"),
    ):
        table.add_row(name, *(share((stage.get(data) or {}).get("score")) for stage in stages))
    table.add_section()
    table.add_row("forgotten data called members by")
    for name, attack in (("the loss attack (Yeom)", YEOM), ("the confidence attack", CONFIDENCE)):
        table.add_row(f"  {name}", *(share(stage.get("attacks", {}).get(attack)) for stage in stages))
    return table


def reading(report: Mapping[str, Any], scenario: Scenario) -> Iterator[str]:
    """What the figures say and what they do not, one sentence or two each."""
    before, after = _stage(report, "before"), _stage(report, "recovery") or _stage(report, "unlearned")
    yield (
        "A member is an example that the model was trained on; an attack guesses that from the model's "
        "answers. Few forgotten examples called members means that these two attacks find little, not "
        "that nothing is left to find."
    )
    power = after.get("attacks", {}).get(CONFIDENCE_POWER)
    if power is not None:
        verdict = ", so its guesses are worth little here" if power < WEAK_ATTACK else ""
        yield (
            f"Where the truth is known, the confidence attack is right in {share(power)} of the cases; "
            f"50\u202f% would be tossing a coin{verdict}."
        )
    earlier, later = ((stage.get("test") or {}).get("score") for stage in (before, after))
    if scenario.alone and earlier is not None and later is not None and later < earlier:
        yield (
            f"The test data hold all ten digits, and only {scenario.target.describe()} knew the "
            f"{_digits(scenario.alone)} well: hardly anybody is left to learn them from."
        )
    rounds = report["recovery"]["rounds"]
    yield (
        f"Recovery took {count(rounds, 'round')} and ended because {report['recovery']['stop_reason']}; "
        "a demo has no time for many."
    )


def _stage(report: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The last measurement of a stage; empty where there is none."""
    found: Sequence[Mapping[str, Any]] = [item for item in report["measurements"] if item["stage"] == name]
    return found[-1] if found else {}


def _clients(names: Sequence[str]) -> str:
    if len(names) > _MOST_NAMES:
        return f"{len(names)} clients"
    return f"{'client' if len(names) == 1 else 'clients'} {', '.join(names) or '–'}"


def _digits(digits: Sequence[int]) -> str:
    *first, last = map(str, digits)
    return f"digits {', '.join(first)} and {last}" if first else f"digit {last}"
