"""The queue of deletion requests: what was received is checked and scheduled, what can be served now is claimed."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta

from server.deletion.never_used import NOTHING_TO_UNLEARN
from server.federation.state import Move, Note
from server.ledger import Ledger
from server.ledger.decisions import Instead
from server.ledger.records import RECOMMENDED
from server.requests.admission import check_admissible, method_without_the_data
from server.requests.privacy_budget import may_serve_together
from server.requests.recommending import waits_for
from strategies.settings.run_config import RunSettings
from unlearning.advice import CODE
from unlearning.errors import IllegalMove, RequestError
from unlearning.methods.eligibility import may_go_together
from unlearning.methods.method import Method
from unlearning.methods.registry import method_named
from unlearning.one_line import as_line
from unlearning.outcomes import weakest
from unlearning.requests import DeletionRequest, Exclusions, KnownSamples, Status, Target

REMOVED = "removed-samples"
"""The code of a request whose method works with samples that their site no longer has."""

AskSites = Callable[[Mapping[str, frozenset[str]]], Mapping[str, KnownSamples]]
"""Asks clients for samples, by client; returns what those say that give an answer."""


def to_schedule(
    ledger: Ledger,
    forgotten: Exclusions,
    undecided: dict[str, Exclusions],
    ask_sites: AskSites,
    now: datetime,
) -> Iterator[Move]:
    """Check what was received or accepted once more, now with the live federation; yield its move into the queue.

    Requests that are held, or wait for a decision, stay where they are. Of the latter those are answered that are
    forgotten meanwhile, and those that cannot be carried out fail. Sites are asked which samples they know. A request
    that was filed without a method is filed again with another one where its site no longer has them.
    undecided: what was forgotten when one that waits was checked last, by request; brought up to date.
    """
    waiting = ledger.requests.with_targets(
        request
        for request in ledger.requests.select(statuses=(Status.RECEIVED, Status.AWAITING, Status.ACCEPTED))
        if not request.is_held
        and not (request.status is Status.AWAITING and undecided.get(request.id) is forgotten)
    )
    known = ask_sites(_samples_of(target for _, target in waiting if not forgotten.cover(target)))
    for request, target in waiting:
        to, reason, result = Status.SCHEDULED, "", None
        if forgotten.cover(target) and ledger.answers(target):
            yield _answered(ledger, request, target)
            continue
        if (said := _decided_by(ledger, request, target, known.get(target.client_id or ""))) is not None:
            if not _is_filed_otherwise(ledger, request, said, now):
                yield said
            continue
        try:
            check_admissible(ledger, target, method=request.method, parameters=request.parameters)
        except RequestError as exc:
            to, reason, result = Status.FAILED, str(exc), {CODE: exc.code}
        if request.status is Status.AWAITING and to is Status.SCHEDULED:
            undecided[request.id] = forgotten
        else:
            undecided.pop(request.id, None)
            yield Move(request_id=request.id, to=to, reason=reason, result=result)


def _samples_of(targets: Iterable[Target]) -> dict[str, frozenset[str]]:
    """Return the samples that these targets name, by client."""
    found: dict[str, frozenset[str]] = {}
    for target in targets:
        if target.client_id is not None and target.sample_ids:
            found[target.client_id] = found.get(target.client_id, frozenset()) | target.sample_ids
    return found


def _decided_by(
    ledger: Ledger, request: DeletionRequest, target: Target, known: KnownSamples | None
) -> Move | None:
    """Return the end of a request by what its site says of its samples; None where there is something to forget."""
    if known is None or not target.sample_ids:
        return None
    client = target.client_id
    if known.moved:
        reason = f"Client {client} says: {as_line(known.moved, 500)}"
        return Move(request_id=request.id, to=Status.FAILED, reason=reason, result={CODE: "moved-samples"})
    if unknown := target.sample_ids & known.unknown:
        reason = (
            f"Client {client} does not have {len(unknown):,} of the {target.num_samples:,} samples; nothing was begun. "
            f"`flower-unlearn plan --client {client} --samples FILE` names them: correct the file, and file it again. "
            "Of what it never had there is nothing to forget."
        )
        return Move(request_id=request.id, to=Status.FAILED, reason=reason, result={CODE: "unknown-samples"})
    if (removed := target.sample_ids & known.removed) and _works_with_the_data(request):
        reason = (
            f"Client {client} no longer has {len(removed):,} of the {target.num_samples:,} samples, and "
            f"{request.method} works with what is to be forgotten; nothing was begun."
        )
        return Move(request_id=request.id, to=Status.FAILED, reason=reason, result={CODE: REMOVED})
    gone = known.only(target.sample_ids).forgotten
    labels = {item: label for item, label in gone.items() if label is not None}
    if len(gone) == len(target.sample_ids) and ledger.answers(target, labels):
        return _answered(ledger, request, target, labels)
    return None


def _is_filed_otherwise(ledger: Ledger, request: DeletionRequest, said: Move, now: datetime) -> bool:
    """Return whether a request that fails for want of its data was filed again with a method that needs none of it.

    So it is where the method was left to the federation, as privacy tools do that have the data erased at once.
    """
    if (said.result or {}).get(CODE) != REMOVED:
        return False
    is_left_open = any(RECOMMENDED in event.detail for event in ledger.events.page(request.id, limit=1))
    found = method_without_the_data(ledger, request) if is_left_open else None
    if found is None:
        return False
    needed = request.approvals_needed if request.status is Status.AWAITING else 0
    instead = Instead(method=found[0], parameters=found[1], approvals_needed=needed)
    with suppress(IllegalMove):  # it was cancelled meanwhile
        ledger.decisions.replace(request.id, instead, by="federation", now=now, reason=said.reason)
    return True


def _works_with_the_data(request: DeletionRequest) -> bool:
    method = method_named(request.method)
    own = method.Parameters.model_validate(request.parameters)
    return method.info.works_with_the_data or bool(method.asks_targets_by(own))


def _answered(
    ledger: Ledger, request: DeletionRequest, target: Target, labels: Mapping[str, int] | None = None
) -> Move:
    """Return the completion of a request whose target is forgotten already: earlier deletions answer it.

    labels: as in `Ledger.answers`.
    """
    by = ledger.answers(target, labels)
    return Move(
        request_id=request.id,
        to=Status.COMPLETED,
        reason=f"Already forgotten: {request.target.describe()}, by {' and '.join(by)}.",
        result={"answered_by": by},
        outcome=weakest(ledger.requests.get(one).outcome for one in by),
    )


def to_claim(
    ledger: Ledger,
    settings: RunSettings,
    online: set[str],
    noted: dict[str, str],
    *,
    now: datetime,
    is_never_used: Callable[[Method, Target], bool] = lambda *_: False,
) -> tuple[list[Move], list[Note]]:
    """Return the claim of the first request that can be served now, and of those that can be served with it.

    A request that nothing is left of is completed instead. Also notes of those that wait.
    noted: what was noted last, by request; brought up to date.
    is_never_used: whether there is nothing of a target to unlearn; then it waits for no one.
    """
    ready: list[tuple[DeletionRequest, Method]] = []
    waiting: list[tuple[DeletionRequest, str]] = []
    for request in ledger.requests.select(statuses=(Status.SCHEDULED,)):
        if request.is_held:
            continue
        method = method_named(request.method)
        if is_never_used(method, request.target):
            ready.append((request, NOTHING_TO_UNLEARN))
        elif absent := waits_for(method, request.target, online):
            waiting.append((request, f"waiting for {absent} to come online"))
        else:
            ready.append((request, method))
    together: list[DeletionRequest] = []
    while ready:
        together = _served_together(ledger, settings, ready)
        until = together[0].created_at + timedelta(seconds=settings.batch_window_s)
        method = ready[0][1]
        alone = method is NOTHING_TO_UNLEARN or not may_serve_together(settings, method)
        wanted = 1 if alone else settings.min_deletions_together
        if len(together) >= wanted or now >= until:
            break
        text = (
            f"waiting for {wanted} requests that can be carried out together, at most until "
            f"{until.isoformat(sep=' ', timespec='minutes')}"
        )
        waiting += [(request, text) for request in together]
        ready = [item for item in ready if item[0] not in together]  # others need not wait with them
        together = []
    notes = [
        Note(request_id=request.id, kind="waiting", detail={"text": text})
        for request, text in waiting
        if noted.get(request.id) != text
    ]
    noted.update({request.id: text for request, text in waiting})
    forgotten = ledger.exclusions() if together else Exclusions()
    moves = [
        _answered(ledger, request, target)
        if forgotten.cover(target) and ledger.answers(target)
        else Move(request_id=request.id, to=Status.UNLEARNING)
        for request, target in ledger.requests.with_targets(together)
    ]
    return moves, notes


def _served_together(
    ledger: Ledger, settings: RunSettings, ready: Sequence[tuple[DeletionRequest, Method]]
) -> list[DeletionRequest]:
    """Return the first of these requests, and those that are one deletion with it.

    They ask for the same method in the same way. Where the method does one client at a time, they concern its client.
    """
    first, method = ready[0]
    if not may_serve_together(settings, method):
        return [first]
    accepted = _accepted(ledger, first)
    others = [
        request
        for request, other in ready[1:]
        if other is method
        and request.method == first.method
        and dict(request.parameters) == dict(first.parameters)
        and may_go_together(method.info, first.target, request.target)
        and _accepted(ledger, request) == accepted
    ]
    return [first, *others][: settings.batch_max]


def _accepted(ledger: Ledger, request: DeletionRequest) -> tuple[float, str]:
    retry = ledger.requests.last_retry(request.id)
    return retry.accepted_loss, retry.accepted_by
