"""Requests that data owners file at their own sites: they travel with the clients' answers, and are admitted here.

A client speaks for itself only. Of what it sends, a bounded number is looked at with each answer and on each day; the
rest is not refused but left: it stays in the site's outbox and comes again, so that nothing of an honest site is lost.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from typing import Any

from server.ledger import SITE, Allowance, Ledger, LedgerUnavailable, NewRequest, Quota, Refusal
from server.requests.admission import admit
from strategies.messages import Json
from unlearning.errors import ConfigurationError, FlowerUnlearningError, InvalidRequest
from unlearning.gdpr import Particulars
from unlearning.one_line import as_line
from unlearning.requests import DeletionRequest, Granularity, Status, Target
from unlearning.runtime.json_codec import from_plain
from unlearning.untrusted import SITE_REQUESTS, reason_of

MAX_A_DAY = 100
"""Of one client. One request of a client can be open at a time and takes rounds, so more are a program's, not a
person's."""
_MAX_KEY = 64
_SHOWN = 3
_TOLD, _MAX_TEXT = 20, 300


@dataclass(slots=True)
class SiteRequests:
    """What became of them.

    answers: by client and key, until the client has taken note that its request is accepted or refused.
    progress: the same of accepted ones, up to their end; the newest `_TOLD` of a client go with every message.
    """

    answers: dict[str, dict[str, str]] = field(default_factory=dict)
    progress: dict[str, dict[str, str]] = field(default_factory=dict)
    _open: set[str] | None = None
    _day: date = date.min
    _counts: dict[str, int] = field(default_factory=dict)

    def take(self, ledger: Ledger, client: str, values: Json, *, now: datetime) -> str:
        """Admit what `client` filed at its own site; says what is wrong with how it came, if something is.

        Raises:
            LedgerUnavailable: the ledger cannot be written.
            ConfigurationError: the ledger holds what this version cannot read.
        """
        if "site-requests" not in values:
            self.answers.pop(client, None)  # it has taken note of every answer
            return ""
        filed = _by_key(values["site-requests"])
        known = self.answers.get(client, {})
        self.answers[client] = known = {key: answer for key, answer in known.items() if key in filed}
        fresh = {key: one for key, one in filed.items() if key not in known}
        refused: list[str] = []
        for key, one in list(fresh.items())[: self._left(client, now)]:
            self._counts[client] = self._counts.get(client, 0) + 1
            known[key] = answer = _answer(ledger, client, key, one, now)
            if answer.startswith("refused: "):
                refused.append(answer.removeprefix("refused: "))
        if refused:
            ledger.record_refusals([_refusal(client, refused, now)])
        return "" if filed else "Its site requests are malformed."

    def take_all(self, ledger: Ledger, answers: Mapping[str, Json], *, now: datetime) -> dict[str, str]:
        """Take in what came with the answers of an exchange; return what is wrong with how it came, by client."""
        found = {client: self.take(ledger, client, values, now=now) for client, values in answers.items()}
        return {client: wrong for client, wrong in found.items() if wrong}

    def told(self) -> dict[str, dict[str, str]]:
        """Return what goes to each client with its next message."""
        clients = {*self.answers, *self.progress}
        return {
            client: {**self.answers.get(client, {}), **self.progress.get(client, {})}
            for client in sorted(clients)
        }

    def follow(self, ledger: Ledger, waiting: Iterable[DeletionRequest]) -> None:
        """Bring `progress` up to the ledger; `waiting` are its requests that are not over."""
        listed = list(waiting)
        if self._open is None:  # once: what was filed before this process began
            self._open = set()
            listed = ledger.requests.select()
        now = {request.id: request for request in listed if request.submitted_role == SITE}
        for request_id in [known for known in self._open if known not in now]:
            now[request_id] = ledger.requests.get(request_id)
        self._open = set()
        for request in now.values():
            client = request.target.client_id or ""
            filed_as = _filed_as(client, "")
            if not request.idempotency_key.startswith(filed_as):  # in another's place, which tells of it
                continue
            newest = ledger.requests.replacement_of(request)
            if not newest.is_answered:  # a failed one can be tried again, also in another way
                self._open.add(request.id)
            key = request.idempotency_key.removeprefix(filed_as)
            known = self.progress.setdefault(client, {})
            known.pop(key, None)
            known[key] = _progress(newest)  # the newest last
            for old in list(known)[:-_TOLD]:
                del known[old]

    def _left(self, client: str, now: datetime) -> int:
        """Return how many of the client's requests may be looked at now."""
        if now.date() != self._day:
            self._day, self._counts = now.date(), {}
        return max(0, min(SITE_REQUESTS, MAX_A_DAY - self._counts.get(client, 0)))


def _filed_as(client: str, key: str) -> str:
    """Return the idempotency key in the ledger of what `client` filed under `key` at its site."""
    return f"site/{client}/{key}"


def _progress(request: DeletionRequest) -> str:
    """Say where a request stands, for the site that filed it."""
    match request.status:
        case Status.COMPLETED:
            return f"{request.id} is completed. Its report: flower-unlearn report {request.id}"
        case Status.AWAITING:
            return f"{request.id} waits until the federation's officer has decided"
        case Status.FAILED | Status.CANCELLED | Status.REFUSED | Status.REOPENED:
            reason = request.reason or request.refusal_reason or "no reason is given"
            return as_line(f"{request.id} is {request.status}: {reason}", _MAX_TEXT)
        case _:
            return f"accepted as {request.id}, which is {request.status}"


def _by_key(filed: Any) -> dict[str, Mapping[str, Any]]:
    """Return the requests among what was sent, by the keys under which the site waits for answers."""
    found: dict[str, Mapping[str, Any]] = {}
    for one in filed if isinstance(filed, list) else []:
        key = one.get("key") if isinstance(one, dict) else None
        if isinstance(key, str) and 0 < len(key) <= _MAX_KEY and key == as_line(key):
            found.setdefault(key, one)
    return found


def _answer(ledger: Ledger, client: str, key: str, filed: Mapping[str, Any], now: datetime) -> str:
    try:
        target = _own_target(client, filed)
        method, parameters = filed.get("method", ""), filed.get("parameters", {})
        particulars = from_plain(Particulars, filed.get("particulars", {}))
        if not isinstance(method, str) or not isinstance(parameters, dict):
            raise InvalidRequest("A method is named by a word, and its parameters are by name.")
    except Exception as exc:  # noqa: BLE001 - what was filed is the client's, and so is what it leads to
        return f"refused: {reason_of(exc)}"
    try:
        new = NewRequest(
            target=target,
            method=method,
            parameters=parameters,
            submitted_by=f"site of client {client}",
            submitted_role=SITE,
            idempotency_key=_filed_as(client, key),
            particulars=particulars,
        )
        request = admit(ledger, new, now=now, allowance=Allowance(daily=Quota()))
    except (ConfigurationError, LedgerUnavailable):
        raise
    except (FlowerUnlearningError, KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as exc:
        return f"refused: {reason_of(exc)}"
    return f"accepted as {request.id}"


def _own_target(client: str, filed: Mapping[str, Any]) -> Target:
    asked = from_plain(Target, filed["target"])
    if asked.granularity is Granularity.CLASS:
        raise InvalidRequest("A client may ask to forget itself or its own samples, not a class.")
    return replace(asked, client_id=client)


def _refusal(client: str, reasons: list[str], now: datetime) -> Refusal:
    """Return one row, however many they are."""
    return Refusal(
        at=now,
        caller=client,
        role="client",
        call="request at a site",
        reason=reasons[0],
        detail={"count": len(reasons), "reasons": sorted(set(reasons))[:_SHOWN]},
    )
