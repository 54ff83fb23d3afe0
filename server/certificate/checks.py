"""What can be checked of a certificate of deletion, one function each; every outcome is one sentence."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC
from enum import StrEnum
from functools import cache
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from sqlalchemy.engine import make_url

from server.api.client import DeletionClient, LedgerCheck
from server.certificate.document import Certificate, CertificateFile, Position, exact_numbers
from server.certificate.keys import key_id
from server.ledger import Event, Ledger
from server.ledger.records import GROUND_BEFORE
from server.ledger.texts import TEXTS, Kind
from server.state_directory.subject_key import read_client_keys
from unlearning.errors import CertificateError, ConfigurationError, InvalidRequest, RequestNotFound
from unlearning.pseudonyms import commitment, keyed_ids
from unlearning.requests import DeletionRequest, Status, hash_of_ids, parse_sample_ids


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


def check_signature(file: CertificateFile, key: Ed25519PublicKey | None) -> Check:
    """Check whether the holder of the key's private half wrote the certificate as it is."""
    of, certificate = "signature", file.certificate
    if file.signature is None:
        why = certificate.unsigned_because or "its signature was taken off"
        return _refuse(of, f"The certificate is not signed ({why}), so anybody could have written it.")
    if key is None:
        return _refuse(of, "It cannot be checked without --public-key FILE; anybody could have written it.")
    if certificate.key_id != key_id(key):
        return _refuse(
            of,
            f"It names the key {_short(certificate.key_id or 'none')}, and the public key given is "
            f"{_short(key_id(key))}: the wrong key, or somebody else's certificate.",
        )
    if not file.is_signed_by(key):
        return _refuse(of, "It does not fit: something in the certificate was changed after it was signed.")
    return _confirm(of, f"Ed25519, by the key {_short(key_id(key))}.")


def check_report(certificate: Certificate, path: Path | None) -> Check:
    """Check whether a file is the report.json that was certified.

    Raises:
        CertificateError: the file cannot be read.
    """
    if path is None:
        return _skip("report", "Give --report report.json.")
    return check_report_content(certificate, _read(path), str(path))


def check_report_content(certificate: Certificate, content: bytes, name: str) -> Check:
    """Check whether a report (called `name`) is the one that was certified."""
    if hashlib.sha256(content).hexdigest() != certificate.report_sha256:
        return _refuse("report", f"{name} is not the report that was certified; something in it was changed.")
    return _confirm("report", "Byte for byte the report that was certified.")


def check_model(certificate: Certificate, path: Path | None) -> Check:
    """Check whether a file (a state dictionary) is the model that the deletion left behind.

    Raises:
        CertificateError: the file holds no model.
    """
    if path is None:
        return _skip("model", "Give --model model.pt, as `flower-unlearn model` wrote it after the deletion.")
    digest, frozen = _model_hashes(path)
    hashes = certificate.model
    if digest == hashes.after and frozen == (hashes.frozen or frozen):
        return _confirm(
            "model", f"{path} is the model after the deletion, {_short(digest)}{_on(hashes.frozen, frozen)}"
        )
    if digest == hashes.after:
        return _refuse(
            "model",
            f"What is trained in {path} is the model after the deletion, but its frozen part is another: its hash is "
            f"{_short(frozen) or 'none'}, not {_short(hashes.frozen or '')}.",
        )
    if hashes.frozen and not frozen:
        return _refuse(
            "model",
            f"{path} does not say which of its tensors were trained, and the certificate's model has a frozen part. "
            "Give the file as `flower-unlearn model` wrote it.",
        )
    which = {hashes.before: "the model before the deletion", hashes.unlearned: "the one before recovery"}
    found = which.get(digest, "another model (or one that has been trained since)")
    return _refuse("model", f"{path} is {found}: its hash is {_short(digest)}, not {_short(hashes.after)}.")


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

        problem = cache(ledger.verify)

        def check(sequence: int) -> LedgerCheck:
            head, digest = ledger.event_head()
            first_broken = ledger.verify_chain() if problem() else None
            return LedgerCheck(first_broken, head, digest, ledger.event_hash(sequence) or "", problem())

        return cls(check, ledger.get, lambda request_id: list(ledger.all_events(request_id)))

    @classmethod
    def of_service(cls, service: DeletionClient) -> "LedgerView":
        """View the ledger behind a deletion service; for operators and officers."""

        def events(request_id: str) -> list[Event]:  # the stream ends, for the request is over
            return [item for item in service.watch(request_id) if isinstance(item, Event)]

        return cls(service.verify_ledger, service.get, events)


def open_ledger(url: str) -> Ledger:
    """Open the ledger at `url`, which must be there: a checker makes no new one.

    Raises:
        ConfigurationError: it is no URL of a ledger, or there is none.
        LedgerUnavailable: it cannot be opened.
    """
    if url.startswith("sqlite:"):
        path = make_url(url).database or ""
        if not Path(path).is_file():
            raise ConfigurationError(
                [f"--ledger: there is no file {path!r}. Give sqlite:////path/to/ledger.db."]
            )
    return Ledger.open(url)


def check_ledger(certificate: Certificate, content: bytes, view: LedgerView | None) -> Check:
    """Check whether the ledger's chain holds, has the events that are named, and names this very file (`content`)."""
    of, place = "ledger", certificate.ledger
    if view is None:
        return _skip(of, "Give --ledger URL, or --service to ask the deletion service.")
    for what, position in (
        ("the last event of this request", place.event),
        ("the ledger's head", place.head),
    ):
        check = view.check(position.sequence)
        if check.problem:
            return _refuse(of, f"{check.problem} Somebody wrote past the program.")
        if check.hash != position.hash:
            return _refuse(of, _other_event(what, position, check.hash))
    try:
        request = view.request(certificate.request.id)
    except RequestNotFound:
        return _refuse(of, f"It knows no request {certificate.request.id}: it is another federation's.")
    if request.status is not Status.COMPLETED:
        return _refuse(of, f"Request {request.id} is {request.status} there, not completed.")
    events = view.events(request.id)
    facts = (*_facts(certificate, request), *_amendable(certificate, request, events))
    differs = [name for name, certified, there in facts if certified != there]
    if differs:
        return _refuse(of, f"Request {request.id} says something else there: {', '.join(differs)}.")
    named = next(
        (
            event.detail.get("certificate_sha256")
            for event in reversed(events)
            if event.to_status is Status.COMPLETED
        ),
        None,
    )
    if named is None:
        return _refuse(of, f"It has no event that completes {request.id} and names a certificate.")
    if named != hashlib.sha256(content).hexdigest():
        return _refuse(of, f"The event that completes {request.id} names another certificate than this file.")
    return _confirm(
        of,
        f"All events follow from each other and all rows from them; those events that are named (up to "
        f"{place.head.sequence}) are there, and the request asks for what is certified.",
    )


def _facts(certificate: Certificate, request: DeletionRequest) -> Iterator[tuple[str, object, object]]:
    """Yield what certificate and ledger both say of the request: its name, as certified, as it stands there."""
    asked, target, result = certificate.request, request.target, request.result
    yield "granularity", asked.granularity, str(target.granularity)
    yield "client", asked.client_id, target.client_id
    yield "class", asked.class_label, target.class_label
    yield "number of samples", asked.num_samples or 0, target.num_samples
    yield "submitter", asked.submitted_by, request.submitted_by
    filed_at = request.created_at.astimezone(UTC).isoformat(timespec="seconds")
    yield "time of filing", asked.created_at, filed_at
    if asked.received_on is not None:  # a certificate of before goes without
        yield "day of receipt", asked.received_on, request.received_on.isoformat()
    yield "method", certificate.method.name, request.method
    parameters = certificate.method.parameters
    for name, value in sorted(request.parameters.items()):
        yield f"parameter {name}", parameters.get(name), _as_written(certificate, value)
    yield "model before", certificate.model.before, result.get("model_hash_before")
    yield "unlearned model", certificate.model.unlearned, result.get("model_hash_unlearned")
    yield "model after", certificate.model.after, result.get("model_hash_after")


def _amendable(
    certificate: Certificate, request: DeletionRequest, events: list[Event]
) -> Iterator[tuple[str, object, object]]:
    """Yield the same of what may be amended later: as it stood at the certificate's event."""
    asked, until = certificate.request, certificate.ledger.event.sequence
    if asked.received_on is None:  # as above
        return
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


def _as_written(certificate: Certificate, value: object) -> object:
    return value if certificate.version == 1 else exact_numbers(value)


def check_samples(certificate: Certificate, samples: Path | None, keys: Path | None) -> Check:
    """Check whether a list of sample ids is the one that is certified, for who holds the client's key of them.

    keys: the server's file `subject-key`, or the client's `subject-keys`.

    Raises:
        CertificateError: the list cannot be read.
        ConfigurationError: the file holds no keys.
    """
    of, asked = "samples", certificate.request
    if not asked.num_samples or asked.client_id is None:
        return _skip(of, "The request names none.")
    if samples is None:
        return _skip(of, "Give --samples FILE, and --subject-key FILE.")
    try:
        ids = parse_sample_ids(_read(samples).decode())
    except (InvalidRequest, UnicodeError) as exc:
        raise CertificateError(f"{samples} cannot be read as a list of sample ids: {exc}") from exc
    if asked.sample_ids_commitment is None:  # an earlier certificate: anybody can test a guess
        holds = hash_of_ids(ids) == asked.sample_ids_sha256
    elif keys is None:
        return _skip(
            of, "Give --subject-key FILE as well; without the key nobody can tell which samples they are."
        )
    else:
        holds = any(
            commitment(key, asked.id, hash_of_ids(keyed_ids(key, ids))) == asked.sample_ids_commitment
            for key in read_client_keys(keys, asked.client_id)
        )
    if not holds:
        return _refuse(of, f"The {len(ids):,} sample(s) of {samples} are not those that are certified.")
    return _confirm(of, f"The {len(ids):,} sample(s) of {samples} are those that are certified.")


def _other_event(what: str, position: Position, found: str) -> str:
    state = "is another one there" if found else "is gone"
    return (
        f"Event {position.sequence}, {what}, {state}: the ledger was written anew, cut, or an older one was "
        "restored."
    )


def _on(certified: str | None, frozen: str) -> str:
    """Return what is said of the frozen part of a model whose trained part is the certified one."""
    if certified:
        return f", on the certified frozen part, {_short(certified)}."
    if frozen:
        return f"; its frozen part, {_short(frozen)}, is not in this certificate, which an earlier version wrote."
    return "."


def _model_hashes(path: Path) -> tuple[str, str]:
    """Return the hashes of what was trained in a state dictionary, and of what was frozen: empty for nothing."""
    import pickle

    import torch

    from unlearning.parameters import content_hash, hash_of_tensors, travelling_names

    try:
        values = torch.load(path, map_location="cpu", weights_only=True)
        goes = travelling_names(values)
        trained = [
            tensor
            for name, tensor in values.items()
            if tensor.is_floating_point() and (goes is None or name in goes)
        ]
        frozen = {} if goes is None else {name: values[name] for name in values if name not in goes}
        return content_hash(torch.cat([tensor.reshape(-1) for tensor in trained]).numpy()), hash_of_tensors(
            frozen
        )
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


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise CertificateError(f"{path} cannot be read: {exc}") from exc


def _short(digest: str) -> str:
    return digest[:16]


def _confirm(of: str, sentence: str) -> Check:
    return Check(of, Outcome.HOLDS, sentence)


def _refuse(of: str, sentence: str) -> Check:
    return Check(of, Outcome.REFUSED, sentence)


def _skip(of: str, sentence: str) -> Check:
    return Check(of, Outcome.SKIPPED, sentence)
