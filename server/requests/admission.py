"""Admission of new deletion requests, the only one: what is refused here never enters the ledger.

The deletion service uses it for requests that people file, and the ServerApp for those that a
client files at its own site; the live loop checks again before it begins (`check_admissible`),
because a federation can change while a request waits.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from logging import getLogger
from typing import Any
from uuid import uuid4

from server.ledger import FEDERATION, UNBOUNDED, Allowance, Ledger, NewRequest
from server.requests.comparisons import own_comparisons
from server.requests.privacy_budget import check_budget
from server.requests.recommending import Recommendation, recommend, safest_first, shown_here, waits_for
from server.requests.training_privacy import check_covered
from unlearning.errors import InvalidRequest, RequestError, UnknownClient, UnsupportedRequest
from unlearning.gdpr import check_reason
from unlearning.methods.eligibility import FederationProfile, check_eligible
from unlearning.methods.method import Method
from unlearning.methods.preparation import Preparation
from unlearning.methods.registry import check_supports, method_named, preparations, validated_parameters
from unlearning.methods.safe_range import beyond_safe_range
from unlearning.one_line import list_first
from unlearning.pseudonyms import PREFIX, is_keyed, names_of
from unlearning.requests import MAX_ID_LENGTH, DeletionRequest, Target
from unlearning.runtime.json_codec import from_plain

_log = getLogger(__name__)
# How many ids an error message lists; a federation may have thousands of clients.
_SHOWN = 20


def admit(
    ledger: Ledger,
    new: NewRequest,
    *,
    now: datetime,
    by_operator: bool = False,
    allowance: Allowance = UNBOUNDED,
) -> DeletionRequest:
    """Check a new request and write it down; it is durable when this returns.

    A request without a method gets the one that is recommended; the reason is in its first event.
    The method's default parameters are written down too, so that a request says everything about
    itself. Without an idempotency key it gets one; one that its submitter has used before returns the request it made.
    by_operator: whether an operator files it, who may choose parameters beyond the method's safe ranges.

    Raises:
        InvalidRequest: a parameter, the key, a reason or the submitter's name is malformed, or beyond the safe range.
        UnknownMethod: there is no such method.
        UnsupportedRequest: the method does not work at this granularity, or not in this federation.
        UnknownClient: the federation has no such client.
        ConflictingRequest: the submitter's key made another request.
        LimitExceeded: the submitter has too many open requests, or is over its quota.
        LedgerUnavailable: the ledger cannot be written.
    """
    new = replace(new, idempotency_key=new.idempotency_key or str(uuid4()))
    _check_text("idempotency key", new.idempotency_key)
    _check_text("submitter's name", new.submitted_by)
    _check_ids(new.target)
    target = ledger.key_target(new.target)
    # A request sent twice gets its first answer. What is forgotten already is answered by the deletion that forgot it.
    known = ledger.requests.find(new.idempotency_key, new.submitted_by, new.submitted_role)
    if not new.method:
        new = _with_method(ledger, new, target, known)
    method, complete = _resolve(target, new.method, new.parameters, by_operator=by_operator)
    approvals = 0
    if known is None:
        check_client(ledger, target)
        if not ledger.answers(target):
            _check_eligible(ledger, target, federation_of(ledger), method, complete)
            approvals = ledger.approvals_needed()
    complete_request = replace(
        new,
        target=target,
        parameters=complete,
        hold_reason=new.hold_reason and check_reason("a hold", new.hold_reason),
        approvals_needed=approvals,
    )
    filed = ledger.requests.submit(complete_request, now=now, allowance=allowance)
    if known is None:
        _log.info(
            "Request %s is filed by %s: forget %s with %s",
            *(filed.id, filed.submitted_by, filed.target.describe(), filed.method),
            extra={
                "event": "filed",
                "request": filed.id,
                "by": filed.submitted_by,
                "role": filed.submitted_role,
                "status": filed.status,
                "due_on": filed.due_on,
            },
        )
    return filed


def check_admissible(
    ledger: Ledger, target: Target, *, method: str, parameters: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Refuse what `admit` would refuse, but for idempotency keys; return all the method's parameters.

    Raises:
        InvalidRequest: a parameter is malformed.
        UnknownMethod: there is no such method.
        UnsupportedRequest: the method does not work at this granularity, or not in this federation.
        UnknownClient: the federation has no such client.
    """
    check_client(ledger, target)
    return check_served(ledger, target, federation_of(ledger), method=method, parameters=parameters)


def check_served(
    ledger: Ledger,
    target: Target,
    federation: FederationProfile | None,
    *,
    method: str,
    parameters: Mapping[str, Any],
) -> Mapping[str, Any]:
    """Do what `check_admissible` does for a client that is known, and a federation that was read already.

    Raises:
        InvalidRequest, UnknownMethod, UnsupportedRequest: as there.
    """
    found, complete = _resolve(target, method, parameters, by_operator=True)  # its filer was checked then
    _check_eligible(ledger, target, federation, found, complete)
    return complete


def method_without_the_data(ledger: Ledger, request: DeletionRequest) -> tuple[str, Mapping[str, Any]] | None:
    """Return the method, with its parameters, for data that sites no longer use, not even to forget it.

    None where that of the request does not work with the data, or no other can serve it.
    """
    if not method_named(request.method).info.works_with_the_data:
        return None
    target, federation = ledger.requests.target_of(request), federation_of(ledger)
    advised = _recommended(ledger, target, federation, None)
    if not advised.method:
        return None
    return advised.method, check_served(ledger, target, federation, method=advised.method, parameters={})


def _resolve(
    target: Target, name: str, parameters: Mapping[str, Any], *, by_operator: bool
) -> tuple[Method, Mapping[str, Any]]:
    """Return the method of this name and all its parameters, defaults included."""
    method = method_named(name)
    check_supports(method, target)
    valid = validated_parameters(method, parameters)
    beyond = "" if by_operator else "; ".join(beyond_safe_range(valid))
    if beyond:
        raise InvalidRequest(
            f"Only an operator may ask {name} for {beyond}. Stay within the range, or ask the federation's operator.",
            code="beyond-safe-range",
        )
    return method, valid.model_dump(mode="json")


def _with_method(
    ledger: Ledger, new: NewRequest, target: Target, known: DeletionRequest | None
) -> NewRequest:
    """Return a request that names no method with the recommended one; one that is known already as it was filed.

    Raises:
        InvalidRequest: it has parameters, and of no method.
        UnknownClient: the federation has no such client.
        UnsupportedRequest: no method can serve it.
    """
    if new.parameters:
        raise InvalidRequest(
            f"The parameters {', '.join(sorted(new.parameters))} are given without a method. Name the method.",
            code="parameters-of-no-method",
        )
    if known is not None:
        return replace(new, method=known.method, parameters=known.parameters)
    check_client(ledger, target)
    if answering := ledger.answers(target):
        why = f"All of it was forgotten by {' and '.join(answering)}."
        return replace(new, method=ledger.requests.get(answering[-1]).method, why=why)
    online = {record.client_id for record in ledger.online_clients()}
    advised = _recommended(ledger, target, federation_of(ledger), online)
    if not advised.method:
        check_admissible(ledger, target, method=safest_first()[0], parameters={})  # says what is in the way
    return replace(new, method=advised.method, why=advised.why)


def _recommended(
    ledger: Ledger,
    target: Target,
    federation: FederationProfile | None,
    online: set[str] | None,
) -> Recommendation:
    """Return the recommended method of those that the federation can carry out.

    online: the clients that are; None: of methods that do not work with the data, and all that are online.
    """

    def is_admissible(name: str) -> bool:
        if online is None and method_named(name).info.works_with_the_data:
            return False
        try:
            check_served(ledger, target, federation, method=name, parameters={})
        except RequestError:
            return False
        return True

    return recommend(
        target.granularity,
        federation,
        is_admissible=is_admissible,
        absent_for=lambda name: "" if online is None else waits_for(method_named(name), target, online),
        here=shown_here(ledger, target.granularity),
        own=own_comparisons(ledger),
    )


def _check_ids(target: Target) -> None:
    """Refuse sample ids that are missing or not plain: a hash of one would name nothing but itself."""
    if target.num_samples and not target.sample_ids:
        raise InvalidRequest("The request counts samples and names none; name each by its id.")
    if any(map(is_keyed, target.sample_ids)):
        raise InvalidRequest(
            f"Sample ids that begin with {PREFIX!r} are kept for hashes; rename these samples."
        )


def check_client(ledger: Ledger, target: Target) -> None:
    """Refuse a target whose client the federation does not have, or of a federation that has not started.

    Raises:
        UnknownClient: so it is.
    """
    if target.client_id is not None and ledger.has_client(target.client_id):
        return
    known = [client.client_id for client in ledger.clients()]
    if not known:  # then it is not known either whether people decide before a request begins
        raise UnknownClient(
            f"Nothing to forget of {target.describe()}: the federation has not started, no client has joined yet. "
            "Start it, then try again.",
            code="not-started",
        )
    if target.client_id is not None:
        raise UnknownClient(
            f"There is no client {target.client_id!r}. Known: {_some(known, ', ')}.", code="no-such-client"
        )


def _check_eligible(
    ledger: Ledger,
    target: Target,
    federation: FederationProfile | None,
    method: Method,
    parameters: Mapping[str, Any],
) -> None:
    """Refuse what this federation cannot serve; one that has not said what it is checks that when it starts."""
    if federation is None:
        return
    prepared = preparations(federation.prepare)
    named = _name_samples(ledger, target, prepared.values())
    check_eligible(method, named, federation, prepared)
    if federation.secure_aggregation and target.client_id is not None:
        _refuse_single_sums(method, parameters, target.client_id)
    check_budget(ledger, target, method, parameters)
    check_covered(ledger, method, named)


def _refuse_single_sums(method: Method, given: Mapping[str, Any], client: str) -> None:
    if name := method.asks_targets_by(method.Parameters.model_validate(given)):
        raise UnsupportedRequest(
            f"With {name}, {method.info.title} asks client {client} alone, and this federation sees sums over several "
            f"clients only (secure-aggregation). Leave {name} out.",
            code="needs-single-answers",
        )


def _name_samples(ledger: Ledger, target: Target, prepared: Iterable[Preparation]) -> Target:
    """Return `target` with those ids in clear that preparations name: they compare them."""
    if ledger.keys is None or target.client_id is None or not target.sample_ids:
        return target
    known = {name for one in prepared for name in one.named_samples}
    names = names_of([ledger.keys.of(target.client_id)], known)
    return replace(target, sample_ids=frozenset(names.get(item, item) for item in target.sample_ids))


def federation_of(ledger: Ledger) -> FederationProfile | None:
    """Return what the ServerApp has written down of its federation; None before its first start."""
    known = ledger.facts().get(FEDERATION)
    return None if known is None else from_plain(FederationProfile, known)


def _check_text(what: str, text: str) -> None:
    if not text or len(text) > MAX_ID_LENGTH or not text.isprintable():
        # Not repeated: a message is logged, and a reader who knows a key could learn what it was used for.
        raise InvalidRequest(
            f"Malformed {what}: it is 1 to {MAX_ID_LENGTH} printable characters.", code="malformed-text"
        )


def _some(items: Sequence[str], separator: str) -> str:
    return list_first([item[:120] for item in items], _SHOWN, separator)
