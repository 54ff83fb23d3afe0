"""The federation's page: who is in it, how its rounds go, and what is used of the privacy budget."""

from collections.abc import Iterable, Mapping
from typing import Any

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from server.console.rendering import Console
from server.ledger import Order, RequestFilter, RoundRecord
from unlearning.requests import DeletionRequest, Status

MAX_POINTS = 300
_ACCOUNT = "privacy account"


def federation_page(console: Console, request: Request) -> Response:
    """Show who is in the federation and how its rounds go."""
    # Imported here because drawing needs Matplotlib, half a second of a processor.
    from server.report.plots import rounds_plot

    known = console.mirror.now()
    drawn = known.rounds[-MAX_POINTS:]
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
            (label, Markup(rounds_plot(_points(drawn, name), deletions, name, label)))
            for name, label in (("test_score", "Score on test data"), ("loss", "Training loss"))
        ],
        account=privacy_account(_newest_completed(console)),
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
    """Return a figure of a round; None where it was not measured."""
    value = record.metrics.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def privacy_account(requests: Iterable[DeletionRequest]) -> Mapping[str, Any] | None:
    """Return what all deletions together have used of the privacy budget, by the newest one that drew noise."""
    found = [item for item in requests if isinstance(item.result.get(_ACCOUNT), Mapping)]
    newest = max(found, key=lambda item: item.result[_ACCOUNT].get("num_releases", 0), default=None)
    return None if newest is None else newest.result[_ACCOUNT]


def _newest_completed(console: Console) -> tuple[DeletionRequest, ...]:
    wanted = RequestFilter(statuses=(Status.COMPLETED,), order=Order.CHANGED, descending=True)
    return console.mirror.page(wanted).requests


def _points(records: Iterable[RoundRecord], name: str) -> tuple[tuple[int, str, float], ...]:
    values = ((record, figure(record, name)) for record in records)
    return tuple((record.round, record.kind, value) for record, value in values if value is not None)
