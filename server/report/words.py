"""The report in plain words: what was asked, what was done, what was measured.

The words never say that data are forgotten. They say what the attacks that were run call members, and
how good those attacks are: a number is a fact about a measurement, not a promise.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from server.report.report_data import ReportData
from unlearning.gdpr import Ground
from unlearning.outcomes import NEVER_USED, describe
from unlearning.verification.difference.holders import Answer
from unlearning.verification.figures import (
    CONFIDENCE,
    CONFIDENCE_POWER,
    FALL_OF_CONFIDENCE,
    LEARNT_MIA_U,
    MIA_U,
    RISE_OF_LOSS,
    YEOM,
    Estimate,
    Measurement,
    SetName,
)
from unlearning.verification.thresholds import CONFIDENCE_THRESHOLD, CORRECTNESS, ENTROPY, MODIFIED_ENTROPY

MISSING = "not measured"
NO_FIGURE = "–"
WEAK_ATTACK = 0.55  # balanced accuracy below which an attack is hardly better than a coin (0.5)
WIDE = 0.1  # of a share's 95 % interval, from which on the report says how little the share shows

ATTACK_NAMES = {YEOM: "Test 1 (loss attack)", CONFIDENCE: "Test 2 (confidence attack)"}
SHARES = {
    YEOM: "Loss attack (Yeom): forgotten records recognised",
    CONFIDENCE: "Confidence attack: forgotten records recognised",
    CONFIDENCE_POWER: "Confidence attack: its own balanced accuracy",
}
FIGURE_NAMES = {
    YEOM: "Loss (Yeom)",
    CONFIDENCE: "Confidence, learnt (support vector machine)",
    CORRECTNESS: "Correctness",
    CONFIDENCE_THRESHOLD: "Confidence, one threshold per class",
    ENTROPY: "Entropy, one threshold per class",
    MODIFIED_ENTROPY: "Modified entropy, one threshold per class",
    MIA_U: "Change from the model before (MIA-U, distance)",
    RISE_OF_LOSS: "Change, rise of the loss",
    FALL_OF_CONFIDENCE: "Change, fall of the confidence",
    **{name: f"Change, learnt (MIA-U, {construction})" for construction, name in LEARNT_MIA_U.items()},
}
STAGE_NAMES = {"before": "before", "unlearned": "after unlearning", "recovery": "after recovery"}


def share(value: float | None) -> str:
    """Return `61.2 %`, or that it was not measured."""
    return MISSING if value is None else f"{100 * value:.1f}\u202f%"


def number(value: float | None, digits: int = 3) -> str:
    """Return a number with a fixed number of digits, or that it was not measured."""
    return MISSING if value is None else f"{value:.{digits}f}"


def size(value: int | None) -> str:
    """Return `45.2 MB`, or `unknown`."""
    if value is None:
        return "unknown"
    amount, units = float(value), ["B", "kB", "MB", "GB", "TB"]
    while amount >= 1000 and len(units) > 1:
        amount, units = amount / 1000, units[1:]
    return f"{amount:.0f}\u202f{units[0]}" if units[0] == "B" else f"{amount:.1f}\u202f{units[0]}"


def memory(resident: int | None, on_device: int | None) -> str:
    """Return `412.0 MB`, or with a GPU `412.0 MB, 1.2 GB on the GPU`."""
    return size(resident) + ("" if on_device is None else f", {size(on_device)} on the GPU")


def duration(value: float | None) -> str:
    """Return `8.4 s`, `3 min 5 s`, `2 h 10 min`, or `unknown`."""
    if value is None:
        return "unknown"
    if value < 60:
        return f"{value:.1f}\u202fs"
    minutes, seconds = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes}\u202fmin {seconds}\u202fs"
    return f"{minutes // 60}\u202fh {minutes % 60}\u202fmin"


def moment(value: str) -> str:
    """Return `21 November 2025, 10:15:02 UTC`; what is no ISO time is shown as it is."""
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        return value or "unknown"
    zone = f" {time.tzname()}" if time.tzinfo is not None else ""
    return f"{time.day} {time:%B %Y, %H:%M:%S}{zone}"


def day(value: str) -> str:
    """Return `21 November 2025` of an ISO day or time; what is none is shown as it is."""
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        return value or "an unknown day"
    return f"{time.day} {time:%B %Y}"


def deadline(due_on: str, extended_days: int) -> str:
    """Return `2026-12-22`, and by how much that was extended; nothing where it is unknown."""
    return f"{due_on} (extended by {count(extended_days, 'day')})" if extended_days else due_on


def count(amount: int, noun: str) -> str:
    """Return `1 round`, `2,000 rounds`."""
    return f"{amount:,} {noun}{'' if amount == 1 else 's'}"


def headline(report: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the figures that readers look for, of a report as JSON: what it is, before the deletion, and after."""
    stages: dict[str, Mapping[str, Any]] = {}
    for item in report["measurements"]:
        if item["stage"] != "before" or "before" not in stages:
            stages[item["stage"]] = item
    before, after = stages.get("before", {}), stages.get("recovery") or stages.get("unlearned") or {}
    score = report["federation"]["score_name"]
    figures = {
        f"{score} on test data": ("test", "score"),
        f"{score} on the forgotten data": ("forgotten", "score"),
        "forgotten records that test 1, the loss attack, recognises": ("attacks", YEOM),
        "forgotten records that test 2, the confidence attack, recognises": ("attacks", CONFIDENCE),
    }
    if _is_guessing((after.get("attacks") or {}).get(CONFIDENCE_POWER)):
        figures.popitem()  # a test that says nothing is no large figure
    found = []
    for label, (part, name) in figures.items():
        then, now = ((item.get(part) or {}).get(name) for item in (before, after))
        found.append((label[0].upper() + label[1:], share(then), share(now)))
    return found


def describe_outcome(data: ReportData) -> str:
    """Say what may be told of the deletion, before any figure."""
    never_used = NEVER_USED in data.unlearning.findings
    return describe(data.outcome(), data.request.num_samples, data.guarantee, never_used=never_used)


def describe_request(data: ReportData) -> str:
    """Say when the request came in, by when it is due, and when it was carried out."""
    request = data.request
    ground = f" (ground: {Ground(request.ground).describe()})" if request.ground else ""
    deadline_ = f" It is to be answered by {day(request.due_on)}." if request.due_on else ""
    done = f" It was carried out on {moment(data.written_at)}" if data.written_at else " It was carried out"
    return (
        f"The request reached you on {day(request.received_on or request.created_at)}{ground}.{deadline_}{done} for "
        f"{records(request.target)} in the federation {data.federation.name}; "
        f"{request.submitted_by or 'an unknown person'} filed it on {moment(request.created_at)}."
    )


def describe_unlearning(data: ReportData) -> Iterator[str]:
    """Say what was carried out, one sentence each."""
    if NEVER_USED in data.unlearning.findings:
        yield f"No method was carried out. {data.unlearning.findings[NEVER_USED]} It stays as it was, bit for bit."
        yield data.exclusions_note
        return
    method, phase = data.request.method_title or data.request.method, data.unlearning
    attempt = "" if phase.attempts <= 1 else f" (attempt {phase.attempts})"
    yield (
        f"The method {method} ran for {count(phase.rounds, 'unlearning round')} with "
        f"{count(len(phase.participants), 'client')} taking part{attempt}."
    )
    if data.request.served_with:
        others = count(len(data.request.served_with), "other request")
        yield f"It served {others} in the same rounds: {', '.join(data.request.served_with)}."
    if data.model_hash_before and data.model_hash_before == data.model_hash_after_unlearning:
        yield "Attention: the unlearning rounds left the model as it was, bit for bit."
    yield _recovery(data)
    if data.exclusions_note:
        yield data.exclusions_note


def _recovery(data: ReportData) -> str:
    recovery, after = data.recovery, data.final()
    reason = recovery.stop_reason
    if recovery.rounds:
        ended = f" They ended because {reason}." if reason else ""
        return f"{count(recovery.rounds, 'recovery round')} on the retained data alone followed.{ended}"
    score, target = after.score("test") if after else None, recovery.target_score
    if score is not None and target is not None and score >= target:
        return (
            f"The model still does its work: its {data.federation.score_name} on test data is "
            f"{_in_hundred(score, data)}, and {_in_hundred(target, data)} is required. So it needed no repair by "
            "recovery rounds."
        )
    return "No recovery round followed." + (f" Reason: {reason}." if reason else "")


def describe_measurements(data: ReportData) -> Iterator[str]:
    """Say what the measurements show, one sentence each; the attacks are named as the ones used here."""
    before, after = data.first("before"), data.final()
    if after is None:
        yield "The model was not measured after unlearning, so nothing is known of the effect."
        return
    score = data.federation.score_name
    sets: dict[SetName, str] = {"test": "test data", "forgotten": "the forgotten data"}
    for name, called in sets.items():
        if (now := after.score(name)) is not None:
            yield f"The {score} on {called} is {share(now)}{_earlier(before.score(name) if before else None)}."
    for attack in (YEOM, CONFIDENCE):
        yield from _share_sentences(attack, before, after)


def _share_sentences(attack: str, before: Measurement | None, after: Measurement) -> Iterator[str]:
    now, name = after.attacks.get(attack), ATTACK_NAMES[attack]
    if now is None:
        yield f"{name} could not be run on the final model."
        return
    power = after.attacks.get(CONFIDENCE_POWER) if attack == CONFIDENCE else None
    if power is not None and _is_guessing(power):
        yield f"{name} is a coin toss here (right in {round(100 * power)} of 100 cases). Ignore its result."
        return
    figure = after.figures.get(attack)
    num_records = 0 if figure is None else figure.num_forgotten
    recognised = _part_of(now, num_records)
    earlier = before.attacks.get(attack) if before is not None else None
    then = "" if earlier is None else _part_of(earlier, num_records)
    tail = f", {then} before" if then and then != recognised else ", as it did before" if then else ""
    still = "still " if then == recognised else ""
    of_all = recognised if " of " in recognised else f"{recognised} of the"
    yield f"{name} {still}recognises {of_all} forgotten records as training data{tail}."
    if figure is not None and figure.called is not None and figure.called.high - figure.called.low > WIDE:
        low, high = (f"{100 * end:.0f}" for end in (figure.called.low, figure.called.high))
        yield (
            f"With so few records ({figure.num_forgotten:,}) the true share may lie between {low} and "
            f"{high}\u202f%."
        )
    if power is not None:
        yield f"Where the truth is known, {name} is right in {round(100 * power)} of 100 cases ({share(power)})."


def _in_hundred(score: float, data: ReportData) -> str:
    """Return `96.7 % (97 of 100)` where the score is a share of records, else the first only."""
    is_count = data.federation.score_name.endswith("accuracy")
    return share(score) + (f" ({round(100 * score)} of 100)" if is_count else "")


def _is_guessing(power: float | None) -> bool:
    return power is not None and power < WEAK_ATTACK


def _part_of(value: float, whole: int) -> str:
    """Return `5 of 5` where a share is that of so many records, else `12.4 %`."""
    number_ = round(value * whole)
    return f"{number_:,} of {whole:,}" if whole and abs(value * whole - number_) < 1e-6 else share(value)


def _earlier(value: float | None) -> str:
    return "" if value is None else f", {share(value)} before"


def records(target: str) -> str:
    """Return a target in the words of its readers: `5 records of client 3`."""
    return re.sub(r"^([\d,]+) sample(s?) of ", r"\1 record\2 of ", target)


def interval(estimate: Estimate | None, *, as_share: bool) -> str:
    """Return `12.4 % (9.0 to 16.1)` or `0.612 (0.570 to 0.655)`; empty where the attack has no such figure."""
    if estimate is None:
        return NO_FIGURE
    value, low, high = (
        f"{100 * number:.1f}" if as_share else f"{number:.3f}"
        for number in (estimate.value, estimate.low, estimate.high)
    )
    return f"{value}{chr(0x202F) + '%' if as_share else ''} ({low} to {high})"


def basis(answer: Answer) -> str:
    """Return what an answer on a deletion's traces rests on: `Measured: AUC 0.612 (0.570 to 0.655)`, `Derived`."""
    said = answer.basis.capitalize()
    return said if answer.auc is None else f"{said}: AUC {interval(answer.auc, as_share=False)}"


def flops(value: float | None) -> str:
    """Return `3.1e+09`, or that it was not counted."""
    return MISSING if value is None else f"{value:.2g}"


def gaps(data: ReportData) -> list[str]:
    """List everything that was not measured and why; what concerns every stage alike is said once."""
    stages: dict[str, list[str]] = {}
    for item in data.measurements:
        name = STAGE_NAMES[item.stage] if item.stage != "recovery" else f"after round {item.round}"
        for note in item.not_measured:
            stages.setdefault(note, []).append(name)
    everywhere = len(data.measurements)
    lines = list(data.not_measured)
    if data.first("before") is None:
        lines.append("the model before the deletion: no measurement was taken")
    if data.first("unlearned") is None:
        lines.append("the model right after unlearning: no measurement was taken")
    if data.first("recovery") is None:
        none = "no measurement was taken" if data.recovery.rounds else "there was no recovery round"
        lines.append(f"the model after recovery: {none}")
    for note, names in stages.items():
        where = "at every stage" if len(names) == everywhere else ", ".join(names)
        lines.append(f"{note} ({where})")
    return lines


def format_finding(value: Any) -> str:
    """Write what a method reports, for people: short numbers, lists in one line, nothing cut."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: MISSING}[value]
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return "; ".join(f"{name}: {format_finding(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(format_finding(item) for item in value)
    return str(value)
