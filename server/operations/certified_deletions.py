"""Deletions that certificates show which were kept elsewhere: for a restore where the ledger that knew them is lost.

A certificate says what was asked and when, with which method, and the event of the ledger that it rests on. A restored
ledger that has this event knows the deletion; one that has not, has to carry it out again. Ids of samples are in no
certificate: lists of ids that lie beside the certificates are recognised by the commitment to them. Nor is it known who
had approved a request, so people decide again where the federation asks for that.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from server.certificate.document import Certificate, decode
from server.certificate.file_checks import read_file
from server.ledger import FEDERATION, Ledger, NewRequest
from server.operations.replaying import Lost
from unlearning.errors import BackupError, CertificateError, InvalidRequest
from unlearning.gdpr import Particulars, parse_ground
from unlearning.pseudonyms import SubjectKeys, commitment
from unlearning.requests import Granularity, Target, hash_of_ids, parse_sample_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Certified:
    """A deletion that a certificate shows. sequence, hash: of its event in the ledger. federation: its name."""

    lost: Lost
    federation: str
    sequence: int
    hash: str

    @property
    def sentence(self) -> str:
        """What a ledger without it does not know."""
        return (
            f"the deletion of {self.lost.new.target.describe()} ({self.lost.request_id}), by its certificate"
        )


def read_certified(
    place: Path, *, keys: SubjectKeys | None, public_key: Ed25519PublicKey | None = None
) -> tuple[Certified, ...]:
    """Read the certificates in `place`, a file or a folder with all below it, in the order of the deletions.

    keys: of sample ids, as the backup has them. public_key: certificates that its holder has not signed do not count.

    Raises:
        BackupError: there is none.
    """
    place = place.expanduser()
    lists = list(_id_lists(place)) if place.is_dir() else []
    files = sorted(place.rglob("*.json")) if place.is_dir() else [place]
    found: dict[str, Certified] = {}
    for path in files:
        with suppress(CertificateError, InvalidRequest, ValueError):  # another file, such as a report
            file = decode(read_file(path))
            if public_key is None or file.is_signed_by(public_key):
                one = _certified(file.certificate, lists, keys)
                found[one.hash] = one
    if not found:
        raise BackupError(
            f"{place} has no certificate of a deletion{'' if public_key is None else ' that this key signed'}. Name "
            "the folder that `flower-unlearn report --output` wrote, or leave --certificates out.",
            code="no-certificates",
        )
    return tuple(sorted(found.values(), key=lambda one: one.sequence))


def unknown_to(ledger: Ledger, certified: Iterable[Certified]) -> list[Certified]:
    """Return the deletions of this federation that its restored ledger does not know, to be approved by its rule."""
    name = (ledger.facts().get(FEDERATION) or {}).get("name", "")
    needed = ledger.approvals_needed()
    return [
        replace(one, lost=replace(one.lost, new=replace(one.lost.new, approvals_needed=needed)))
        for one in certified
        if one.federation == name and ledger.events.hash_of(one.sequence) != one.hash
    ]


def _id_lists(folder: Path) -> Iterator[frozenset[str]]:
    for path in sorted(folder.rglob("*.txt")):
        with suppress(CertificateError, InvalidRequest, UnicodeError):  # another text
            yield parse_sample_ids(read_file(path).decode())


def _certified(
    certificate: Certificate, lists: Iterable[frozenset[str]], keys: SubjectKeys | None
) -> Certified:
    asked, event = certificate.request, certificate.ledger.event
    target = Target(
        Granularity(asked.granularity),
        asked.client_id,
        class_label=asked.class_label,
        num_samples=asked.num_samples or 0,
    )
    due_on = date.fromisoformat(asked.due_on) - timedelta(days=asked.extended_days)
    new = NewRequest(
        target=next(
            (one for one in _named(target, lists, keys) if _is_meant(one, certificate, keys)), target
        ),
        method=certificate.method.name,
        parameters=certificate.method.parameters,
        submitted_by=asked.submitted_by,
        idempotency_key=f"certificate:{event.hash}",
        particulars=Particulars(
            received_on=date.fromisoformat(asked.received_on),
            due_on=due_on,
            ground=parse_ground(asked.ground or ""),
        ),
        replays=asked.id,
    )
    lost = Lost(
        request_id=asked.id,
        new=new,
        filed_at=datetime.fromisoformat(asked.created_at),
        is_done=True,
        extended_days=asked.extended_days,
    )
    return Certified(lost=lost, federation=certificate.federation, sequence=event.sequence, hash=event.hash)


def _named(target: Target, lists: Iterable[frozenset[str]], keys: SubjectKeys | None) -> Iterator[Target]:
    """Yield the target with the ids of each list of their number, as the ledger names them."""
    for ids in lists:
        if keys is not None and target.num_samples == len(ids):
            yield keys.target(replace(target, sample_ids=ids))


def _is_meant(target: Target, certificate: Certificate, keys: SubjectKeys | None) -> bool:
    if keys is None or target.client_id is None:
        return False
    key, asked = keys.of(target.client_id), certificate.request
    return commitment(key, asked.id, hash_of_ids(target.sample_ids)) == asked.sample_ids_commitment
