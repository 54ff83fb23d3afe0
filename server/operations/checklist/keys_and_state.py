"""Keys, certificates, state directories and disks."""

import shutil
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from server.operations.checklist.finding import Finding, Installation, ok, problem, warning
from server.state_directory.files import read_settings
from strategies.installation import is_issued_by
from unlearning.errors import ConfigurationError
from unlearning.runtime.durable_files import open_to_others

RENEW_BEFORE = timedelta(days=30)
LITTLE_SPACE_BYTES = 2 * 1024**3
_NETWORK_FILE_SYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p"})


def check_secrets(installation: Installation) -> Iterator[Finding]:
    """Check that private keys and secrets are there and only their owner can read them."""
    secrets = [path for path in sorted(installation.config_dir.rglob("*")) if _is_secret(path)]
    if not secrets:
        yield problem(
            f"There is no key below {installation.config_dir}.",
            "Make certificates and keys as in deploy/README.md, or give --config-dir.",
        )
    for path in secrets:
        mode = path.stat().st_mode
        if mode & 0o077:
            yield problem(
                f"{path} can be read by others (mode {mode & 0o777:o}).",
                f"chmod 600 {path}; if others have accounts here, make a new one.",
            )
        else:
            yield ok(f"{path} is its owner's only.")
        if path.name == "ca.key" and installation.is_server:
            yield warning(
                f"{path}: who reads it can make certificates for every role.",
                "Keep it on a machine that is not on the network, and bring it here only to make certificates.",
            )


def check_certificates(installation: Installation, *, now: datetime) -> Iterator[Finding]:
    """Check that certificates are valid now and for a while, signed by the authority, and fit their keys."""
    authorities = [found for path in installation.config_dir.rglob("ca.crt") for found in _certificates(path)]
    for path in sorted([*installation.config_dir.rglob("*.pem"), *installation.config_dir.rglob("*.crt")]):
        certificates = _certificates(path)
        if not certificates:
            yield problem(f"{path} is no certificate.", "Make it again with deploy/make_certificates.sh.")
            continue
        certificate = certificates[0]
        yield from _check_dates(path, certificate, now)
        if path.name != "ca.crt":
            yield from _check_issuer(path, certificate, authorities)
            yield from _check_key(path, certificate)


def check_state(
    installation: Installation, *, mounts: Iterable[tuple[str, str]], free_bytes: int | None = None
) -> Iterator[Finding]:
    """Check that the state directory is there, private, on a local disk that has room.

    mounts: of each mounted file system its mount point and its type.
    """
    directory = installation.state_dir
    if not directory.is_dir():
        yield problem(
            f"There is no state directory {directory}.", "Make it for the user `flower`, or give --state-dir."
        )
        return
    yield from _check_modes(directory)
    yield from _check_settings(directory)
    kind = _file_system(directory, mounts)
    if kind in _NETWORK_FILE_SYSTEMS:
        yield problem(
            f"{directory} is on a network file system ({kind}), which does not keep SQLite's locks.",
            "Put it on a local disk; if several hosts need the ledger, use PostgreSQL.",
        )
    free = shutil.disk_usage(directory).free if free_bytes is None else free_bytes
    if free < LITTLE_SPACE_BYTES:
        yield warning(
            f"{directory} has {free / 1024**3:.1f} GiB left.",
            "Make room: without any, the federation waits. Lower checkpoints-kept, erase replaced-* directories.",
        )


def _check_modes(directory: Path) -> Iterator[Finding]:
    """Check that only its owner reads the directory and what is in it."""
    opened = sorted(open_to_others([directory]))
    if directory in opened:
        mode = directory.stat().st_mode
        yield problem(f"{directory} is open to others (mode {mode & 0o777:o}).", f"chmod 700 {directory}")
    inside = [path for path in opened if path != directory]
    if inside:
        yield problem(
            f"{len(inside)} file(s) and directories in {directory} can be read by others, {inside[0]} first.",
            f"chmod -R go= {directory}; the programs do the same to their own files at each start.",
        )
    if not opened:
        yield ok(f"{directory} and all in it are their owner's only.")


def _check_settings(state_dir: Path) -> Iterator[Finding]:
    """Check that the last run, which wrote its settings down, signs its certificates."""
    try:
        signs = bool(read_settings(state_dir).get("certificate-key"))
    except (OSError, ConfigurationError):
        return  # there was no run, or `model` says what is wrong with it
    if not signs:
        yield warning(
            "The run does not sign its certificates of deletion.",
            "flower-unlearn certificate-key DIR; name it as certificate-key in federation.toml; submit the run again.",
        )


def _is_secret(path: Path) -> bool:
    named = path.suffix in {".key", ".secret"} or path.name == "client-key"
    return named and path.is_file()


def _certificates(path: Path) -> list[x509.Certificate]:
    """Read a file's certificates: a `ca.crt` has two while an authority is exchanged; none if it cannot be read."""
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except (ValueError, OSError):
        return []


def _check_dates(path: Path, certificate: x509.Certificate, now: datetime) -> Iterator[Finding]:
    starts, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    renew = (
        f"flower-unlearn renew {path}, where the authority's key is; it says what to restart "
        "(docs/how-to-renew-certificates-and-keys.md)."
    )
    if now < starts:
        yield problem(
            f"{path} is valid from {starts:%Y-%m-%d %H:%M} UTC on only.", "Set this host's clock right."
        )
    elif now > ends:
        yield problem(f"{path} expired on {ends:%Y-%m-%d}.", renew)
    elif now > ends - RENEW_BEFORE:
        yield warning(f"{path} expires on {ends:%Y-%m-%d}.", renew)
    else:
        yield ok(f"{path} is valid until {ends:%Y-%m-%d}.")


def _check_issuer(
    path: Path, certificate: x509.Certificate, authorities: list[x509.Certificate]
) -> Iterator[Finding]:
    if not any(is_issued_by(certificate, authority) for authority in authorities):
        yield problem(
            f"{path} is not signed by the authority ca.crt.",
            "Others will refuse it: make it with this authority, or bring the ca.crt that belongs to it.",
        )


def _check_key(path: Path, certificate: x509.Certificate) -> Iterator[Finding]:
    key = path.with_suffix(".key")
    if not key.is_file():
        return
    try:
        loaded = load_pem_private_key(key.read_bytes(), None)
    except (ValueError, TypeError, OSError):
        yield problem(f"{key} is no private key that can be read.", "Make certificate and key again.")
        return
    if loaded.public_key() != certificate.public_key():
        yield problem(
            f"{key} is not the key of {path}.", "Bring the pair that was made together, or make both again."
        )


def _file_system(directory: Path, mounts: Iterable[tuple[str, str]]) -> str:
    """Return the type of the file system of `directory`: of the longest mount point above it."""
    above = [mount for mount in mounts if directory.resolve().is_relative_to(mount[0])]
    return max(above, key=lambda mount: len(mount[0]), default=("", ""))[1]
