"""Timestamps by RFC 3161: an authority signs when a certificate's file was there, which its holder cannot choose.

The timestamp is a file of its own beside the certificate (the authority's answer, DER), over the certificate's bytes.
`server.certificate.timestamp_worker` fetches them in the background.
"""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import httpx
from cryptography import x509
from rfc3161_client import (
    TimestampRequestBuilder,
    VerificationError,
    VerifierBuilder,
    decode_timestamp_response,
)

from server.certificate.file_checks import Check, read_file
from unlearning.errors import CertificateError, ConfigurationError
from unlearning.runtime.durable_files import write_atomically

OF = "time"
SUFFIX = ".tsr"
"""Of a timestamp's file, beside the certificate's."""
TIMEOUT_S = 30.0
_LARGEST_ANSWER = 1024 * 1024
_QUERY, _REPLY = "application/timestamp-query", "application/timestamp-reply"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimestampAuthority:
    """Who signs times: its address for RFC 3161 over HTTP, and its certificate (PEM)."""

    url: str
    certificate: Path

    @classmethod
    def of(cls, url: str, certificate: Path | None) -> "TimestampAuthority | None":
        """Return the authority that an operator names; None: there is none.

        Raises:
            ConfigurationError: only one of the two is given.
        """
        if not url and certificate is None:
            return None
        if not url or certificate is None:
            raise ConfigurationError(
                [
                    "--timestamp-url, --timestamp-authority: give both, or neither where certificates are not stamped."
                ]
            )
        return cls(url=url, certificate=certificate)


def stamp(certificate: Path, authority: TimestampAuthority, output: Path | None = None) -> Path:
    """Fetch a timestamp of a certificate's file and write it beside it, or to `output`; return where it is.

    Raises:
        CertificateError: the file cannot be read, or the authority does not answer as it should.
        OSError: it cannot be written.
    """
    content = read_file(certificate)
    path = output or certificate.with_suffix(SUFFIX)
    write_atomically(path, fetch_timestamp(content, authority.url, authority.certificate))
    return path


def fetch_timestamp(content: bytes, url: str, authority: Path) -> bytes:
    """Ask the authority at `url` for a timestamp of a certificate's file; return it, checked.

    Raises:
        CertificateError: the authority does not answer, or its answer does not hold.
    """
    request = TimestampRequestBuilder().data(content).build()
    headers = {"Content-Type": _QUERY, "Accept": _REPLY}
    try:
        with (
            httpx.Client(timeout=TIMEOUT_S) as client,
            client.stream("POST", url, content=request.as_bytes(), headers=headers) as answer,
        ):
            answer.raise_for_status()
            reply = b""
            for part in answer.iter_bytes():
                reply += part
                if len(reply) > _LARGEST_ANSWER:
                    raise CertificateError(f"{url} answers with more than a timestamp has.")
    except (httpx.HTTPError, httpx.InvalidURL) as exc:
        why = str(exc).partition("\n")[0].rstrip(".")  # httpx adds a line that points elsewhere
        raise CertificateError(f"No timestamp from {url}: {why}. Try again later.", code="no-answer") from exc
    _time_of(content, reply, read_authority(authority), nonce=request.nonce)
    return reply


def check_timestamp(content: bytes, timestamp: Path | None, authority: Path | None) -> Check:
    """Check whether an authority has signed when this file was there, and say when.

    Raises:
        CertificateError: a file cannot be read.
    """
    if timestamp is None:
        return Check.skip(OF, "Give --timestamp FILE.tsr and --timestamp-authority FILE.")
    if authority is None:
        return Check.refuse(OF, "It cannot be checked without --timestamp-authority FILE.")
    reply, trusted = read_file(timestamp), read_authority(authority)
    try:
        at = _time_of(content, reply, trusted)
    except CertificateError as exc:
        return Check.refuse(OF, str(exc))
    return Check.confirm(
        OF, f"The file was there at {at:%Y-%m-%dT%H:%M:%SZ}, says an authority of {authority}."
    )


def _time_of(
    content: bytes, reply: bytes, trusted: list[x509.Certificate], *, nonce: int | None = None
) -> datetime:
    """Return the time of a timestamp that holds.

    Raises:
        CertificateError: it does not hold.
    """
    builder = VerifierBuilder()
    for certificate in trusted:
        builder = builder.add_root_certificate(certificate)
    try:
        response = decode_timestamp_response(reply)
        if nonce is not None:
            builder = builder.nonce(nonce)
        builder.build().verify_message(response, content)
        return response.tst_info.gen_time
    except (VerificationError, ValueError) as exc:
        raise CertificateError(
            f"The timestamp does not hold ({exc}): it is of another file or another authority, or was changed.",
            code="bad-timestamp",
        ) from exc


def read_authority(path: Path) -> list[x509.Certificate]:
    """Return the certificates of an authority's file (PEM).

    Raises:
        CertificateError: it cannot be read, or holds none.
    """
    try:
        return x509.load_pem_x509_certificates(read_file(path.resolve()))  # a system's own are links
    except ValueError as exc:
        raise CertificateError(
            f"{path} holds no certificates of an authority (PEM): {exc}", code="no-authority"
        ) from exc
