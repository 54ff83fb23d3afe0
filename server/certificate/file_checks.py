"""What can be checked of a certificate of deletion by itself and beside its files; every outcome is one sentence.

What a ledger says of it: `server.certificate.ledger_check`.
"""

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from server.certificate.document import Certificate, CertificateFile
from server.certificate.keys import key_id
from server.state_directory.subject_key import read_client_keys
from unlearning.errors import CertificateError, InvalidRequest
from unlearning.pseudonyms import commitment, keyed_ids
from unlearning.requests import hash_of_ids, parse_sample_ids
from unlearning.runtime.foreign_files import open_plain, read_plain


class Outcome(StrEnum):
    """What a check found."""

    HOLDS = "holds"
    REFUSED = "REFUSED"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Check:
    """One check: of what, with which outcome, in one sentence."""

    of: str
    outcome: Outcome
    sentence: str

    @classmethod
    def confirm(cls, of: str, sentence: str) -> "Check":
        """Return that it holds."""
        return cls(of, Outcome.HOLDS, sentence)

    @classmethod
    def refuse(cls, of: str, sentence: str) -> "Check":
        """Return that it does not hold."""
        return cls(of, Outcome.REFUSED, sentence)

    @classmethod
    def skip(cls, of: str, sentence: str) -> "Check":
        """Return that it could not be checked."""
        return cls(of, Outcome.SKIPPED, sentence)


def check_signature(file: CertificateFile, key: Ed25519PublicKey | None) -> Check:
    """Check whether the holder of the key's private half wrote the certificate as it is."""
    of, certificate = "signature", file.certificate
    if file.signature is None:
        why = certificate.unsigned_because or "its signature was taken off"
        return Check.refuse(of, f"The certificate is not signed ({why}), so anyone could have written it.")
    if key is None:
        return Check.refuse(
            of, "It cannot be checked without --public-key FILE; anyone could have written it."
        )
    if certificate.key_id != key_id(key):
        return Check.refuse(
            of,
            f"It names the key {_short(certificate.key_id or 'none')}, and the public key given is "
            f"{_short(key_id(key))}: the wrong key, or another server's certificate.",
        )
    if not file.is_signed_by(key):
        return Check.refuse(
            of, "It does not fit: something in the certificate was changed after it was signed."
        )
    return Check.confirm(of, f"Ed25519, by the key {_short(key_id(key))}.")


def check_report(certificate: Certificate, content: bytes | None) -> Check:
    """Check whether the content of a file is the report.json that was certified."""
    if content is None:
        return Check.skip("report", "Give --report report.json.")
    if hashlib.sha256(content).hexdigest() != certificate.report_sha256:
        return Check.refuse(
            "report", "This is not the report that was certified; something in it was changed."
        )
    return Check.confirm("report", "Byte for byte the report that was certified.")


def check_model(certificate: Certificate, path: Path | None) -> Check:
    """Check whether a file (a state dictionary) is the model that the deletion left behind.

    Raises:
        CertificateError: the file holds no model.
    """
    if path is None:
        return Check.skip(
            "model", "Give --model model.pt, as `flower-unlearn model` wrote it after the deletion."
        )
    digest, frozen = _model_hashes(path)
    hashes = certificate.model
    if (digest, frozen) == (hashes.after, hashes.frozen or ""):
        on = f", on the certified frozen part, {_short(frozen)}" if frozen else ""
        return Check.confirm("model", f"{path} is the model after the deletion, {_short(digest)}{on}.")
    if digest == hashes.after:
        return Check.refuse(
            "model",
            f"What is trained in {path} is the model after the deletion, but its frozen part is another: its hash is "
            f"{_short(frozen) or 'none'}, not {_short(hashes.frozen or '')}.",
        )
    if hashes.frozen and not frozen:
        return Check.refuse(
            "model",
            f"{path} does not say which of its tensors were trained, and the certificate's model has a frozen part. "
            "Give the file as `flower-unlearn model` wrote it.",
        )
    which = {hashes.before: "the model before the deletion", hashes.unlearned: "the one before recovery"}
    found = which.get(digest, "another model (or one that has been trained since)")
    return Check.refuse(
        "model", f"{path} is {found}: its hash is {_short(digest)}, not {_short(hashes.after)}."
    )


def check_samples(certificate: Certificate, samples: Path | None, keys: Path | None) -> Check:
    """Check whether a list of sample ids is the one that is certified; it takes the client's key of them.

    keys: the server's file `subject-key`, or the client's `subject-keys`.

    Raises:
        CertificateError: the list cannot be read.
        ConfigurationError: the file holds no keys.
    """
    of, asked = "samples", certificate.request
    if not asked.num_samples or asked.client_id is None:
        return Check.skip(of, "The request names none.")
    if samples is None:
        return Check.skip(of, "Give --samples FILE, and --subject-key FILE.")
    try:
        ids = parse_sample_ids(read_file(samples).decode())
    except (InvalidRequest, UnicodeError) as exc:
        raise CertificateError(f"{samples} cannot be read as a list of sample ids: {exc}") from exc
    if keys is None:
        return Check.skip(
            of, "Give --subject-key FILE as well; only the key can tell which samples they are."
        )
    holds = any(
        commitment(key, asked.id, hash_of_ids(keyed_ids(key, ids))) == asked.sample_ids_commitment
        for key in read_client_keys(keys, asked.client_id)
    )
    if not holds:
        return Check.refuse(of, f"The {len(ids):,} sample(s) of {samples} are not those that are certified.")
    return Check.confirm(of, f"The {len(ids):,} sample(s) of {samples} are those that are certified.")


def _model_hashes(path: Path) -> tuple[str, str]:
    """Return the hashes of what was trained in a state dictionary, and of what was frozen: empty for nothing."""
    import pickle

    import torch

    from unlearning.parameters import content_hash, hash_of_tensors, parts_of

    try:
        with open_plain(_in_chosen_folder(path)) as file:
            values = torch.load(file, map_location="cpu", weights_only=True)
        trained, frozen = parts_of(values)
        vector = torch.cat([tensor.reshape(-1) for tensor in trained.values()]).numpy()
        return content_hash(vector), hash_of_tensors(frozen)
    except (
        OSError,
        RuntimeError,
        AttributeError,
        TypeError,
        ValueError,
        EOFError,
        pickle.UnpicklingError,
    ) as exc:
        raise CertificateError(
            f"{path} cannot be read as a model (a PyTorch state dictionary): {exc}"
        ) from exc


def read_file(path: Path) -> bytes:
    """Return the content of a file that another party may have sent: a plain one, of a bounded size.

    Raises:
        CertificateError: it cannot be read.
    """
    try:
        return read_plain(_in_chosen_folder(path))
    except OSError as exc:
        raise CertificateError(f"{path} cannot be read: {exc}") from exc


def _in_chosen_folder(path: Path) -> Path:
    """Return the path with its folder resolved, which the caller chose; the file in it may be a link of others."""
    return path.parent.resolve() / path.name


def _short(digest: str) -> str:
    return digest[:16]
