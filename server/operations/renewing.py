"""Certificates made again by the federation's authority: with the same name, role and key, for a new time.

The key stays, so one file is replaced, by one rename: what starts at that moment reads the old certificate or the new
one, and a site's or an officer's key need not travel.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID

from strategies.addresses import host_part
from strategies.installation import is_issued_by
from unlearning.errors import ConfigurationError
from unlearning.runtime.durable_files import write_atomically

VALID = timedelta(days=825)
"""As long as those of deploy/make_certificates.sh."""
_BEFORE = timedelta(minutes=5)
"""Of clocks that are behind: as far as SuperNodes' may be."""


def renew(path: Path, authority: Path, *, addresses: Sequence[str] = (), now: datetime) -> x509.Certificate:
    """Put a certificate that is valid from now on in the place of the one at `path`; return it.

    authority: the directory with ca.crt and ca.key. addresses: names and addresses of a server or a peer, in place of
        those that the certificate has.

    Raises:
        ConfigurationError: it was not made by this authority, is the authority's own, or is a caller's and is to have
            addresses; an address has a scheme or a port; or files are missing.
    """
    try:
        old = x509.load_pem_x509_certificate(path.read_bytes())
        issuers = x509.load_pem_x509_certificates((authority / "ca.crt").read_bytes())
        key = load_pem_private_key((authority / "ca.key").read_bytes(), None)
    except (OSError, ValueError, TypeError) as exc:
        raise ConfigurationError(
            [f"{path} cannot be renewed: {exc}. --authority names the directory with ca.crt and ca.key."]
        ) from exc
    own = [issuer for issuer in issuers if issuer.public_key() == key.public_key()]
    if not own or not isinstance(key, EllipticCurvePrivateKey):
        raise ConfigurationError([f"{authority / 'ca.key'} is not the key of {authority / 'ca.crt'}."])
    if old in issuers:
        raise ConfigurationError(
            [
                f"{path} is the authority's own: docs/how-to-renew-certificates-and-keys.md says how it is exchanged."
            ]
        )
    # Otherwise a caller could write any name and role into a certificate, and have it signed here.
    if not any(is_issued_by(old, issuer) for issuer in issuers):
        raise ConfigurationError([f"{path} was not made by the authority of {authority}: not renewed."])
    if addresses and not hosts_of(old):
        raise ConfigurationError([f"{path} is of a caller, who has no address: leave --address out."])
    new = _again(old, own[0], key, addresses, now)
    write_atomically(path, new.public_bytes(Encoding.PEM), mode=0o644)
    return new


def uses(certificate: x509.Certificate) -> str:
    """Return what to do with a certificate that was renewed, by who has it."""
    kinds = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    if ExtendedKeyUsageOID.SERVER_AUTH not in kinds:
        return (
            "It goes to its holder, in place of the old one; the key stays. A site restarts flower-supernode."
        )
    if ExtendedKeyUsageOID.CLIENT_AUTH in kinds:
        return "It goes to the peer, in place of the old one; the key stays. Restart the peer."
    return (
        "systemctl restart flower-superlink flower-unlearning, which read it at their start, and flower-superexec "
        "where session-address is set: its run fails, and the supervisor submits it again."
    )


def _again(
    old: x509.Certificate,
    issuer: x509.Certificate,
    key: EllipticCurvePrivateKey,
    addresses: Sequence[str],
    now: datetime,
) -> x509.Certificate:
    builder = x509.CertificateBuilder(
        issuer_name=issuer.subject,
        subject_name=old.subject,
        public_key=old.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - _BEFORE,
        not_valid_after=min(now + VALID, issuer.not_valid_after_utc),
    )
    for extension in old.extensions:
        if isinstance(extension.value, x509.SubjectAlternativeName) and addresses:
            loopback = [name for name in ("localhost", "127.0.0.1") if name in hosts_of(old)]
            names = x509.SubjectAlternativeName(_names([*loopback, *addresses]))
            builder = builder.add_extension(names, critical=extension.critical)
        elif not isinstance(extension.value, x509.AuthorityKeyIdentifier):
            builder = builder.add_extension(extension.value, critical=extension.critical)
    own_issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
    return builder.add_extension(own_issuer, critical=False).sign(key, SHA256())


def hosts_of(certificate: x509.Certificate) -> list[str]:
    """Return the names and addresses that a certificate is for."""
    found = (one.value for one in certificate.extensions)
    return [str(name.value) for one in found if isinstance(one, x509.SubjectAlternativeName) for name in one]


def _names(addresses: Sequence[str]) -> Iterator[x509.GeneralName]:
    for address in dict.fromkeys(host_part(one).strip("[]") for one in addresses):
        try:
            yield x509.IPAddress(ip_address(address))
        except ValueError:
            yield x509.DNSName(address)
