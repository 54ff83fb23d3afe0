"""What a deletion report holds. `ReportData.to_json()` is documented field by field in docs/reference-report.md.

Everything here is a fact that the ledger, the checkpoint or a measurement knows; None or an empty text
means unknown and is shown as such. Times are ISO 8601 in UTC, durations seconds, sizes bytes.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from pydantic_core import to_json

from unlearning.outcomes import Guarantee
from unlearning.requests import DeletionRequest, Outcome, facts_of
from unlearning.runtime.json_codec import to_plain
from unlearning.runtime.peak_memory import PeakMemory
from unlearning.verification.difference.holders import Holder
from unlearning.verification.figures import Measurement, Stage
from unlearning.verification.verdict import Verdict, outcome_of, verdict

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedRequest:
    """The request as it was submitted. The ids of samples stay out of the report; their number is in.

    received_on, due_on: days; the deadline with its extension. ground: a letter of Art. 17(1).
    reference_sha256: salted hash of the officer's reference (`server.ledger.texts`); a person's texts stay out.
    """

    id: str
    target: str
    granularity: str
    client_id: str | None = None
    num_samples: int | None = None
    class_label: int | None = None
    method: str
    method_title: str = ""
    method_source: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    submitted_by: str
    created_at: str
    served_with: tuple[str, ...] = ()
    received_on: str = ""
    due_on: str = ""
    extended_days: int = 0
    ground: str | None = None
    reference_sha256: str | None = None

    @classmethod
    def of(cls, request: DeletionRequest, **more: Any) -> "ReportedRequest":
        """Return what is reported of a request: its fields of the same names, and `more`."""
        known = facts_of(request) | more
        return cls(**{item.name: known[item.name] for item in fields(cls) if item.name in known})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportEvent:
    """One line of the request's history: when, what (`scheduled → unlearning`), and why if known."""

    time: str
    move: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FederationSummary:
    """The federation at the time of the report; `score_name` is what scores are (`accuracy`, `dice`)."""

    name: str
    task: str = ""
    score_name: str = "accuracy"
    clients_known: tuple[str, ...] = ()
    clients_retained: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeCost:
    """What exchanges with clients cost."""

    seconds: float | None = None
    bytes_sent: int | None = None
    bytes_received: int | None = None
    peak_memory: PeakMemory = field(default_factory=PeakMemory)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlearningPhase(ExchangeCost):
    """What the unlearning method did and cost. `attempts` counts this one.

    findings: what the method itself reports, by name: figures and plain sentences.
    """

    rounds: int
    participants: tuple[str, ...] = ()
    attempts: int = 1
    findings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPhase(ExchangeCost):
    """The ordinary rounds without the forgotten data, and why they ended."""

    rounds: int
    stop_reason: str = ""
    target_score: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FormulaCost:
    """A phase's cost by closed formula, beside the bytes measured in both directions.

    ratio: measured / formula; None where the formula says 0 or nothing was measured.
    explanation: what the two differ by, where that is more than 1 %.
    formula_flops: None where there was no example to count on. storage_bytes: what the method keeps.
    """

    phase: str
    formula_bytes: int
    measured_bytes: int | None = None
    ratio: float | None = None
    explanation: str = ""
    formula_flops: float | None = None
    storage_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportData:
    """All that the JSON file and the page say about one deletion.

    model_hash_*: SHA-256 of the model before, after the unlearning rounds, and after recovery; of its frozen part,
        which does not travel and is in none of the others, empty where nothing is frozen.
    measuring: what the measurements of this report cost.
    is_exact: whether the model after unlearning was trained without the forgotten data.
    guarantee: what is proven of the released model.
    reveals: what the deletion itself tells each of those who saw a part of it.
    not_measured: what this report cannot say and why, beside what each measurement names itself.
    """

    request: ReportedRequest
    federation: FederationSummary
    model_hash_before: str = ""
    model_hash_after_unlearning: str = ""
    model_hash_after: str = ""
    model_hash_frozen: str = ""
    unlearning: UnlearningPhase
    recovery: RecoveryPhase
    measuring: ExchangeCost | None = None
    formulas: tuple[FormulaCost, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    is_exact: bool = False
    guarantee: Guarantee | None = None
    reveals: tuple[Holder, ...] = ()
    events: tuple[ReportEvent, ...] = ()
    stop_rule: str = ""
    exclusions_note: str = ""
    not_measured: tuple[str, ...] = ()
    software: Mapping[str, str] = field(default_factory=dict)
    seeds: Mapping[str, int] = field(default_factory=dict)
    written_at: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object. A number that is not finite becomes null: JSON has no word for it."""
        before, after = self.first("before"), self.final()
        reached = self.verdict()
        attacks = {
            "verdict": str(reached.finding),
            "reasons": list(reached.reasons),
            "before": to_plain(before)["figures"] if before is not None else {},
            "after": to_plain(after)["figures"] if after is not None else {},
        }
        whole = {
            "schema_version": SCHEMA_VERSION,
            "outcome": str(self.outcome()),
            "attacks": attacks,
            **to_plain(self),
        }
        plain: dict[str, Any] = json.loads(to_json(whole, inf_nan_mode="null"))
        return plain

    def verdict(self) -> Verdict:
        """Return what the attacks show; a live federation has no retrained model to compare with."""
        before, after = self.first("before"), self.final()
        return verdict(before.figures if before else None, after.figures if after else None)

    def outcome(self) -> Outcome:
        """Return what the deletion achieved."""
        return outcome_of(
            self.verdict().finding, is_exact=self.is_exact, is_guaranteed=self.guarantee is not None
        )

    def final(self) -> Measurement | None:
        """Return the measurement of the model that the deletion left behind."""
        return self.last("recovery") or self.last("unlearned")

    def first(self, stage: Stage) -> Measurement | None:
        """Return the first measurement of `stage`."""
        return next((item for item in self.measurements if item.stage == stage), None)

    def last(self, stage: Stage) -> Measurement | None:
        """Return the last measurement of `stage`."""
        return next((item for item in reversed(self.measurements) if item.stage == stage), None)
