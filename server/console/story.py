"""A request's story for its page: the timeline, the attempts, and the figures before and after."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from server.api.client import Report
from server.api.narrator import MEANINGS
from server.ledger import Event
from server.ledger.records import SUBMITTED
from server.ledger.texts import ERASED, TEXTS
from server.report import words
from unlearning.requests import Status
from unlearning.verification.standard_attacks import CONFIDENCE, YEOM


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the timeline: when, what happened, who did it, and why as far as that is known."""

    at: datetime
    what: str
    who: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt that ended before its time: when and why."""

    number: int
    at: datetime
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """A figure of the model that the deletion left behind, and the one before."""

    label: str
    before: str
    after: str


def timeline(events: Iterable[Event]) -> list[Line]:
    """Return what happened, in order."""
    return [Line(at=event.at, what=_what(event), who=event.actor, why=_why(event)) for event in events]


def attempts(events: Iterable[Event]) -> list[Attempt]:
    """Return the attempts that did not lead to a model, with their reasons."""
    ended = [
        event
        for event in events
        if event.from_status in (Status.UNLEARNING, Status.RECOVERING)
        and event.to_status in (Status.SCHEDULED, Status.FAILED)
    ]
    return [
        Attempt(number=number, at=event.at, reason=str(event.detail.get("reason") or "no reason given"))
        for number, event in enumerate(ended, start=1)
    ]


def tiles(report: Report) -> list[Tile]:
    """Return the figures that the report puts first."""
    data = json.loads(report.json)
    before, after = _measurement(data, ("before",)), _measurement(data, ("recovery", "unlearned"))
    score = str(data.get("federation", {}).get("score_name", "accuracy"))
    told = {
        f"{score} on test data": ("test", "score"),
        f"{score} on the forgotten data": ("forgotten", "score"),
        "forgotten examples the loss attack calls members": ("attacks", YEOM),
        "forgotten examples the confidence attack calls members": ("attacks", CONFIDENCE),
    }
    return [
        Tile(
            label=label[0].upper() + label[1:],
            before=words.share(_number(before, *place)),
            after=words.share(_number(after, *place)),
        )
        for label, place in told.items()
    ]


def verdict(report: Report) -> str:
    """Return what the report's attacks show, in its own words."""
    attacks = json.loads(report.json).get("attacks", {})
    return " ".join([f"Verdict: {attacks.get('verdict', 'unknown')}.", *map(str, attacks.get("reasons", ()))])


def has_texts(events: Iterable[Event]) -> bool:
    """Return whether a request has texts of people that are not erased, also such that were replaced since."""
    details = [event.detail for event in events]
    written = {named["number"] for detail in details for named in detail.get(TEXTS, {}).values()}
    return bool(written.difference(*(detail.get(ERASED, ()) for detail in details)))


def _what(event: Event) -> str:
    status = Status.RECEIVED if event.kind == SUBMITTED else event.to_status
    if status is None:
        return event.kind
    moved = f"{event.from_status} → {status}" if event.from_status else str(status)
    return f"{moved}: {MEANINGS[status]}"


def _why(event: Event) -> str:
    said = (event.detail.get("reason"), event.detail.get("text"), event.text)
    return " ".join(str(text) for text in said if text)


def _measurement(data: Mapping[str, Any], stages: Iterable[str]) -> Mapping[str, Any]:
    found: list[Mapping[str, Any]] = data.get("measurements", [])
    for stage in stages:
        these = [item for item in found if item.get("stage") == stage]
        if these:
            return these[0] if stage == "before" else these[-1]
    return {}


def _number(measurement: Mapping[str, Any], part: str, name: str) -> float | None:
    value = (measurement.get(part) or {}).get(name)
    return float(value) if isinstance(value, int | float) else None
