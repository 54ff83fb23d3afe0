"""Who holds what of a deletion, and what that holder could learn of the forgotten records.

Four holders, from the least to the most informed, and the server that sees sums only. Of each two questions: whether a
given record was deleted, which is measured (`membership`), and the record itself, which is arithmetic where the update
of one record is of rank one (`linear_record`) and not measured otherwise.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal, TypeAlias

from unlearning.verification.figures import Estimate

Basis: TypeAlias = Literal["measured", "derived", "not measured"]


class TargetSends(StrEnum):
    """What clients that forget send the server for a deletion, with a method's own defaults."""

    NEVER = "nothing, and no round has used its records"
    KEPT = "nothing that is computed of the forgotten records"
    FORGOTTEN = "an update that is computed of the forgotten records alone"
    OWN = "an update that is computed of all its records"
    SUMS = "sums over the records that it keeps, beside which the server has the earlier ones"
    UNSTATED = "what the method does not state"


class Layer(StrEnum):
    """How much of the model is a linear layer over classes."""

    WHOLE = "all of it"
    LAST = "its last layer"
    NONE = "none of it"

    @classmethod
    def of(cls, num_head_parameters: int, num_parameters: int) -> "Layer":
        """Return it by numbers of parameters."""
        if not num_head_parameters:
            return cls.NONE
        return cls.WHOLE if num_head_parameters == num_parameters else cls.LAST


@dataclass(frozen=True, slots=True)
class Answer:
    """What a holder could learn, what that rests on, and the AUC of the attack where there was one."""

    basis: Basis
    text: str
    auc: Estimate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """One holder. membership: whether a given record was deleted; record: its content."""

    name: str
    holds: str
    membership: Answer
    record: Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """What is known of a deletion.

    after_unlearning, at_end: AUC of the rise of the loss under the models right after unlearning and at the end; None
        where it was not measured, and `why` says why.
    secure: whether only sums over clients were seen. sums_suffice: whether the method can be carried out of these.
    """

    sends: TargetSends
    layer: Layer
    sums_suffice: bool = False
    secure: bool = False
    after_unlearning: Estimate | None = None
    at_end: Estimate | None = None
    why: str = "it is measured after the deletion"


def reveals(given: Deletion) -> tuple[Holder, ...]:
    """Return what each holder could learn, the least informed first."""
    stepwise = _measured(given.after_unlearning or given.at_end, given.why)
    of_server = _record_of_server(given)
    server = Holder(
        name="The server, which saw each client's update",
        holds="every update, both models",
        membership=stepwise,
        record=of_server,
    )
    if given.secure:
        none = Answer("derived", "Nothing of one client: it saw sums only (secure aggregation).")
        if given.sends is TargetSends.SUMS:
            none = Answer(
                "derived",
                "It saw sums only: see the server under secure aggregation.",
            )
        server = replace(server, membership=none, record=none)
    holders = (
        Holder(
            name="Anyone with the model before and after",
            holds="the two models",
            membership=_measured(given.at_end, given.why),
            record=_record_of_public(given, of_server),
        ),
        Holder(
            name="A retained client",
            holds="the model of each round, and so the one before recovery",
            membership=stepwise,
            record=_at_most(of_server),
        ),
        server,
        _secure_server(given, stepwise, of_server),
    )
    if given.sends is TargetSends.NEVER:
        nothing = Answer(
            "derived", "Nothing: the model stays as it was, and no update made of the records is in it."
        )
        return tuple(replace(holder, membership=nothing, record=nothing) for holder in holders)
    return holders


def _measured(auc: Estimate | None, why: str) -> Answer:
    if auc is None:
        return Answer("not measured", f"Whether a given record was deleted: not measured; {why}.")
    text = (
        f"In {100 * auc.value:.0f} of 100 pairs of a deleted and a test record the loss of the deleted one rises more; "
        "50 is guessing."
    )
    return Answer("measured", text, auc)


def _record_of_server(given: Deletion) -> Answer:
    match given.sends, given.layer:
        case TargetSends.SUMS, _:
            text = "Of one record: its features and class, exactly. Of several: the sum of their features by class."
            return Answer("derived", text)
        case TargetSends.FORGOTTEN, Layer.WHOLE:
            text = "Of one record: its features and class, in closed form. Of several: what they span."
            return Answer("derived", text)
        case TargetSends.FORGOTTEN, Layer.LAST:
            text = (
                "Of one record: its class and, if the first layer is dense, its features. Of several: a mixture, "
                "which shows their classes roughly. Pictures by gradient inversion: not measured."
            )
            return Answer("derived", text)
        case TargetSends.KEPT, _:
            text = (
                "Of updates: nothing now; those of earlier rounds, if kept, were made of the records too. Of the "
                "difference of the models: not measured."
            )
            return Answer("derived", text)
        case TargetSends.OWN, _:
            return Answer("not measured", "The update is computed of all the target's records: not measured.")
    return Answer("not measured", f"The target sends {given.sends}: not measured.")


def _record_of_public(given: Deletion, of_server: Answer) -> Answer:
    if given.sends is TargetSends.SUMS:
        text = (
            "Of one record deleted alone: its features and class, as well as the sums over all inputs are known or "
            "estimated from similar data. Recovery does not cover it."
        )
        return Answer("derived", text)
    return _at_most(of_server)


def _at_most(of_server: Answer) -> Answer:
    if of_server.basis == "not measured":
        return of_server
    return Answer("derived", "At most what the server learns; how much of it is not measured.")


def _secure_server(given: Deletion, stepwise: Answer, of_server: Answer) -> Holder:
    name, holds = "The server under secure aggregation", "sums over clients, both models"
    if not given.sums_suffice:
        none = Answer("derived", "The method does not run under it.")
        return Holder(name=name, holds=holds, membership=none, record=none)
    head = "" if given.secure else "Not switched on. "
    membership = replace(stepwise, text=head + stepwise.text)
    if given.sends is TargetSends.KEPT:
        record = replace(of_server, text=f"{head}Nothing of one client's update.")
    elif given.sends is TargetSends.SUMS:
        record = replace(
            of_server, text=f"{head}{of_server.text} It is the difference of two sums over clients."
        )
    else:
        record = Answer("not measured", f"{head}The target's update is one term of a sum: not measured.")
    return Holder(name=name, holds=holds, membership=membership, record=record)
