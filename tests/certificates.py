"""Certificates for tests: an authority, and callers with a name and a role."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from strategies.tls_files import TlsFiles

_AUTHORITYS_USE = x509.KeyUsage(
    key_cert_sign=True,
    crl_sign=True,
    **dict.fromkeys(
        ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
        False,
    ),
    encipher_only=False,
    decipher_only=False,
)


class Authority:
    """An authority that keeps what it signs in `directory`."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self._directory = directory
        self._name = name
        self._key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder(name, [(NameOID.COMMON_NAME, name)], self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_AUTHORITYS_USE, critical=True)
        )
        self.file = directory / f"{name}.crt"
        self.file.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))

    def certify(self, name: str, *units: str, names: tuple[str, ...] | None = None) -> TlsFiles:
        """The files of a caller (or server) with this common name and these organisational units.

        names: the common names, where it is not one.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        subject = [(NameOID.ORGANIZATIONAL_UNIT_NAME, unit) for unit in units]
        subject += [(NameOID.COMMON_NAME, item) for item in (names if names is not None else (name,))]
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = (
            _builder(self._name, subject, key)
            .add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
            )
            .add_extension(issuer, critical=False)  # which Python asks for from 3.13 on
        )
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        stem = self._directory / f"{self._name}-{name}"
        files = TlsFiles(self.file, stem.with_suffix(".pem"), stem.with_suffix(".key"))
        assert files.certificate is not None
        assert files.key is not None
        files.certificate.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))
        files.key.write_bytes(private)
        return files


def _builder(
    issuer: str, subject: list[tuple[x509.ObjectIdentifier, str]], key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(oid, text) for oid, text in subject]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
