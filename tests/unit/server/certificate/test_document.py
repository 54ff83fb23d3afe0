"""A certificate's file: its one form, its signature, and the keys."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from server.certificate.document import Certificate, canonical, decode, encode
from server.certificate.file_checks import Outcome, check_model, check_samples, read_file
from server.certificate.keys import (
    check_certificate_key,
    key_id,
    load_public_key,
    load_signing_key,
    make_key_pair,
    signer,
)
from server.operations.checklist import Installation, Level
from server.operations.checklist.keys_and_state import check_certificates, check_secrets
from tests.raising import raises
from unlearning.errors import CertificateError, ConfigurationError
from unlearning.pseudonyms import SubjectKeys, commitment, keyed_ids
from unlearning.requests import hash_of_ids
from unlearning.verification.verdict import Finding

HASH = "5b" * 32


def certificate(signed_by: str | None = None, **changes: Any) -> Certificate:
    """A certificate of made-up facts."""
    facts: dict[str, Any] = {
        "issued_at": "2026-03-01T00:00:00+00:00",
        "federation": "Zürich",
        "request": {
            "id": "r-000001",
            "granularity": "client",
            "client_id": "3",
            "class_label": None,
            "num_samples": None,
            "submitted_by": "ada",
            "created_at": "2026-03-01T00:00:00+00:00",
            "served_with": [],
            "received_on": "2026-02-27",
            "due_on": "2026-03-27",
            "extended_days": 0,
        },
        "method": {"name": "not", "title": "NoT", "source": "a paper", "parameters": {"rate": 1e-7}},
        "model": {"before": HASH, "unlearned": HASH, "after": HASH},
        "ledger": {"event": {"sequence": 5, "hash": HASH}, "head": {"sequence": 6, "hash": HASH}},
        "outcome": "reduced",
        "attacks": {"verdict": "not shown", "reasons": [], "before": {}, "after": {"yeom": {"called": 0.25}}},
        "scores": {},
        "not_measured": [],
        "software": {"numpy": "2"},
        "report_sha256": HASH,
        "key_id": signed_by,
        "unsigned_because": "",
    }
    return Certificate.model_validate({**facts, **changes})


KEY = Ed25519PrivateKey.generate()
IDENTITY = key_id(KEY.public_key())


def signed(**changes: Any) -> bytes:
    """The file of a certificate that KEY signs."""
    return encode(certificate(IDENTITY, **changes), KEY)


EXACT = st.integers(-(2**53) + 1, 2**53 - 1)
JSON = st.recursive(
    st.none() | st.booleans() | EXACT | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
).filter(lambda value: "\\ud" not in json.dumps(value))


@given(JSON)
def test_the_canonical_form_reads_back_as_itself(value: Any) -> None:
    """Reading and writing again gives the same bytes, whatever the numbers."""
    method = {"name": "not", "title": "NoT", "source": "a paper", "parameters": {"a": value}}
    content = encode(certificate(method=method), None)
    assert encode(decode(content).certificate, None) == content


def test_whole_numbers_beyond_a_float64_are_texts() -> None:
    """A seed of 2^53 + 1 would be read as 2^53 elsewhere; a float of that size is one."""
    method = {"name": "not", "title": "", "source": "", "parameters": {"seed": 2**53 + 1, "rate": 2.0**60}}
    content = encode(certificate(method=method), None)
    assert b'"rate":1152921504606847000,"seed":"9007199254740993"' in content
    assert decode(content).certificate.method.parameters == {"seed": "9007199254740993", "rate": 2.0**60}


def test_a_signed_certificate_reads_back_and_its_signature_holds(tmp_path: Path) -> None:
    """With the public key of the pair that was made."""
    private, public, identity = make_key_pair(tmp_path)
    written = certificate(identity)
    file = decode(encode(written, load_signing_key(private)))
    assert file.certificate == written
    assert file.is_signed_by(load_public_key(public))


def test_no_other_key_has_signed() -> None:
    """A signature belongs to one key; an unsigned certificate is signed by none, not even by the right one."""
    assert not decode(signed()).is_signed_by(Ed25519PrivateKey.generate().public_key())
    assert not decode(encode(certificate(), None)).is_signed_by(KEY.public_key())


@pytest.mark.parametrize("change", [(b"0.25", b"0.15"), (b'"r-000001"', b'"r-000002"'), (b'"ada"', b'"eve"')])
def test_whatever_is_changed_the_signature_does_not_hold(change: tuple[bytes, bytes]) -> None:
    """A figure, the request, a name."""
    assert not decode(signed().replace(*change, 1)).is_signed_by(KEY.public_key())


def test_a_file_cut_anywhere_is_refused() -> None:
    """Also where only its newline is missing."""
    content = encode(certificate(), None)
    for length in range(len(content)):
        with pytest.raises(CertificateError):
            decode(content[:length])


WRONG_FORM = "wrong-form"
NOT_CANONICAL: tuple[str, str | None] = ("not-canonical", None)
VERSION = (WRONG_FORM, "certificate.version")
NO_EVENT = (WRONG_FORM, "certificate.ledger.event.sequence")
NO_HASH = (WRONG_FORM, "certificate.ledger.event.hash")


@pytest.mark.parametrize(
    ("old", "new", "refusal"),
    [
        pytest.param('"certificate":{', '"certificate": {', NOT_CANONICAL, id="a blank"),
        pytest.param('"issued_at":', '"issued_at":"never","issued_at":', NOT_CANONICAL, id="a key twice"),
        pytest.param('"client",', '"client","ground":null,', NOT_CANONICAL, id="a null that is left out"),
        pytest.param("Zürich", "Z\\u00fcrich", NOT_CANONICAL, id="another spelling"),
        pytest.param('"version":1', '"version":0', VERSION, id="an earlier version"),
        pytest.param('"version":1', '"version":2', VERSION, id="a later version"),
        pytest.param('"version":1', '"version":true', VERSION, id="a version that equals 1"),
        pytest.param('"version":1', '"version":"1"', VERSION, id="a version in quotes"),
        pytest.param('"version":1', '"version":1.5', VERSION, id="half a version"),
        pytest.param(
            '"not shown"', '"forgotten"', (WRONG_FORM, "certificate.attacks.verdict"), id="not a verdict"
        ),
        pytest.param(
            '{"attacks"', '{"extra":1,"attacks"', (WRONG_FORM, "certificate.extra"), id="an unknown field"
        ),
        pytest.param('"sequence":5', '"sequence":0', NO_EVENT, id="no event"),
        pytest.param('"sequence":5', '"sequence":9223372036854776000', NO_EVENT, id="event 2^63"),
        pytest.param(f'"{HASH}","sequence":5', '"","sequence":5', NO_HASH, id="no hash"),
        pytest.param(f'{HASH}","sequence":5', f'{HASH[:-1]}","sequence":5', NO_HASH, id="a short hash"),
        pytest.param(f'{HASH}","sequence":5', f'{HASH}\\n","sequence":5', NO_HASH, id="a hash and a newline"),
    ],
)
def test_what_is_not_written_so_is_refused(old: str, new: str, refusal: tuple[str, str | None]) -> None:
    """One content has one file, so that readers cannot see two things in it; what is not checked, does not pass."""
    content = encode(certificate(), None).decode()
    assert old in content
    with raises(CertificateError, refusal[0], places=refusal[1]):
        decode(content.replace(old, new, 1).encode())


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b"\xff",
        b'{"certificate":{},"signature":null}\n',
        b'"\\ud800"\n',
        b"NaN\n",
    ],
)
def test_what_is_no_certificate_is_refused_with_a_sentence(content: bytes) -> None:
    """Whatever the bytes, it is our own error."""
    with pytest.raises(CertificateError):
        decode(content)


HEX = "0a" * 64


@pytest.mark.parametrize(
    "signature",
    [
        {},
        "ab",
        {"algorithm": "ed25519", "value": "x"},
        {"algorithm": "none", "value": ""},
        *(
            {"algorithm": "ed25519", "value": value}
            for value in (HEX.upper(), f"{HEX[:2]} {HEX[2:]}", f"{HEX}\t", HEX[:-2], HEX.replace("0", "é"))
        ),
    ],
)
def test_a_malformed_signature_is_refused(signature: Any) -> None:
    """And not taken for none: 128 lower-case hexadecimal digits, and the same number written otherwise is refused."""
    value = json.loads(encode(certificate(), None)) | {"signature": signature}
    with raises(CertificateError, "wrong-form") as refused:
        decode(canonical(value) + b"\n")
    assert str(refused.value.fields["places"]).startswith("signature")


@pytest.mark.parametrize("finding", list(Finding))
def test_every_verdict_can_be_certified(finding: Finding) -> None:
    """The two lists agree."""
    assert certificate(attacks={"verdict": str(finding), "reasons": [], "before": {}, "after": {}})


# Keys


def test_only_the_owner_reads_the_private_key(tmp_path: Path) -> None:
    """Mode 600, whatever the umask; the host's check takes the pair for no certificate of TLS that would be broken."""
    private, public, _ = make_key_pair(tmp_path)
    assert (private.stat().st_mode & 0o777, public.stat().st_mode & 0o777) == (0o600, 0o644)
    host = Installation(config_dir=tmp_path, state_dir=tmp_path, ledger_url="", is_server=True)
    found = [*check_secrets(host), *check_certificates(host, now=datetime.now(UTC))]
    assert [finding.level for finding in found] == [Level.OK]


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    """What it signed could no longer be checked."""
    private, _, _ = make_key_pair(tmp_path)
    before = private.read_bytes()
    with pytest.raises(ConfigurationError):
        make_key_pair(tmp_path)
    assert private.read_bytes() == before


def test_a_private_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    """Any account of the machine could sign with it."""
    private, _, _ = make_key_pair(tmp_path)
    private.chmod(0o640)
    with pytest.raises(ConfigurationError) as refused:
        check_certificate_key(str(private))
    assert "chmod 600" in refused.value.problems[0]


@pytest.mark.parametrize(
    "content", [b"", b"no key", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"]
)
def test_what_is_no_key_is_refused(tmp_path: Path, content: bytes) -> None:
    """On both sides, each with its own kind of error."""
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigurationError):
        load_signing_key(path)
    with pytest.raises(CertificateError):
        load_public_key(path)


def test_a_missing_key_is_refused_at_the_start_and_tolerated_at_the_end(tmp_path: Path) -> None:
    """A deletion that was carried out is certified, if need be unsigned and with the reason."""
    with pytest.raises(ConfigurationError):
        check_certificate_key(str(tmp_path / "gone"))
    key, why = signer(str(tmp_path / "gone"))
    assert key is None
    assert "No such file" in why
    assert signer("") == (None, "the run has no certificate-key")


# What is certified of sample ids


def test_sample_ids_are_certified_by_the_hash_of_their_sorted_list() -> None:
    """The order does not count, the ids do."""
    one, same, other = (hash_of_ids(ids) for ids in (["b", "a"], ["a", "b"], ["a", "c"]))
    # printf '["a","b"]' | sha256sum
    assert one == same == "0473ef2dc0d324ab659d3580c1134e9d812035905c4781fdd6d529b0c6860e13"
    assert one != other


def of_samples(tmp_path: Path, **request: Any) -> tuple[Certificate, Path]:
    """A certificate of the samples a and b of client 3, and a list of them."""
    made = certificate()
    asked = made.request.model_copy(update={"granularity": "sample", "num_samples": 2, **request})
    (tmp_path / "ids.txt").write_text("b\na\n")
    return made.model_copy(update={"request": asked}), tmp_path / "ids.txt"


def test_only_the_key_tells_which_samples_a_certificate_means(tmp_path: Path) -> None:
    """The operator's key and the client's own tell; another key, or the plain hash of the right ids, does not."""
    keys = SubjectKeys(b"k" * 32)
    listed = hash_of_ids(keyed_ids(keys.of("3"), ["a", "b"]))
    made, ids = of_samples(tmp_path, sample_ids_commitment=commitment(keys.of("3"), "r-000001", listed))
    for name, key in (
        ("subject-key", keys.master),
        ("subject-keys", keys.of("3")),
        ("other", keys.of("4")),
    ):
        (tmp_path / name).write_text(f"{key.hex()}\n")
    assert check_samples(made, ids, tmp_path / "subject-key").outcome is Outcome.HOLDS
    assert check_samples(made, ids, tmp_path / "subject-keys").outcome is Outcome.HOLDS
    assert check_samples(made, ids, tmp_path / "other").outcome is Outcome.REFUSED
    assert check_samples(made, ids, None).outcome is Outcome.SKIPPED
    assert hash_of_ids(["a", "b"]) not in encode(made, None).decode()


@pytest.mark.parametrize("what", ["pipe", "link", "endless"])
def test_a_file_that_another_party_sent_is_a_plain_one_with_a_bound(tmp_path: Path, what: str) -> None:
    """Certificate, report, timestamp and model: no wait for a pipe, no link followed, no size without a bound."""
    path = tmp_path / "sent"
    (tmp_path / "mine").write_text("mine")
    {
        "pipe": lambda: os.mkfifo(path),
        "link": lambda: path.symlink_to(tmp_path / "mine"),
        "endless": lambda: (path.touch(), os.truncate(path, 2**40)),
    }[what]()
    with pytest.raises(CertificateError):
        read_file(path)
    with pytest.raises(CertificateError):
        check_model(certificate(), path)
