"""Attacks the model again for completed requests, after further rounds or on demand, and reopens those that came back.

    due        after each number of rounds in `recheck-after-rounds`, counted by the rounds that moved the model since
               the completion; of several that have passed at once, as during a long deletion, the last one
    on demand  for an event `recheck-requested` that no recheck has answered

It is a step between two rounds, which moves no model. What comes of it is one event of the request, written before the
checkpoint: `rechecked`, or the move to reopened. After a crash before it the step is done again; after one behind it
the ledger says that it is done. Requests that were carried out together are measured together, as at their completion,
so that the figures compare, and secure aggregation shows no other sum. What is compared comes from the report.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import Any

from server.deletion.model_measurements import forgotten_by, with_class_test
from server.deletion.open_deletion import concerned, forget_sets
from server.federation.context import FederationContext
from server.federation.observing import measuring_messages, read_all
from server.federation.state import FederationState, Move, Note, Step, Watched
from server.ledger import Event, Ledger
from server.ledger.records import RECHECK, RECHECK_REQUESTED, RECHECKED
from server.report.rechecks import Recheck, update_page
from server.report.words import count
from server.state_directory.files import REPORTS
from strategies.messages import RECHECK as PLANTED
from unlearning.outcomes import has_noise
from unlearning.requests import DeletionRequest, Status, Target
from unlearning.runtime.json_codec import from_plain, to_plain
from unlearning.verification.figures import Measurement
from unlearning.verification.measurement import measure
from unlearning.verification.persistence import Persistence, compare, levels

_log = getLogger(__name__)

_NOISE = "anything: noise, of the deletion or of private training, covers no figure of the records"
_NO_REPORT = "anything: the report, which has what was measured at completion, is gone"


@dataclass(slots=True)
class RecheckQueue:
    """The rechecks that people have requested and no event answers yet, by request: the number of the event."""

    ledger: Ledger
    _after: int = 0
    _open: dict[str, int] = field(default_factory=dict)

    def look(self) -> Mapping[str, int]:
        """Return them; only what is new since the last look is read."""
        newest = self.ledger.events.last_sequence()
        if newest > self._after:
            for event in self.ledger.events.of_kind(RECHECK_REQUESTED, after=self._after):
                self._open[event.request_id] = event.sequence
            self._after = newest
        self._open = {one: number for one, number in self._open.items() if self._waits(one, number)}
        return dict(self._open)

    def _waits(self, request_id: str, sequence: int) -> bool:
        is_completed = self.ledger.requests.get(request_id).status is Status.COMPLETED
        return is_completed and not _is_done(self.ledger, request_id, answers=sequence)


def watched(context: FederationContext, state: FederationState) -> FederationState:
    """Return the state after a deletion's completion, with its requests among the watched where the run rechecks."""
    if not context.settings.recheck_rounds():
        return state
    new = {one: Watched(completed_round=state.round) for one in state.active_deletion().request_ids}
    return replace(state, watched={**state.watched, **new})


def recheck(context: FederationContext, state: FederationState, requested: Mapping[str, int]) -> Step | None:
    """Return the next recheck that is due or `requested`; None where there is none."""
    passed = _passed(state, context.settings.recheck_rounds())
    first = next(iter((*requested, *passed)), None)
    if first is None:
        return None
    ledger, known = context.ledger, _report_of(context, first)
    together = (first,) if known is None else (first, *known["request"]["served_with"])
    mine = [one for one in together if one in requested or one in passed]
    open_, after = [], replace(state, watched=_later(state, mine, passed, context.settings.recheck_rounds()))
    for request_id in mine:
        request = ledger.requests.get(request_id)
        done = not requested.get(request_id) and _is_done(ledger, request_id, due=passed.get(request_id))
        if request.status is Status.COMPLETED and not done:
            open_.append(request)
    if not open_:
        return Step(state=after)
    found = dict(_measured(context, state, together, open_))
    notes, moves = [], []
    for request in open_:
        persistence, detail = found[request.id]
        detail |= {"due": passed.get(request.id, 0), "answers": requested.get(request.id, 0)}
        text = _sentence(persistence, detail)
        if persistence.has_come_back:
            _log.warning("Request %s is reopened: %s", request.id, text, extra={"event": "reopened"})
            moves.append(
                Move(request_id=request.id, to=Status.REOPENED, reason=text, detail={RECHECK: detail})
            )
        else:
            notes.append(Note(request_id=request.id, kind=RECHECKED, detail={RECHECK: detail, "text": text}))
    gone = {move.request_id for move in moves}
    after = replace(after, watched={one: item for one, item in after.watched.items() if one not in gone})
    pages = tuple(partial(_update_page, context, request.id) for request in open_)
    return Step(state=after, notes=tuple(notes), moves=tuple(moves), ledger_first=True, cleanup=pages)


def _passed(state: FederationState, thresholds: Sequence[int]) -> dict[str, int]:
    """Return by watched request the last number of rounds that has passed since its last recheck, if one has."""
    found = {}
    for request_id, one in state.watched.items():
        since = state.round - one.completed_round
        due = [number for number in thresholds if one.checked_after < number <= since]
        if due:
            found[request_id] = due[-1]
    return found


def _later(
    state: FederationState, done: Sequence[str], passed: Mapping[str, int], thresholds: Sequence[int]
) -> dict[str, Watched]:
    """Return what is watched after these rechecks, without what has had its last one."""
    found = dict(state.watched)
    for request_id in set(done) & passed.keys():
        if passed[request_id] >= thresholds[-1]:
            del found[request_id]
        else:
            found[request_id] = replace(found[request_id], checked_after=passed[request_id])
    return found


def _is_done(ledger: Ledger, request_id: str, **what: Any) -> bool:
    """Return whether a request's recheck after so many rounds (`due`), or that `answers` an event, is in the ledger.

    One of before its last completion is another one's.
    """
    is_done = False
    for event in ledger.events.all(request_id):
        if event.to_status is Status.COMPLETED:
            is_done = False
        found = event.detail.get(RECHECK)
        is_done = is_done or (found is not None and what.items() <= dict(found).items())
    return is_done


def _rechecks(ledger: Ledger, request_id: str) -> Iterator[Event]:
    return (event for event in ledger.events.all(request_id) if RECHECK in event.detail)


def _measured(
    context: FederationContext,
    state: FederationState,
    together: Sequence[str],
    requests: Sequence[DeletionRequest],
) -> Iterator[tuple[str, tuple[Persistence, dict[str, Any]]]]:
    """Yield what a recheck of each of these requests says, and what the ledger keeps of it."""
    reports = {one.id: _report_of(context, one.id) for one in requests}
    for request in requests:
        is_covered = has_noise(request.result) or context.training_account is not None
        why = _NOISE if is_covered else _NO_REPORT if reports[request.id] is None else ""
        if why:
            nothing = Persistence(now=None, then=None, missing=(why,))
            yield request.id, (nothing, {"round": state.round, "missing": [why]})
            reports.pop(request.id)
    if not reports:
        return
    ledger, clients, settings = context.ledger, context.clients, context.settings
    targets = {one: ledger.requests.target_of(ledger.requests.get(one)) for one in together}
    forgets = forget_sets(ledger, list(targets.values()))
    done = clients.exchange(
        measuring_messages(clients, state.parameters, state.round, forgets, {PLANTED: True})
    )
    observed = read_all(clients, context.test_set, state.parameters, forgets, done)
    for request_id, report in reports.items():
        assert report is not None, "those without were left out"
        target: Target = targets[request_id]
        now = measure(
            stage="recovery",
            round=state.round,
            test=observed.test,
            retained=observed.retained,
            seed=settings.seed,
            metric_names=context.task.metric_names,
            **forgotten_by(concerned(forgets, target), observed),
        )
        before, then = _at_completion(report)
        now = with_class_test(context, state, target, now)
        persistence = compare(before, then, now)
        yield (
            request_id,
            (
                persistence,
                {
                    "round": state.round,
                    "rounds": state.round - then.round,
                    "now": to_plain(persistence.now),
                    "then": to_plain(persistence.then),
                    "reasons": list(persistence.reasons),
                    "missing": list(persistence.missing),
                    "levels": {
                        "before": levels(before),
                        "completion": levels(then),
                        "now": levels(now),
                    },
                    "planted": dict(_planted(done.values)),
                },
            ),
        )


def _planted(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield by client the z of the noise that its owner planted, N(0, 1) of a model that never saw it."""
    for client, said in values.items():
        score = said.get(PLANTED)
        z = score.get("z") if isinstance(score, Mapping) else None
        if isinstance(z, float) and math.isfinite(z):
            yield client, z


def _report_of(context: FederationContext, request_id: str) -> dict[str, Any] | None:
    path = _folder(context, request_id) / "report.json"
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _at_completion(report: Mapping[str, Any]) -> tuple[Measurement, Measurement]:
    """Return the measurements before the deletion and at its completion."""
    found = [from_plain(Measurement, one) for one in report["measurements"]]
    return found[0], found[-1]


def _sentence(persistence: Persistence, detail: Mapping[str, Any]) -> str:
    """Say in the words of the timeline what was found."""
    after = f"{count(detail['rounds'], 'round')} after the completion" if "rounds" in detail else "Later"
    if persistence.now is None:
        return f"{after} nothing could be measured: {'; '.join(persistence.missing)}."
    what = f"{after} the effect of the deletion is: {persistence.now}; at completion: {persistence.then}."
    return " ".join((what, *persistence.reasons))


def _folder(context: FederationContext, request_id: str) -> Path:
    return context.state_dir / REPORTS / request_id


def _update_page(context: FederationContext, request_id: str) -> None:
    found = [
        Recheck.of(event.at, event.detail[RECHECK], reopened=event.to_status is Status.REOPENED)
        for event in _rechecks(context.ledger, request_id)
    ]
    update_page(_folder(context, request_id) / "report.html", found)
