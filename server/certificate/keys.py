"""The key pair that signs certificates of deletion (Ed25519), as PEM files.

Only the server reads the private key; an officer who checks certificates gets the public one over a channel that is
not the server's own.
"""

import hashlib
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from unlearning.errors import CertificateError, ConfigurationError
from unlearning.runtime.durable_files import write_new

SIGNING_KEY, PUBLIC_KEY = "certificate-signing.key", "certificate-signing.pub"
NO_KEY = "the run has no certificate-key"


def make_key_pair(directory: Path) -> tuple[Path, Path, str]:
    """Write a new pair into `directory`: the private file (0600), the public one, and the key's id.

    Raises:
        ConfigurationError: there is a key already; it is never overwritten.
        OSError: the directory cannot be written to.
    """
    private, public = directory / SIGNING_KEY, directory / PUBLIC_KEY
    for path in (private, public):
        if path.exists():
            raise ConfigurationError(
                [f"{path} exists already; what it signed is checked with it. Name another directory."]
            )
    key = Ed25519PrivateKey.generate()
    write_new(private, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    write_new(public, pem, mode=0o644)
    return private, public, key_id(key.public_key())


def key_id(key: Ed25519PublicKey) -> str:
    """Return the SHA-256 (hex) of the 32 bytes of the public key."""
    return hashlib.sha256(key.public_bytes(Encoding.Raw, PublicFormat.Raw)).hexdigest()


def load_signing_key(path: Path) -> Ed25519PrivateKey:
    """Read the private key in `path`.

    Raises:
        ConfigurationError: the file cannot be read, others can read it, or it is no Ed25519 key.
    """
    try:
        mode, content = path.stat().st_mode, path.read_bytes()
    except OSError as exc:
        raise ConfigurationError(
            [f"certificate-key: {exc}. Make one with `flower-unlearn certificate-key DIR`, or leave it out."]
        ) from exc
    if mode & 0o077:
        raise ConfigurationError(
            [f"certificate-key: others on this machine can read {path}. chmod 600 it, or make a new one."]
        )
    try:
        key = load_pem_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as exc:
        raise ConfigurationError([f"certificate-key: {path} is no private key (PEM): {exc}"]) from exc
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigurationError(
            [f"certificate-key: {path} is of another kind than Ed25519. `certificate-key DIR` makes one."]
        )
    return key


def load_public_key(path: Path) -> Ed25519PublicKey:
    """Read the public key in `path`.

    Raises:
        CertificateError: the file cannot be read or is no Ed25519 key.
    """
    try:
        key = load_pem_public_key(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as exc:
        raise CertificateError(f"{path} cannot be read as a public key (PEM): {exc}") from exc
    if not isinstance(key, Ed25519PublicKey):
        raise CertificateError(f"{path} is of another kind than Ed25519, which signs certificates.")
    return key


def signer(setting: str) -> tuple[Ed25519PrivateKey | None, str]:
    """Return the key that the setting `certificate-key` names, or None and why there is none.

    It never raises: a deletion that is carried out is reported, signed or not.
    """
    if not setting:
        return None, NO_KEY
    try:
        return load_signing_key(Path(setting).expanduser()), ""
    except ConfigurationError as exc:
        return None, exc.problems[0]


def check_certificate_key(setting: str) -> None:
    """Refuse a `certificate-key` that could not sign, before anything depends on it.

    Raises:
        ConfigurationError: says what is wrong with the file.
    """
    if setting:
        load_signing_key(Path(setting).expanduser())
