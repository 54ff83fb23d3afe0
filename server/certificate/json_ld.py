"""Requests and certificates as JSON-LD 1.1, in the terms of the W3C's Data Privacy Vocabulary (DPV 2.2).

    a dpv:RightExerciseRecord, whose parts are a dpv:RightExerciseActivity per request, of the right eu-gdpr:A17
    (erasure), with its status and, where it is answered, a notice: of fulfilment (the certificate) or refusal

`context.jsonld` maps the names; what DPV and Dublin Core have no word for is `urn:flower-unlearning:certificate#NAME`.
It is another form of the same facts, for readers of linked data; a signature covers the certificate's own form.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from server.certificate.document import CertificateFile
from unlearning.outcomes import is_shown
from unlearning.requests import Outcome, Status

ERASURE = "eu-gdpr:A17"
STATUSES: Mapping[Status, str] = {
    Status.RECEIVED: "dpv:RequestInitiated",
    Status.AWAITING: "dpv:RequestAcknowledged",
    Status.ACCEPTED: "dpv:RequestAccepted",
    Status.SCHEDULED: "dpv:RequestAccepted",
    Status.UNLEARNING: "dpv:RequestAccepted",
    Status.RECOVERING: "dpv:RequestAccepted",
    Status.VERIFYING: "dpv:RequestAccepted",
    Status.COMPLETED: "dpv:RequestFulfilled",  # where its outcome shows something
    Status.FAILED: "dpv:RequestActionDelayed",
    Status.REOPENED: "dpv:RequestActionDelayed",
    Status.CANCELLED: "dpv:RequestUnfulfilled",
    Status.REFUSED: "dpv:RequestRejected",
    Status.REPLACED: "dpv:RequestUnfulfilled",
}


@cache
def context() -> dict[str, Any]:
    """Return the names and what they stand for."""
    text = Path(__file__).with_name("context.jsonld").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)["@context"]
    return found


def record(activities: Any, **facts: Any) -> dict[str, Any]:
    """Return a record of activities and `facts` about it, with the context in it, so that nothing is fetched."""
    return {"@context": context(), "@type": "RightExerciseRecord", **facts, "activity": activities}


def activity(
    status: Status, notice: Mapping[str, Any] | None, outcome: Outcome | None = None
) -> dict[str, Any]:
    """Return an exercise of the right to erasure, with the notice to the person where there is one.

    outcome: of a completed request. Where nothing was shown, the request was accepted and carried out: that it is
    fulfilled would say more than is known.
    """
    is_fulfilled = status is not Status.COMPLETED or (outcome is not None and is_shown(outcome))
    said = STATUSES[status] if is_fulfilled else STATUSES[Status.VERIFYING]
    found = {"@type": "RightExerciseActivity", "right": ERASURE, "status": said}
    return found if notice is None else {**found, "notice": notice}


def as_json_ld(file: CertificateFile) -> dict[str, Any]:
    """Return what a certificate says."""
    facts = json.loads(file.signed_bytes)
    outcome = Outcome(facts["outcome"])
    kind = "RightFulfilmentNotice" if is_shown(outcome) else "RightExerciseNotice"
    return record(activity(Status.COMPLETED, {"@type": kind, **facts}, outcome))
