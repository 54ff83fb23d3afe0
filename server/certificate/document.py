"""A certificate of deletion as a file: what it says, its one canonical form, and its signature.

    {"certificate": {...}, "signature": {"algorithm": "ed25519", "value": HEX}}     or "signature": null

Canonical form: RFC 8785 (JSON Canonicalization Scheme). The file is the canonical form and a newline. The signature
(RFC 8032) covers the canonical form of the member `certificate`. docs/explanation-certificates.md explains every field.
"""

import json
from typing import Annotated, Any, Literal, TypeAlias

import rfc8785
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)

from server.certificate.keys import key_id
from unlearning.errors import CertificateError
from unlearning.outcomes import describe, guarantee_of
from unlearning.requests import Outcome

NAME = "certificate.json"
VERSION = 1
# RFC 8785 knows the whole numbers that a float64 holds exactly, one by one.
_LARGEST_INTEGER = 2**53 - 1

Sha256: TypeAlias = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

Day: TypeAlias = Annotated[str, Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]


class _Part(BaseModel):
    """A part of a certificate; a field with the default None is left out where there is nothing to say."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @model_serializer(mode="wrap")
    def _without_unsaid(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        optional = {name for name, item in type(self).model_fields.items() if not item.is_required()}
        said = serialize(self)
        return {name: value for name, value in said.items() if value is not None or name not in optional}


class CertifiedRequest(_Part):
    """What was asked. Ids of samples stay out: their number, and a keyed commitment to them.

    The names are those of a request and its target in `unlearning.requests`, by which a certificate is written
    (`server.deletion.completion`) and compared with the ledger (`ledger_check`).

    sample_ids_commitment: `unlearning.pseudonyms.commitment`, which only a holder of the client's key can test.
    received_on, due_on: days, the deadline with its `extended_days`.
    ground: a letter of Art. 17(1) GDPR. reference_sha256: salted hash of the filer's reference; without one left out.
    """

    id: str
    granularity: str
    client_id: str | None
    class_label: int | None
    num_samples: int | None
    sample_ids_commitment: Sha256 | None = None
    submitted_by: str
    created_at: str
    served_with: list[str]
    received_on: Day
    due_on: Day
    extended_days: int = Field(ge=0, le=60)
    ground: str | None = Field(default=None, pattern="^[a-f]$")
    reference_sha256: Sha256 | None = None


class CertifiedMethod(_Part):
    """The method, and its parameters as they were used."""

    name: str
    title: str
    source: str
    parameters: dict[str, Any]


class ModelHashes(_Part):
    """`unlearning.parameters.content_hash` of the model before, after unlearning, and after recovery.

    frozen: `unlearning.training.frozen_part` of what the task makes on every machine, which is in none of the others.
    """

    before: Sha256
    unlearned: Sha256
    after: Sha256
    frozen: Sha256 | None = None


class Position(_Part):
    """An event of the ledger; its hash commits to all events up to it."""

    sequence: int = Field(ge=1, lt=2**63)
    hash: Sha256


class LedgerPlace(_Part):
    """event: the last one of this request before its completion. head: the newest one of all at that moment."""

    event: Position
    head: Position


class CertifiedAttacks(_Part):
    """The verdict (one of five) and every attack's figures with intervals, as in report.json."""

    verdict: Literal[
        "indistinguishable from retraining by these attacks",
        "reduced",
        "over-forgetting",
        "too few to say",
        "not shown",
    ]
    reasons: list[str]
    before: dict[str, Any]
    after: dict[str, Any]


class CertifiedAnswer(_Part):
    """What a holder could learn, by what that is known, and an attack's AUC with its interval where there was one."""

    basis: Literal["measured", "derived", "not measured"]
    text: str
    auc: dict[str, float] | None = None


class CertifiedHolder(_Part):
    """Who saw what of the deletion: whether it tells that a given record was deleted, and the record itself."""

    name: str
    holds: str
    membership: CertifiedAnswer
    record: CertifiedAnswer


class CertifiedPrivacy(_Part):
    """What the noise of the released models hides, all deletions of this federation together.

    basis: of all of them. epsilon_of_this_release, spent_epsilon: at `delta`; None where unbounded.
    """

    statement: str
    basis: Literal["proven", "empirical", "none"]
    sigma: float
    sensitivity: float | None
    sensitivity_is_bound: bool
    epsilon_of_this_release: float | None
    num_releases: int
    spent_epsilon: float | None
    delta: float
    budget_epsilon: float | None


class Certificate(_Part):
    """Everything that a certificate states.

    outcome: of `unlearning.requests.Outcome`: what the deletion achieved, beside that it was carried out.
    privacy: of a deletion by addition of vectors. reveals: what the deletion itself tells, by holder.
    scores: mean loss and score of the three sets, `before` and `after`.
    not_measured: texts. key_id: of the signing key, None where unsigned (and then why).
    """

    format: Literal["flower-unlearning deletion certificate"] = "flower-unlearning deletion certificate"
    version: int = Field(default=VERSION, ge=VERSION, le=VERSION)  # a Literal would take true for 1
    issued_at: str
    federation: str
    request: CertifiedRequest
    method: CertifiedMethod
    model: ModelHashes
    ledger: LedgerPlace
    outcome: Literal[
        "over-forgetting", "not-shown", "too-few", "reduced", "indistinguishable", "retrained", "guaranteed"
    ]
    attacks: CertifiedAttacks
    scores: dict[str, Any]
    not_measured: list[str]
    software: dict[str, str]
    report_sha256: Sha256
    privacy: CertifiedPrivacy | None = None
    reveals: list[CertifiedHolder] | None = None
    key_id: Sha256 | None
    unsigned_because: str


def describe_certified(certificate: Certificate) -> str:
    """Return what may be told of a deletion, by its certificate."""
    account = None if certificate.privacy is None else certificate.privacy.model_dump()
    return describe(Outcome(certificate.outcome), certificate.request.num_samples, guarantee_of(account))


class Signature(_Part):
    """The signature of a certificate: one form only, as it is written, for hexadecimal digits have others."""

    algorithm: Literal["ed25519"] = "ed25519"
    value: str = Field(pattern="^[0-9a-f]{128}$")


class CertificateFile(_Part):
    """A certificate's file."""

    certificate: Certificate
    signature: Signature | None

    @property
    def signed_bytes(self) -> bytes:
        """What the signature covers: the canonical form of the certificate."""
        return _signed_bytes(self.certificate)

    def is_signed_by(self, key: Ed25519PublicKey) -> bool:
        """Return whether the holder of this key's private half has signed exactly this."""
        if self.signature is None:
            return False
        try:
            key.verify(bytes.fromhex(self.signature.value), self.signed_bytes)
        except InvalidSignature:
            return False
        return True


def canonical(value: Any) -> bytes:
    """Return `value` in the canonical form of certificates, RFC 8785.

    Raises:
        ValueError: it holds a number that the form has no word for, or text that is no Unicode.
    """
    return rfc8785.dumps(value)


def encode(certificate: Certificate, key: Ed25519PrivateKey | None) -> bytes:
    """Return the certificate's file, signed where there is a key."""
    assert certificate.key_id == (None if key is None else key_id(key.public_key())), "the key it names signs"
    signature = None
    if key is not None:
        signature = Signature(value=key.sign(_signed_bytes(certificate)).hex())
    return _bytes_of(CertificateFile(certificate=certificate, signature=signature))


def _signed_bytes(certificate: Certificate) -> bytes:
    return canonical(exact_numbers(certificate.model_dump(mode="json")))


def _bytes_of(file: CertificateFile) -> bytes:
    return canonical(exact_numbers(file.model_dump(mode="json"))) + b"\n"


def exact_numbers(value: Any) -> Any:
    """Return `value` with whole numbers beyond 2^53 - 1 as texts of their digits: readers would round them."""
    if isinstance(value, dict):
        return {name: exact_numbers(item) for name, item in value.items()}
    if isinstance(value, list):
        return [exact_numbers(item) for item in value]
    if isinstance(value, int) and abs(value) > _LARGEST_INTEGER:
        return str(value)
    return value


def decode(content: bytes) -> CertificateFile:
    """Read what `encode` wrote, from bytes of any origin.

    Raises:
        CertificateError: they are damaged ("unreadable"), of another form ("wrong-form", with the `places`), or not
            canonical ("not-canonical").
    """
    try:
        file = CertificateFile.model_validate(json.loads(content, parse_int=_double))
        is_canonical = _bytes_of(file) == content
    except ValidationError as exc:
        where = ", ".join(".".join(map(str, error["loc"])) for error in exc.errors()[:5])
        raise CertificateError(
            "This is no certificate, or not of a form that this version knows; wrong or missing: "
            f"{where or 'all of it'}.",
            code="wrong-form",
            places=where,
        ) from exc
    except (ValueError, OverflowError, RecursionError) as exc:
        raise CertificateError(
            f"The certificate cannot be read; it was cut short or damaged. Fetch it again. ({exc})",
            code="unreadable",
        ) from exc
    if not is_canonical:
        raise CertificateError(
            "The certificate was rewritten by another program: its bytes are not in the canonical form. "
            "Fetch the original file.",
            code="not-canonical",
        )
    return file


def _double(digits: str) -> int | float:
    """Return a number that is written without a point: RFC 8785 writes floats up to 10^21 so."""
    number = int(digits)
    return number if abs(number) <= _LARGEST_INTEGER else float(number)
