"""A certificate's facts as JSON-LD 1.1, in the terms of the W3C's Data Privacy Vocabulary (DPV 2.2) where it has them.

    a dpv:RightExerciseRecord, whose part is a dpv:RightExerciseActivity of the right eu-gdpr:A17 (erasure), fulfilled,
    whose notice is a dpv:RightFulfilmentNotice: the certificate

`context.jsonld` maps the names; what DPV and Dublin Core have no word for is `urn:flower-unlearning:certificate#NAME`.
It is another form of the same facts, for readers of linked data; the signature covers the certificate's own form.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

from server.certificate.document import CertificateFile

ERASURE = "eu-gdpr:A17"


@cache
def context() -> dict[str, Any]:
    """Return the names and what they stand for."""
    text = Path(__file__).with_name("context.jsonld").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)["@context"]
    return found


def as_json_ld(file: CertificateFile) -> dict[str, Any]:
    """Return what a certificate says, with the context in it, so that nothing is fetched to read it."""
    facts = json.loads(file.signed_bytes)
    return {
        "@context": context(),
        "@type": "RightExerciseRecord",
        "activity": {
            "@type": "RightExerciseActivity",
            "right": ERASURE,
            "status": "dpv:RequestFulfilled",
            "notice": {"@type": "RightFulfilmentNotice", **facts},
        },
    }
