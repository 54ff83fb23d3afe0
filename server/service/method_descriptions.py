"""What the methods state about themselves, for `flower-unlearn methods` and the HTTP API."""

from dataclasses import asdict

from server.ledger import Ledger
from server.requests.plan_data import Measured
from server.requests.planning import past_deletions
from server.service.calls import MethodDescription
from unlearning.methods.method import Method
from unlearning.methods.registry import METHODS


def describe_methods(ledger: Ledger | None) -> list[MethodDescription]:
    """Return every method and what it states about itself, with the medians of past deletions by it."""
    past = {} if ledger is None else past_deletions(ledger)
    return [_describe(method, past.get(name)) for name, method in METHODS.items()]


def _describe(method: Method, past: Measured | None) -> MethodDescription:
    info = method.info
    return MethodDescription(
        name=info.name,
        title=info.title,
        source=info.source,
        granularities=tuple(sorted(map(str, info.granularities))),
        several_at_once=info.several_at_once,
        needs=(
            *sorted(map(str, info.needs)),
            *(["rounds that are FedAvg's"] if info.assumes_fedavg else []),
            *([] if info.sums_suffice else ["single clients' answers (not under secure-aggregation)"]),
        ),
        remark=info.remark,
        parameters=method.Parameters.model_json_schema().get("properties", {}),
        keeps=info.preparation.keeps if info.preparation is not None else "",
        measured=asdict(past) if past is not None else {},
    )
