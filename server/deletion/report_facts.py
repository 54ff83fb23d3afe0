"""Gathers what the report of a deletion says, from the ledger, the state and the settings."""

import platform
from collections.abc import Sequence
from dataclasses import fields
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from server.deletion.formula_costs import formula_costs
from server.deletion.model_measurements import classes_left_out
from server.deletion.open_deletion import OpenDeletion
from server.deletion.privacy_account import drop_release
from server.federation.gate import name_of_test_score
from server.federation.state import FederationState, PhaseCost
from server.ledger import Event, Ledger
from server.ledger.records import EXTENDED
from server.ledger.texts import Kind
from server.report.report_data import (
    ExchangeCost,
    FederationSummary,
    RecoveryPhase,
    ReportData,
    ReportedRequest,
    ReportEvent,
    UnlearningPhase,
)
from server.requests.admission import federation_of
from strategies.sessions.wire_dtype import largest_error
from strategies.settings.run_config import RunSettings
from unlearning.methods.eligibility import what_is_revealed
from unlearning.outcomes import PRIVACY_ACCOUNT, guarantee_of
from unlearning.parameters import content_hash
from unlearning.requests import Exclusions, Granularity, Target
from unlearning.tasks.task import Task
from unlearning.training import frozen_part
from unlearning.verification.difference.holders import Holder
from unlearning.verification.figures import RISE_OF_LOSS, Measurement

PACKAGES = ("flower-unlearning", "flwr", "torch", "numpy", "scikit-learn")
NOT_MEASURED = (
    "the difference to a model retrained without the data: no retrained model exists in a live federation",
    "LiRA, the attack with shadow models: a live federation trains none; flower-unlearn bench does",
    "attacks other than those named here: stronger ones may still find members",
    "copies of the model or of updates that anybody outside this server and these clients has kept",
)


def report_of(opened: OpenDeletion, state: FederationState, request_id: str) -> ReportData:
    """Gather everything that is known about the request `request_id` of the active deletion."""
    deletion, context, ledger = state.active_deletion(), opened.context, opened.context.ledger
    request = ledger.requests.get(request_id)
    return ReportData(
        request=ReportedRequest.of(
            request,
            method_title=opened.method.info.title,
            method_source=opened.method.info.source,
            # Of data that was used in no round there is no work that they describe: as they were asked for.
            parameters={**opened.parameters.model_dump(), **request.parameters},
            served_with=tuple(other for other in deletion.request_ids if other != request.id),
            reference_sha256=ledger.requests.text_commitment(request_id, Kind.REFERENCE),
        ),
        federation=_federation(context.settings.federation, context.task, ledger, state.exclusions),
        model_hash_before=deletion.hash_before,
        model_hash_after_unlearning=deletion.hash_unlearned,
        model_hash_after=content_hash(state.parameters),
        model_hash_frozen=frozen_part(context.task),
        unlearning=UnlearningPhase(
            rounds=deletion.unlearning_cost.exchanges,
            participants=deletion.participants,
            attempts=deletion.attempt,
            findings=drop_release(deletion.findings),
            **_spent(deletion.unlearning_cost),
        ),
        recovery=RecoveryPhase(
            rounds=deletion.recovery_rounds,
            stop_reason=deletion.stop_reason,
            target_score=deletion.target_score,
            **_spent(deletion.recovery_cost),
        ),
        measuring=ExchangeCost(**_spent(deletion.measuring_cost)),
        formulas=formula_costs(opened, state),
        measurements=tuple(deletion.measurements.get(request_id, ())),
        events=tuple(_line(event) for event in ledger.events.all(request_id)),
        stop_rule=_stop_rule(
            name_of_test_score(context.task.score_name, classes_left_out(context, state.exclusions)),
            deletion.target_score,
            context.settings.recovery_max_rounds,
        ),
        exclusions_note=_exclusions_note(request.target),
        is_exact=opened.method.info.is_exact,
        guarantee=guarantee_of(deletion.findings.get(PRIVACY_ACCOUNT)),
        reveals=_reveals(opened, deletion.measurements.get(request_id, ())),
        not_measured=(
            *_only_sums(context.settings, ledger, request_id),
            *_rounded(context.settings),
            *NOT_MEASURED,
            *_not_switched_on(context.settings),
        ),
        software={name: _version(name) for name in PACKAGES} | {"python": platform.python_version()},
        seeds={"run": context.settings.seed},
        written_at=_text(context.writer.now()),
    )


def _reveals(opened: OpenDeletion, measurements: Sequence[Measurement]) -> tuple[Holder, ...]:
    """Return what the deletion tells each holder, with the AUC of the rise of the loss where that was measured."""
    areas = {
        item.stage: figure.auc
        for item in measurements
        if (figure := item.figures.get(RISE_OF_LOSS)) is not None
    }
    federation = federation_of(opened.context.ledger)
    assert federation is not None, "a deletion is a started federation's"
    return what_is_revealed(
        opened.method.info,
        federation,
        after_unlearning=areas.get("unlearned"),
        at_end=areas.get("recovery", areas.get("unlearned")),
        why="no posteriors of forgotten and test records came from both models",
    )


def _federation(name: str, task: Task, ledger: Ledger, exclusions: Exclusions) -> FederationSummary:
    known = tuple(sorted(record.client_id for record in ledger.clients()))
    return FederationSummary(
        name=name,
        task=task.name,
        score_name=task.score_name,
        clients_known=known,
        clients_retained=tuple(client for client in known if not exclusions.is_forgotten(client)),
    )


def _spent(cost: PhaseCost) -> dict[str, Any]:
    """Return what a phase has cost, as every phase of the report names it."""
    return {item.name: getattr(cost, item.name) for item in fields(ExchangeCost)}


def _not_switched_on(settings: RunSettings) -> list[str]:
    """Return the attacks that the settings do without, and which setting runs them."""
    off = []
    if not settings.mia_u_classifiers:
        off.append("MIA-U, the attack on the change, with classifiers: set mia-u-classifiers")
    return off


def _only_sums(settings: RunSettings, ledger: Ledger, request_id: str) -> list[str]:
    """Return what was not seen under secure aggregation, and over how many clients the sums of the deletion were."""
    if not settings.secure_aggregation:
        return []
    since = ledger.all_rounds(after=ledger.newest_at_filing(request_id))
    mine = [one.metrics for one in since if request_id in one.request_ids]
    sizes = [metrics["secure"]["in_sum"] for metrics in mine if "secure" in metrics] or [0]
    return [
        f"any single client's update, count or figures: the server saw sums only, over {min(sizes)} to {max(sizes)} "
        f"clients in this deletion's rounds (secure-aggregation; over {settings.threshold:.0%} of a round's clients "
        f"had to stay to its end, and at least {settings.min_cohort})",
        "losses and confidences of single records: they came as counts in 512 bins, so attacks on labels, entropies "
        "and posteriors did not run",
    ]


def _rounded(settings: RunSettings) -> list[str]:
    """Return what was not seen of updates that travelled in a wire dtype."""
    if not settings.rounded_to:
        return []
    return [
        f"exact updates of training and recovery rounds: they travelled as {settings.rounded_to} (wire-dtype), each "
        f"number off by up to {largest_error(settings.rounded_to):.2%} of it; models that were measured, and what the "
        "method exchanged, travelled as they are"
    ]


def _line(event: Event) -> ReportEvent:
    move = f"{event.from_status} → {event.to_status}" if event.from_status is not None else event.kind
    reason = event.detail.get("reason") or event.detail.get("text") or ""
    if event.kind == EXTENDED:
        reason = f"due on {event.detail['due_on']}"
    return ReportEvent(time=_text(event.at), move=move, reason=str(reason))


def _stop_rule(test_score_name: str, target_score: float | None, most_rounds: int) -> str:
    if target_score is None:
        return f"{most_rounds} recovery rounds; there is no test data to decide earlier"
    return f"{test_score_name} of at least {target_score:.4f}, or {most_rounds} recovery rounds"


def _exclusions_note(target: Target) -> str:
    if target.granularity is Granularity.CLIENT:
        return (
            f"Client {target.client_id} takes part in no further training: the server asks it for none, and the "
            "client itself refuses."
        )
    if target.granularity is Granularity.SAMPLE:
        return (
            f"The computer of client {target.client_id} trains no more on these records. That it leaves them out is "
            "the client's own statement."
        )
    return (
        f"No client trains any more on records of class {target.class_label}. That they leave them out is the "
        "clients' own statement."
    )


@cache  # a distribution's metadata is a file that is parsed: a twentieth of a small deletion's time
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds")
