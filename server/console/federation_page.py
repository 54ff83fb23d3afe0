"""The federation's page: who is in it, how its rounds go, and what is used of the privacy budget."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from server.console.rendering import Console
from server.ledger import Order, RequestFilter, RoundRecord
from unlearning.outcomes import RELEASE
from unlearning.requests import DeletionRequest, Outcome, Status

MAX_POINTS = 300
OF_SETS = "test_metrics"  # in a round's record, the metrics of the test set by name
_ACCOUNT = "privacy account"
_RECENT = 20  # deletions, of all and of those with a guarantee, among which the account's newest state is


def federation_page(console: Console, request: Request) -> Response:
    """Show who is in the federation and how its rounds go."""
    # Imported here because drawing needs Matplotlib, half a second of a processor.
    from server.report.plots import rounds_plot

    known = console.mirror.now()
    drawn = known.rounds[-MAX_POINTS:]
    metrics = sorted({str(name) for record in drawn for name in record.metrics.get(OF_SETS) or ()})
    figures = {"test_score": "Score on test data", "loss": "Training loss"}
    figures |= {
        f"{OF_SETS}.{name}": f"{name.replace('_', ' ').capitalize()} on test data" for name in metrics
    }
    deletions = tuple(
        (record.round, record.request_ids[0] if record.request_ids else "deletion")
        for record in drawn
        if record.kind == "unlearning"
    )
    return console.render(
        request,
        "federation.html",
        page="federation",
        live=True,
        known=known,
        newest=known.rounds[-1] if known.rounds else None,
        recent=known.rounds[-20:][::-1],
        plots=[
            # our own plots; any text in them was escaped by the plotting library
            (
                label,
                Markup(
                    rounds_plot(
                        _points(drawn, name), deletions, f"plot{number}-{name.partition('.')[0]}", label
                    )
                ),
            )
            for number, (name, label) in enumerate(figures.items())
        ],
        of_sets=[name for name in figures if name.startswith(OF_SETS)],
        figures=figures,
        account=privacy_account(_newest_completed(console)),
        training_privacy=training_privacy_text(known.rounds),
        describe_round=describe_round,
        failures_of=failures_of,
        figure=figure,
    )


def failures_of(record: RoundRecord) -> dict[str, str]:
    """Return which clients did not answer in a round, or were refused, and why."""
    found: dict[str, str] = {}
    for name in ("failed", "refused"):
        reasons = record.metrics.get(name)
        if isinstance(reasons, Mapping):
            found |= {str(client): str(reason) for client, reason in reasons.items()}
    return found


def describe_round(record: RoundRecord) -> str:
    """Say how a round ended: `Round 7 (training): 4 of 5 clients answered`."""
    participants = record.metrics.get("participants")
    names: set[str] = set(participants) if isinstance(participants, list | tuple) else set()
    asked = names | set(failures_of(record))
    answered = (
        f": {len(names)} of {len(asked)} client{'' if len(asked) == 1 else 's'} answered" if asked else ""
    )
    held = ", not committed" if record.metrics.get("not_committed") else ""
    return f"Round {record.round} ({record.kind}{held}){answered}"


def figure(record: RoundRecord, name: str) -> float | None:
    """Return a figure of a round, or of its `OF_SETS` by a dot and its name; None where it was not measured."""
    group, _, of_set = name.partition(".")
    value = (record.metrics.get(OF_SETS) or {}).get(of_set) if of_set else record.metrics.get(group)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def privacy_account(requests: Iterable[DeletionRequest]) -> Mapping[str, Any] | None:
    """Return what all deletions together have used of the privacy budget, by the newest one that drew noise."""
    # without a release the guarantee rests on private training, which is shown by itself
    found = [
        item for item in requests if RELEASE in item.result and isinstance(item.result.get(_ACCOUNT), Mapping)
    ]
    newest = max(found, key=lambda item: item.result[_ACCOUNT].get("num_releases", 0), default=None)
    return None if newest is None else newest.result[_ACCOUNT]


def training_privacy_text(rounds: Sequence[RoundRecord]) -> str:
    """Return what private training has used, by the newest round that says it; empty where none does."""
    return next((str(one.metrics["privacy"]) for one in reversed(rounds) if "privacy" in one.metrics), "")


def _newest_completed(console: Console) -> tuple[DeletionRequest, ...]:
    newest = RequestFilter(statuses=(Status.COMPLETED,), order=Order.CHANGED, descending=True, limit=_RECENT)
    with_noise = replace(newest, outcomes=(Outcome.GUARANTEED,), order=Order.DUE)
    return (*console.mirror.page(newest).requests, *console.mirror.page(with_noise).requests)


def _points(records: Iterable[RoundRecord], name: str) -> tuple[tuple[int, str, float], ...]:
    values = ((record, figure(record, name)) for record in records)
    return tuple((record.round, record.kind, value) for record, value in values if value is not None)
