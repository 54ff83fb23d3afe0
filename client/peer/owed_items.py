"""What requests need of a peer: its numbers and curvature for others, and corrections.

`next_work` finds it, `carry_out` computes it without touching the peer. A failure is reported and not retried: the
correction then has no vector and a reason, and the examples stay out of training all the same.
"""

import numpy as np

from client.peer.gossip import GossipMessage, Kind
from client.peer.known_items import largest_norm
from client.peer.learner import Learner, Work
from client.peer.peer import Peer
from client.peer.record import forget_at, granularity_of, needs_statistics, owes_correction
from unlearning.decentralised.corrections import FederationCounts
from unlearning.errors import FlowerUnlearningError
from unlearning.parameters import Vector, norm
from unlearning.requests import Granularity

_MAX_REASON = 500
"""Characters."""


def next_work(peer: Peer, *, overdue: frozenset[str] = frozenset()) -> Work | None:
    """Return the next item that `peer` owes, in the order in which requests came to it.

    overdue: ids of requests that wait no longer for peers that are silent.
    """
    for request in list(peer.record.of(Kind.REQUEST)):
        if peer.record.owes_statistics(peer.name, request):
            return _work(peer, request, Kind.STATISTICS)
        is_owed = owes_correction(peer.name, request)
        if not is_owed or peer.record.has(Kind.CORRECTION, peer.name, request.subject):
            continue
        if request.subject in overdue or not missing_statistics(peer, request):
            return _work(peer, request, Kind.CORRECTION)
    return None


def missing_statistics(peer: Peer, request: GossipMessage) -> list[str]:
    """Return the peers whose numbers a request of this peer still waits for."""
    if not needs_statistics(request):
        return []
    leaver = request.origin if granularity_of(request) is Granularity.CLIENT else None
    return [
        other
        for other in peer.graph.nodes
        if other != leaver and not peer.record.has(Kind.STATISTICS, other, request.subject)
    ]


def carry_out(work: Work, learner: Learner) -> GossipMessage:
    """Return the item that was owed."""
    values, vector = (_statistics if work.kind is Kind.STATISTICS else _correction)(work, learner)
    return GossipMessage(
        kind=work.kind, origin=work.peer, subject=work.request.subject, values=values, vector=vector
    )


def _work(peer: Peer, request: GossipMessage, kind: Kind) -> Work:
    before, forget = peer.forget_set(before=request.subject), forget_at(peer.name, request, {})
    if request.origin == peer.name:
        forget |= peer.target(request.subject)
    held = peer.record.counts(before=request.subject)
    # the others count what this peer declared when it joined, though its data may have grown since
    deleted = min(peer.learner.count(forget, outside=before), held.get(peer.name, 0))
    learnt = deleted if peer.model.has_trained else 0
    if granularity_of(request) is Granularity.CLASS:
        statistics = peer.record.of(Kind.STATISTICS, request.subject)
        federation_deleted = sum(int(item.values["deleted"]) for item in statistics)
    else:
        federation_deleted = learnt
    counts = FederationCounts(
        num_peers=len(peer.graph.nodes),
        num_examples=sum(held.get(node, 0) for node in peer.graph.nodes),
        num_deleted=federation_deleted,
    )
    return Work(
        kind=kind,
        peer=peer.name,
        request=request,
        parameters=peer.model.vector,
        before=before,
        forget=forget,
        counts=counts,
        curvatures=peer.record.curvatures_for(request),
        num_examples=held.get(peer.name, 0),
        deleted=deleted,
        learnt=learnt,
        largest_norm=largest_norm(peer.name, deleted, peer.record),
    )


def _statistics(work: Work, learner: Learner) -> tuple[dict[str, object], Vector | None]:
    values: dict[str, object] = {
        "num_examples": work.num_examples - work.deleted,
        "deleted": work.learnt,
    }
    vector = None
    if work.request.values["curvature"] and work.num_examples > work.deleted:
        try:
            vector = learner.curvature(work.parameters, without=work.before | work.forget)
        except Exception as exc:  # noqa: BLE001 - whatever it is, the others learn of it
            values["reason"] = _reason(exc)
    return values, vector


def _correction(work: Work, learner: Learner) -> tuple[dict[str, object], Vector | None]:
    leaves = granularity_of(work.request) is Granularity.CLIENT
    values: dict[str, object] = {"weight": 0.0, "deleted": work.deleted, "leaves": leaves}
    if not work.learnt:
        reason = "None of these examples ever took part in training, so there is nothing to take out."
        return {**values, "reason": reason}, None
    if work.request.values["curvature"] and not work.curvatures:
        return {**values, "reason": "No peer sent its curvature, so there is no correction."}, None
    try:
        made, account = learner.correction(work)
    except Exception as exc:  # noqa: BLE001 - others' numbers go into it, and this peer goes on
        return {**values, "reason": _reason(exc)}, None
    length = made.weight * norm(made.vector)
    if not np.isfinite(made.vector).all():
        reason = "The correction is not finite, so it was not sent. Raise the damping."
        return {**values, "reason": reason}, None
    if length > work.largest_norm:
        reason = (
            f"The correction would move every model by {length:.4g}, and the others accept {work.largest_norm:.4g} "
            "at most, so it was not sent. Raise the damping, train longer, or raise `limits.correction-norm` "
            "at every peer."
        )
        return {**values, "reason": reason}, None
    return {**values, "weight": made.weight, "account": account}, made.vector


def _reason(error: Exception) -> str:
    """Return what went wrong, for other peers to read."""
    text = str(error) if isinstance(error, FlowerUnlearningError) else f"{type(error).__name__}: {error}"
    return text[:_MAX_REASON]
