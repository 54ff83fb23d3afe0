"""Completes a request: writes its report and its certificate, from what checkpoint, ledger and report say.

The certificate is written before the ledger's completion, whose event in the chain has its SHA-256. Its time is that
of the last event, so one written again after a crash says the same: only the ledger's head, and the report's own time
and so its hash, may have moved on.
"""

import hashlib
from datetime import UTC
from logging import getLogger
from pathlib import Path

from server.certificate.document import (
    NAME,
    Certificate,
    CertifiedAttacks,
    CertifiedHolder,
    CertifiedMethod,
    CertifiedPrivacy,
    CertifiedRequest,
    LedgerPlace,
    ModelHashes,
    Position,
    encode,
)
from server.certificate.keys import key_id, signer
from server.deletion.privacy_account import result_of
from server.federation.context import FederationContext
from server.federation.state import ActiveDeletion, Move
from server.ledger import Event, Ledger
from server.report import write_report
from server.report.report_data import ReportData
from server.state_directory.files import EARLIER, REPORTS
from unlearning.outcomes import PRIVACY_ACCOUNT
from unlearning.pseudonyms import commitment
from unlearning.requests import Status, hash_of_ids
from unlearning.runtime.durable_files import write_atomically
from unlearning.runtime.json_codec import to_plain
from unlearning.verification.figures import Measurement

_log = getLogger(__name__)


def complete(context: FederationContext, deletion: ActiveDeletion, report: ReportData) -> Move:
    """Write a request's report and certificate; return the move that completes it with both in its result."""
    request_id = report.request.id
    directory = context.state_dir / REPORTS / request_id
    _keep_earlier(context.ledger, directory)
    write_report(directory, report)
    certificate = {
        "certificate_sha256": write_certificate(
            context.ledger, report, directory, context.settings.certificate_key
        )
    }
    _log.info("The report of %s is in %s.", request_id, directory)
    return Move(
        request_id=request_id,
        to=Status.COMPLETED,
        detail=certificate,
        outcome=report.outcome(),
        result={
            "report": str(Path(REPORTS) / request_id / "report.html"),
            **certificate,
            "model_hash_before": deletion.hash_before,
            "model_hash_unlearned": deletion.hash_unlearned,
            "model_hash_after": report.model_hash_after,
            "recovery_rounds": deletion.recovery_rounds,
            "cost": _cost_of(deletion),
            **result_of(deletion),
        },
    )


def _keep_earlier(ledger: Ledger, directory: Path) -> None:
    """Copy what an earlier completion of a reopened request wrote, into `until-DIGEST` after its certificate.

    After a crash the certificate that is there may be the new one, which the ledger does not name yet: then they are
    kept already.
    """
    known = str(ledger.requests.get(directory.name).result.get("certificate_sha256", ""))
    path = directory / NAME
    if not known or not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != known:
        return
    for file in (one for one in directory.iterdir() if one.is_file()):
        write_atomically(directory / f"{EARLIER}{known[:16]}" / file.name, file.read_bytes())
    path.with_suffix(".tsr").unlink(missing_ok=True)  # it is of the earlier certificate


def write_certificate(ledger: Ledger, report: ReportData, directory: Path, certificate_key: str) -> str:
    """Write the certificate of the request that `report` is about beside it; return the file's SHA-256.

    certificate_key: the file of the key that signs; empty where none does.

    Raises:
        OSError: the directory cannot be written to.
    """
    key, unsigned_because = signer(certificate_key)
    certificate = _certificate(
        ledger,
        report,
        report_sha256=hashlib.sha256((directory / "report.json").read_bytes()).hexdigest(),
        signed_by=None if key is None else key_id(key.public_key()),
        unsigned_because=unsigned_because,
    )
    content = encode(certificate, key)
    write_atomically(directory / NAME, content)
    if key is None:
        _log.warning("The certificate of %s is not signed: %s", report.request.id, unsigned_because)
    return hashlib.sha256(content).hexdigest()


def last_event(ledger: Ledger, request_id: str) -> Event:
    """Return the newest event of a request."""
    *_, newest = ledger.events.all(request_id)  # a request begins with one
    return newest


def _certificate(
    ledger: Ledger,
    report: ReportData,
    *,
    report_sha256: str,
    signed_by: str | None,
    unsigned_because: str,
) -> Certificate:
    event = last_event(ledger, report.request.id)
    asked, facts = report.request, report.to_json()
    return Certificate(
        issued_at=event.at.astimezone(UTC).isoformat(timespec="seconds"),
        federation=report.federation.name,
        request=CertifiedRequest(
            **{
                name: value
                for name, value in facts["request"].items()
                if name in CertifiedRequest.model_fields
            },
            sample_ids_commitment=_commitment(ledger, asked.id),
        ),
        method=CertifiedMethod(
            name=asked.method,
            title=asked.method_title,
            source=asked.method_source,
            parameters=facts["request"]["parameters"],
        ),
        model=ModelHashes(
            before=report.model_hash_before,
            unlearned=report.model_hash_after_unlearning,
            after=report.model_hash_after,
            frozen=report.model_hash_frozen or None,
        ),
        ledger=_place(ledger, event),
        outcome=facts["outcome"],
        attacks=CertifiedAttacks(**facts["attacks"]),
        scores={"before": _scores(report.first("before")), "after": _scores(report.final())},
        not_measured=[*report.not_measured, *_gaps(report)],
        software=dict(report.software),
        report_sha256=report_sha256,
        privacy=_privacy(report),
        reveals=[CertifiedHolder(**holder) for holder in facts["reveals"]],
        key_id=signed_by,
        unsigned_because=unsigned_because,
    )


def _place(ledger: Ledger, event: Event) -> LedgerPlace:
    """Return where `event` and the newest event of all stand in the chain."""
    sequence, digest = ledger.events.head()
    return LedgerPlace(
        event=Position(sequence=event.sequence, hash=ledger.events.hash_of(event.sequence) or ""),
        head=Position(sequence=sequence, hash=digest),
    )


def _commitment(ledger: Ledger, request_id: str) -> str | None:
    """Return what the certificate says of the request's sample ids; None where it names none."""
    target = ledger.requests.target_of(ledger.requests.get(request_id))
    if target.client_id is None or not target.sample_ids:
        return None
    assert ledger.keys is not None, "a ServerApp opens its ledger with keys"
    return commitment(ledger.keys.of(target.client_id), request_id, hash_of_ids(target.sample_ids))


def _privacy(report: ReportData) -> CertifiedPrivacy | None:
    """Return the account of the deletion, where it has one."""
    account = report.unlearning.findings.get(PRIVACY_ACCOUNT)
    if account is None:
        return None
    return CertifiedPrivacy(**{name: account[name] for name in CertifiedPrivacy.model_fields})


def _cost_of(deletion: ActiveDeletion) -> dict[str, float]:
    """Return what unlearning and recovery took together, for those who plan the next deletion."""
    phases = (deletion.unlearning_cost, deletion.recovery_cost)
    return {
        "seconds": sum(cost.seconds for cost in phases),
        "bytes": sum(cost.bytes_sent + cost.bytes_received for cost in phases),
    }


def _scores(measurement: Measurement | None) -> dict[str, object]:
    if measurement is None:
        return {}
    plain = to_plain(measurement)
    return {name: plain[name] for name in ("stage", "round", "test", "retained", "forgotten")}


def _gaps(report: ReportData) -> list[str]:
    return [
        f"{item.stage}, round {item.round}: {gap}"
        for item in report.measurements
        for gap in item.not_measured
    ]
