"""What a demo says before and after: what will happen, and the outcome in figures and in plain words."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.demo.scenario import Scenario
from server.report.words import WEAK_ATTACK, count, share
from unlearning.verification.figures import CONFIDENCE, CONFIDENCE_POWER, YEOM


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
    """Return the measurements of a report (docs/reference-report.md): before, after unlearning, after recovery."""
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


def interpret(report: Mapping[str, Any], scenario: Scenario) -> Iterator[str]:
    """Yield what the figures say and what they do not, one sentence or two each."""
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
    """Return the last measurement of a stage; empty where there is none."""
    found: Sequence[Mapping[str, Any]] = [item for item in report["measurements"] if item["stage"] == name]
    return found[-1] if found else {}


def _digits(digits: Sequence[int]) -> str:
    *first, last = map(str, digits)
    return f"digits {', '.join(first)} and {last}" if first else f"digit {last}"
