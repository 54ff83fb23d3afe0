"""Unit vectors at rest, as entries of a store: encrypted where a key is given.

A unit's vector tells about the unit's data, so keeping it is a risk that training alone does not bring. With a
key an entry is AES-256-GCM over the vector, bound to the unit's name; one that was altered, renamed or written under
another key is refused. Destroying the key file makes all of them unreadable, also where journals, snapshots or the
flash of an SSD keep older blocks.
"""

import io
import os
import stat
from pathlib import Path

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from unlearning.errors import CheckpointError, ConfigurationError
from unlearning.parameters import Vector
from unlearning.runtime.durable_files import write_new
from unlearning.runtime.stores import Arrays

_KEY_BYTES = 32
_NONCE_BYTES = 12
_MAGIC = b"FUSEAL01"
_PLAIN, _SEALED = "vector", "sealed"


def create_key(path: Path) -> bytes:
    """Return a new key in a new file that its owner alone may read (mode 0600).

    Raises:
        ConfigurationError: there is a file already; vectors written under it would be lost.
    """
    key = AESGCM.generate_key(8 * _KEY_BYTES)
    try:
        write_new(path, key)
    except FileExistsError as exc:
        raise ConfigurationError(
            [
                f"The key file {path} exists; a new key would make what it encrypts unreadable. Name another file."
            ]
        ) from exc
    return key


def read_key(path: Path) -> bytes:
    """Return the key in `path`.

    Raises:
        ConfigurationError: it cannot be read, others may read it, or it is no key.
    """
    try:
        mode, key = stat.S_IMODE(path.stat().st_mode), path.read_bytes()
    except OSError as exc:
        raise ConfigurationError(
            [f"The key file {path} cannot be read: {exc.strerror}. Create one, or correct its name."]
        ) from exc
    if mode & 0o077:
        raise ConfigurationError([f"The key file {path} has mode {mode:04o}; set it to 0600 (chmod 600)."])
    if len(key) != _KEY_BYTES:
        raise ConfigurationError(
            [f"The key file {path} holds {len(key)} bytes instead of {_KEY_BYTES}; it is no key of ours."]
        )
    return key


def seal(vector: Vector, unit: str, key: bytes | None) -> Arrays:
    """Return `vector` (d,) as an entry of a store; encrypted and bound to the name `unit` where `key` is given."""
    if key is None:
        return {_PLAIN: vector}
    buffer = io.BytesIO()
    np.save(buffer, vector, allow_pickle=False)
    nonce = os.urandom(_NONCE_BYTES)
    sealed = _MAGIC + nonce + AESGCM(key).encrypt(nonce, buffer.getvalue(), unit.encode())
    return {_SEALED: np.frombuffer(sealed, dtype=np.uint8)}


def unseal(entry: Arrays, unit: str, key: bytes | None) -> Vector:
    """Return the vector that `seal` made `entry` of; one from before a key was given is plain.

    Raises:
        CheckpointError: it was made with another key or of another unit, or is damaged; or `key` is missing.
    """
    if _SEALED not in entry:
        plain: Vector = entry[_PLAIN]
        return plain
    content = entry[_SEALED].tobytes()
    if key is None or not content.startswith(_MAGIC):
        raise CheckpointError(
            f"The vector of unit {unit!r} is {'damaged. Check the file' if key else 'encrypted. Name the key file'}."
        )
    nonce, body = content[len(_MAGIC) :][:_NONCE_BYTES], content[len(_MAGIC) + _NONCE_BYTES :]
    try:
        vector: Vector = np.load(
            io.BytesIO(AESGCM(key).decrypt(nonce, body, unit.encode())), allow_pickle=False
        )
    except InvalidTag as exc:
        raise CheckpointError(
            f"The vector of unit {unit!r} cannot be decrypted: the key is another one, or the file was "
            "altered. Use the key file that it was written with."
        ) from exc
    return vector
