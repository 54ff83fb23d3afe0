"""An item proves its origin: a signature that holds through however many peers have passed the item on.

Signed is, with the key of the origin's certificate (ECDSA or RSA PKCS #1 v1.5, both with SHA-256, or Ed25519), the line
`flower-unlearning peer item 1` and the JSON object of `federation` (the setting of that name), `kind`, `origin`,
`subject`, `values` and `vector` (the vector's `content_hash`, empty without one): names sorted, no blanks, all
characters ASCII (JSON's escapes). The certificate travels with the item. It must be issued by the federation's
authority itself, and its common name must be the origin.

A certificate's dates are not checked: an item is read years after it was signed. Connections do check them.
"""

import json
from dataclasses import replace
from functools import lru_cache
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.x509.oid import NameOID

from client.peer.gossip import GossipMessage, Seal
from strategies.installation import is_issued_by
from strategies.tls_files import TlsFiles
from unlearning.errors import ConfigurationError, SessionError
from unlearning.parameters import content_hash

_FORM = b"flower-unlearning peer item 1\n"
_MAX_CERTIFICATE_LENGTH = 2**14


class Seals:
    """Seals by the certificates that the peers' connections have, too. federation: the setting of that name.

    Raises:
        ConfigurationError: a file cannot be used; the certificate is not the authority's own, or not this key's.
    """

    def __init__(self, tls: TlsFiles, federation: str = "") -> None:
        authority, certificate, key = tls.read()
        try:
            self._authorities = x509.load_pem_x509_certificates(authority or b"")
            own = x509.load_pem_x509_certificate(certificate or b"")
            self._private: Any = serialization.load_pem_private_key(key or b"", None)
        except (TypeError, ValueError) as exc:
            raise ConfigurationError([f"tls: the files cannot be read as PEM: {exc}."]) from exc
        public = self._private.public_key()
        if _scheme(public) is None:
            raise ConfigurationError(["tls.key: it must be an EC, RSA or Ed25519 key."])
        self._certificate = own.public_bytes(serialization.Encoding.PEM).decode()
        self._federation = federation
        self._known = lru_cache(maxsize=1_000)(self._read)
        try:
            if self._known(self._certificate)[1] != public:
                raise ConfigurationError(["tls.key: it is not the certificate's."])
        except SessionError as exc:
            raise ConfigurationError([f"tls.certificate: {exc}"]) from exc

    def seal(self, item: GossipMessage) -> GossipMessage:
        """Return this peer's own item with its seal."""
        values = json.loads(json.dumps(dict(item.values)))  # as it will be read: no tuples, no numpy numbers
        content = content_of(replace(item, seal=None))
        plain = replace(item, values=values, seal=Seal(self._certificate, "", content))
        scheme = _scheme(self._private.public_key())
        assert scheme is not None
        signature = self._private.sign(canonical(plain, self._federation), *scheme)
        return replace(plain, seal=Seal(self._certificate, signature.hex(), content))

    def check(self, item: GossipMessage) -> None:
        """Refuse an item that its origin did not say.

        A vector that was dropped (`Seal.content` remembers it) is not missed: what the network brings has its vector.

        Raises:
            SessionError: there is no seal, or it is not the origin's, or not of what the item says.
        """
        seal = item.seal
        if seal is None:
            raise SessionError(
                f"The item {item.id!r:.200} came without its origin's signature.", code="unsigned"
            )
        if item.vector is not None and content_hash(item.vector) != seal.content:
            raise SessionError(
                f"The vector of {item.id!r:.200} is not the one that its origin signed.",
                code="changed-vector",
            )
        name, key = self._known(seal.certificate)
        if name != item.origin:
            raise SessionError(
                f"The item {item.id!r:.200} is signed by {name!r:.60}, in another's name.",
                code="signed-by-another",
                signer=name,
            )
        scheme = _scheme(key)
        if scheme is None:
            raise SessionError(
                f"The certificate of {name!r:.60} has a key of a kind that signs nothing here."
            )
        try:
            key.verify(bytes.fromhex(seal.signature), canonical(item, self._federation), *scheme)
        except (InvalidSignature, TypeError, ValueError) as exc:
            raise SessionError(
                f"The signature of {item.id!r:.200} does not hold.", code="wrong-signature"
            ) from exc

    def _read(self, certificate: str) -> tuple[str, Any]:
        """Return common name and public key of a certificate (PEM) that the authority issued."""
        if len(certificate) > _MAX_CERTIFICATE_LENGTH:
            raise SessionError(f"A certificate of {len(certificate):,} characters came.")
        try:
            read = x509.load_pem_x509_certificate(certificate.encode())
        except ValueError as exc:
            raise SessionError("A certificate came that cannot be read.") from exc
        if not any(is_issued_by(read, authority) for authority in self._authorities):
            raise SessionError(
                "The certificate is not issued by the federation's authority itself.", code="other-authority"
            )
        return common_name(read), read.public_key()


def canonical(item: GossipMessage, federation: str) -> bytes:
    """Return what an item's origin signs: see the module's docstring."""
    said = {
        "federation": federation,
        "kind": str(item.kind),
        "origin": item.origin,
        "subject": item.subject,
        "values": dict(item.values),
        "vector": content_of(item),
    }
    return _FORM + json.dumps(said, sort_keys=True, separators=(",", ":")).encode()


def content_of(item: GossipMessage) -> str:
    """Return the hash of the vector that the item has, or had when it was signed; empty for none."""
    if item.seal is not None:
        return item.seal.content
    return "" if item.vector is None else content_hash(item.vector)


def common_name(certificate: x509.Certificate) -> str:
    """Return the certificate's common name; empty where it has not exactly one."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else ""


def _scheme(key: object) -> tuple[Any, ...] | None:
    """Return what a key of this kind signs and verifies with, after the data; None for a kind that does not sign."""
    match key:
        case ec.EllipticCurvePublicKey():
            return (ec.ECDSA(hashes.SHA256()),)
        case rsa.RSAPublicKey():
            return (padding.PKCS1v15(), hashes.SHA256())
        case ed25519.Ed25519PublicKey():
            return ()
    return None
