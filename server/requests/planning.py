"""Which methods can serve a request now, what each would cost, and why the others cannot.

Costs of unlearning are those of the closed formulas (`unlearning.methods.costs`) with this federation's
sizes; a training round's, and what past deletions took, are those that the ledger recorded.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from server.ledger import Ledger, RoundRecord
from server.ledger.records import HEARTBEAT
from server.requests.admission import check_client, check_served, federation_of
from server.requests.comparisons import Comparison, own_comparisons
from server.requests.plan_data import Measured, Plan, PlannedMethod, SampleCheck
from server.requests.recommending import compared, near, recommend, shown_here, waits_for
from unlearning.errors import RequestError, UnknownClient
from unlearning.methods.costs import CostSymbols, recovery_cost
from unlearning.methods.eligibility import FederationProfile, what_is_revealed
from unlearning.methods.method import Method, MethodInfo
from unlearning.methods.registry import METHODS, preparations, validated_parameters
from unlearning.one_line import as_line
from unlearning.outcomes import NEVER_USED
from unlearning.pseudonyms import names_of
from unlearning.requests import Granularity, Target
from unlearning.verification.verdict import is_enough, least_auc

_RECENT = 20
"""How many of the newest training rounds say what a round takes."""
_PAST = 200
"""How many of the newest completed requests say what a deletion takes: a ledger may hold a hundred thousand."""


def plan(ledger: Ledger, target: Target, *, now: datetime) -> Plan:
    """Return what serving `target` would take, by every method.

    The client of samples is asked for them through the live loop: a plan that is made again soon has its answer.

    Raises:
        UnknownClient: the federation has not started, or has no such client.
    """
    federation = federation_of(ledger)
    if federation is None:
        raise UnknownClient(
            "The federation has not started yet; there is nothing to plan with. Start it first."
        )
    check_client(ledger, target)
    rounds = ledger.newest_rounds("training", _RECENT)
    symbols = _symbols(ledger, target, federation, rounds)
    recovery = recovery_cost(symbols, 1)
    seconds = [record.metrics["seconds"] for record in rounds if "seconds" in record.metrics]
    records = ledger.online_clients()
    online = {record.client_id for record in records}
    past, own = past_deletions(ledger), own_comparisons(ledger)
    planned = [
        _plan_method(ledger, target, method, symbols, online, past.get(name), federation, own)
        for name, method in METHODS.items()
    ]
    heard = {record.client_id for record in records if record.silence(now) < HEARTBEAT}
    samples = _check_samples(ledger, target, heard, now) if target.sample_ids else None
    if samples is not None and (samples.forbids or samples.removed):
        planned = [
            replace(item, refusal=samples.sentence)
            if samples.forbids or METHODS[item.method].info.works_with_the_data
            else item
            for item in planned
        ]
    by_name = {item.method: item for item in planned}
    advised = recommend(
        target.granularity,
        federation,
        is_admissible=lambda name: not by_name[name].refusal,
        absent_for=lambda name: by_name[name].waits_for,
        here=shown_here(ledger, target.granularity),
        own=own,
    )
    return Plan(
        target=target.describe(),
        recommended=advised.method,
        why=advised.why,
        ranking=" ".join(
            item.ranking for group in near(target.granularity, federation, own)[:1] for item in group
        ),
        cannot_show=what_cannot_be_shown(target.num_samples),
        recovery_max_rounds=federation.recovery_max_rounds,
        recovery_bytes=recovery.communication_bytes,
        recovery_flops=recovery.computation_flops or None,
        round_seconds=statistics.median(seconds) if seconds else None,
        methods=tuple(
            sorted(
                planned,
                key=lambda item: (
                    item.method != advised.method,
                    bool(item.refusal),
                    not METHODS[item.method].info.moves_model,
                    item.bytes is None,
                    item.bytes or 0,
                ),
            )
        ),
        samples=samples,
    )


def _check_samples(ledger: Ledger, target: Target, online: set[str], now: datetime) -> SampleCheck:
    """Return what the client says of the target's samples, by the ids as they are given here."""
    client = target.client_id or ""
    names = {item: item for item in target.sample_ids}
    if ledger.keys is not None:
        names = names_of([ledger.keys.of(client)], target.sample_ids)
    check = SampleCheck(client=client, num_samples=len(names), is_online=client in online)
    known = ledger.site_questions.ask(client, names, now=now) if check.is_online else None
    if known is None:
        return check
    return replace(
        check,
        is_answered=True,
        unknown=tuple(sorted(names[item] for item in known.unknown)),
        removed=tuple(sorted(names[item] for item in known.removed)),
        num_forgotten=len(known.forgotten),
        moved=as_line(known.moved, 500),
    )


def what_cannot_be_shown(num_records: int) -> str:
    """Return what tests will not be able to say of so few records; empty for none by name, and for enough."""
    if not num_records or is_enough(num_records):
        return ""
    least = least_auc(num_records)
    head = f"With {num_records} record{'' if num_records == 1 else 's'}"
    few = "the result will be that there are too few to say. Only a method with a guarantee says more."
    if least is None:
        return f"{head} no test can show that the model knows less about them afterwards: {few}"
    return (
        f"{head} a test can show that the model knows less about them only if it now tells them from records that the "
        f"model never saw in at least {round(100 * least)} of 100 cases; else {few}"
    )


def past_deletions(ledger: Ledger) -> dict[str, Measured]:
    """Return what the newest completed deletions took, by method: unlearning and recovery together."""
    results: dict[str, list[Mapping[str, Any]]] = {}
    for method, result in ledger.requests.results(_PAST):
        if not result.get(NEVER_USED):  # those took no round
            results.setdefault(method, []).append(result)
    return {
        method: Measured(
            deletions=len(items),
            seconds=statistics.median(item["cost"]["seconds"] for item in items),
            bytes=statistics.median(item["cost"]["bytes"] for item in items),
            recovery_rounds=statistics.median(item["recovery_rounds"] for item in items),
        )
        for method, items in results.items()
    }


def _plan_method(
    ledger: Ledger,
    target: Target,
    method: Method,
    symbols: CostSymbols,
    online: set[str],
    past: Measured | None,
    federation: FederationProfile,
    own: Sequence[Comparison],
) -> PlannedMethod:
    info = method.info
    try:
        check_served(ledger, target, federation, method=info.name, parameters={})
        refusal = _too_few_stay(federation, target, symbols.num_retained)
    except RequestError as exc:
        refusal = str(exc)
    prepared = preparations(federation.prepare).get(info.name)
    cost = method.cost(symbols, validated_parameters(method, {}), prepared)
    a_round = recovery_cost(symbols, 1).communication_bytes
    return PlannedMethod(
        method=info.name,
        title=info.title,
        remark=info.remark,
        refusal=refusal,
        waits_for=waits_for(method, target, online),
        bytes=None if cost is None else cost.communication_bytes,
        flops=None if cost is None or not symbols.flops_per_example else cost.computation_flops,
        rounds=None if cost is None or not a_round else cost.communication_bytes / a_round,
        measured=past,
        compared=compared(info.name, target.granularity, federation, own),
        guarantee=_guarantee(info),
        reveals=what_is_revealed(info, federation),
    )


def _too_few_stay(federation: FederationProfile, target: Target, staying: int) -> str:
    """Say that too few would stay for a sum; empty where enough do. The request can be filed all the same."""
    if target.granularity is not Granularity.CLIENT or staying >= federation.min_cohort:
        return ""
    return (
        f"Without client {target.client_id}, secure aggregation has {staying} of the {federation.min_cohort} clients "
        f"that it needs (min-cohort). Have {federation.min_cohort - staying} more join first."
    )


def _guarantee(info: MethodInfo) -> str:
    """Return what holds of a method's result without any test."""
    if info.is_exact:
        return "its model was trained without the records"
    if info.draws_noise:
        return "a bound (ε, δ) on what is left, where its conditions hold"
    return ""


def _symbols(
    ledger: Ledger, target: Target, federation: FederationProfile, rounds: Sequence[RoundRecord]
) -> CostSymbols:
    staying = _eligible(ledger)
    # every client is asked to forget a class, and goes on afterwards
    targets = staying if target.client_id is None else {target.client_id}
    last = rounds[-1].metrics if rounds else {}
    participants = len(last.get("participants", ()))
    return CostSymbols(
        num_parameters=federation.num_parameters,
        bytes_per_parameter=federation.bytes_per_parameter,
        num_head_parameters=federation.num_head_parameters,
        num_classes=federation.num_classes,
        num_targets=len(targets),
        num_partial=0 if target.granularity is Granularity.CLIENT else len(targets),
        num_retained=len(staying - targets),
        flops_per_example=federation.flops_per_example,
        examples_per_client=last.get("num_examples", 0) / participants if participants else 0.0,
        epochs=federation.local_epochs,
        training_rounds=last.get("training_rounds", len(rounds)),
    )


def _eligible(ledger: Ledger) -> set[str]:
    return {record.client_id for record in ledger.clients()} - ledger.forgotten_clients()
