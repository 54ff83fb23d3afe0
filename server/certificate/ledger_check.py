"""Whether a ledger, opened here or asked through the deletion service, says what a certificate of deletion says."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

from server.certificate.document import Certificate, CertifiedRequest, Position, exact_numbers
from server.certificate.file_checks import Check
from server.ledger import Event, Ledger
from server.ledger.records import GROUND_BEFORE
from server.ledger.texts import TEXTS, Kind
from server.service.calls import LedgerCheck
from server.service.client import DeletionClient
from unlearning.errors import RequestNotFound
from unlearning.requests import DeletionRequest, Status, facts_of

# Of a request; the first two may change until its completion, the last one also after it (`_amendable`).
_LATER = frozenset({"due_on", "extended_days", "ground"})


@dataclass(frozen=True, slots=True)
class LedgerView:
    """A ledger as it can be asked, directly or through the deletion service.

    check: verify the chain, and give the hash of the event of a number.
    request, events: the completed request of an id, and its events in order.
    """

    check: Callable[[int], LedgerCheck]
    request: Callable[[str], DeletionRequest]
    events: Callable[[str], list[Event]]

    @classmethod
    def of_ledger(cls, ledger: Ledger) -> "LedgerView":
        """View a ledger that was opened here."""

        problem = cache(ledger.events.verify)

        def check(sequence: int) -> LedgerCheck:
            head, digest = ledger.events.head()
            first_broken = ledger.events.verify_chain() if problem() else None
            return LedgerCheck(first_broken, head, digest, ledger.events.hash_of(sequence) or "", problem())

        return cls(check, ledger.requests.get, lambda request_id: list(ledger.events.all(request_id)))

    @classmethod
    def of_service(cls, service: DeletionClient) -> "LedgerView":
        """View the ledger behind a deletion service; for operators and officers."""
        return cls(service.verify_ledger, service.get, lambda request_id: service.events(request_id)[0])


def check_ledger(certificate: Certificate, content: bytes, view: LedgerView | None) -> Check:
    """Check whether the ledger's chain holds, has the events that are named, and names this very file (`content`)."""
    of, place = "ledger", certificate.ledger
    if view is None:
        return Check.skip(of, "Give --ledger URL, or --service to ask the deletion service.")
    for what, position in (
        ("the last event of this request", place.event),
        ("the ledger's head", place.head),
    ):
        check = view.check(position.sequence)
        if check.problem:
            return Check.refuse(of, f"{check.problem} Someone wrote past the program.")
        if check.hash != position.hash:
            return Check.refuse(of, _other_event(what, position, check.hash))
    try:
        request = view.request(certificate.request.id)
    except RequestNotFound:
        return Check.refuse(of, f"It knows no request {certificate.request.id}: it is another federation's.")
    events, digest = view.events(request.id), hashlib.sha256(content).hexdigest()
    reopened = _reopened_since(events, digest)
    if reopened is not None:
        return Check.confirm(
            of,
            f"It names this very file, and is unaltered. Attention: the request was reopened on "
            f"{reopened.at:%Y-%m-%d}, because a recheck no longer found the effect. Its state is {request.status}.",
        )
    if request.status is not Status.COMPLETED:
        return Check.refuse(of, f"Request {request.id} is {request.status} there, not completed.")
    facts = (*_facts(certificate, request), *_amendable(certificate, request, events))
    differs = [name for name, certified, there in facts if certified != there]
    if differs:
        return Check.refuse(of, f"Request {request.id} says something else there: {', '.join(differs)}.")
    named = next(
        (
            event.detail.get("certificate_sha256")
            for event in reversed(events)
            if event.to_status is Status.COMPLETED
        ),
        None,
    )
    if named is None:
        return Check.refuse(of, f"It has no event that completes {request.id} and names a certificate.")
    if named != digest:
        return Check.refuse(
            of, f"The event that completes {request.id} names another certificate than this file."
        )
    return Check.confirm(
        of,
        f"The ledger is unaltered, and complete up to its entry {place.head.sequence}. It says the same of this "
        "request as the certificate, and names this very file.",
    )


def _reopened_since(events: list[Event], digest: str) -> Event | None:
    """Return the event that reopened a request after it was completed with the certificate of this SHA-256, if any."""
    is_named = False
    for event in events:
        if event.to_status is Status.COMPLETED:
            is_named = event.detail.get("certificate_sha256") == digest
        elif event.to_status is Status.REOPENED and is_named:
            return event
    return None


def _facts(certificate: Certificate, request: DeletionRequest) -> Iterator[tuple[str, object, object]]:
    """Yield what certificate and ledger both say of the request: its name, as certified, and as in the ledger."""
    asked, there, method = certificate.request, facts_of(request), certificate.method
    for name in sorted((CertifiedRequest.model_fields.keys() & there.keys()) - _LATER):
        yield name, getattr(asked, name), there[name]
    yield "outcome", certificate.outcome, request.outcome
    yield "method", method.name, request.method
    for name, value in sorted(exact_numbers(dict(request.parameters)).items()):
        yield f"parameter {name}", method.parameters.get(name), value
    for name in ("before", "unlearned", "after"):
        yield f"model {name}", getattr(certificate.model, name), request.result.get(f"model_hash_{name}")


def _amendable(
    certificate: Certificate, request: DeletionRequest, events: list[Event]
) -> Iterator[tuple[str, object, object]]:
    """Yield the same of what may be amended later: as it was at the certificate's event."""
    asked, until = certificate.request, certificate.ledger.event.sequence
    ground: object = request.ground
    reference: object = None
    for event in reversed(events):
        if event.sequence > until and GROUND_BEFORE in event.detail:
            ground = event.detail[GROUND_BEFORE]
    for event in events:
        if event.sequence <= until:
            reference = event.detail.get(TEXTS, {}).get(Kind.REFERENCE, {}).get("sha256", reference)
    yield "ground", asked.ground, ground
    yield "reference", asked.reference_sha256, reference


def _other_event(what: str, position: Position, found: str) -> str:
    state = "is another one there" if found else "is gone"
    return (
        f"Event {position.sequence}, {what}, {state}: the ledger was rewritten, cut, or an older one was "
        "restored."
    )
