"""Unit vectors at rest: a file a unit, encrypted where a key is given, erased after use.

A unit's vector tells about the unit's data, so keeping it is a risk that training alone does not bring. With a
key a file is AES-256-GCM over the vector, bound to the unit's name; a file that was altered, renamed or
written under another key is refused. File names are hashes of unit names.

Erasing overwrites a file before it is removed. Journals, snapshots and the flash of an SSD may keep older
blocks all the same; with a key, destroying the key file makes all of them unreadable.
"""

import hashlib
import io
import os
import stat
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from unlearning.certified.unit_vectors import UnitVectors
from unlearning.durable_files import overwrite, sync_directory, write_anew, write_atomically
from unlearning.errors import CheckpointError, ConfigurationError, DataError
from unlearning.parameters import Vector

_KEY_BYTES = 32
_NONCE_BYTES = 12
_PLAIN, _SEALED = b"FUPLAIN1", b"FUSEAL01"


def create_key(path: Path) -> bytes:
    """Return a new key in a new file that its owner alone may read (mode 0600).

    Raises:
        ConfigurationError: there is a file already; vectors written under it would be lost.
    """
    key = AESGCM.generate_key(8 * _KEY_BYTES)
    try:
        write_anew(path, key)
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


def encode(vector: Vector, unit: str, key: bytes | None) -> bytes:
    """Return `vector` (d,) as bytes, encrypted and bound to the name `unit` where `key` is given."""
    buffer = io.BytesIO()
    np.save(buffer, vector, allow_pickle=False)
    if key is None:
        return _PLAIN + buffer.getvalue()
    nonce = os.urandom(_NONCE_BYTES)
    return _SEALED + nonce + AESGCM(key).encrypt(nonce, buffer.getvalue(), unit.encode())


def decode(content: bytes, unit: str, key: bytes | None) -> Vector:
    """Return the vector that `encode` made `content` of.

    Raises:
        CheckpointError: it was made with another key, without one or of another unit, or is damaged.
    """
    kind, body = content[: len(_PLAIN)], content[len(_PLAIN) :]
    if kind != (_PLAIN if key is None else _SEALED):
        raise CheckpointError(
            f"The vector of unit {unit!r} is {'not ' if key else ''}encrypted or damaged. Open the "
            f"store {'without' if key else 'with'} the key, or check the file."
        )
    if key is not None:
        try:
            body = AESGCM(key).decrypt(body[:_NONCE_BYTES], body[_NONCE_BYTES:], unit.encode())
        except InvalidTag as exc:
            raise CheckpointError(
                f"The vector of unit {unit!r} cannot be decrypted: the key is another one, or the file was "
                "altered. Use the key file that it was written with."
            ) from exc
    try:
        vector: Vector = np.load(io.BytesIO(body), allow_pickle=False)
    except ValueError as exc:
        raise CheckpointError(f"The vector of unit {unit!r} is damaged: {exc}.") from exc
    return vector


class VectorStore:
    """The vectors of one model's forgettable units in `directory`; encrypted where `key` is given.

    Files are written atomically. A store with a key reads encrypted files only, one without plain files only.
    """

    def __init__(self, directory: Path, key: bytes | None = None) -> None:
        self._directory = directory
        self._key = key

    def __contains__(self, unit: object) -> bool:
        return isinstance(unit, str) and self._path(unit).exists()

    def put(self, vectors: UnitVectors) -> None:
        """Write every unit's vector, over an older one where there is one; durable when this returns."""
        for unit, vector in zip(vectors.units, vectors.vectors, strict=True):
            write_atomically(self._path(unit), encode(vector, unit, self._key))

    def get(self, units: Iterable[str]) -> UnitVectors:
        """Return the vectors of `units`.

        Raises:
            CheckpointError: a file was written with another key or is damaged.
            DataError: a unit has no vector here, or no unit is named.
        """
        names = tuple(units)
        if not names:
            raise DataError("No unit is named, so there is no vector to read. Name one or more.")
        return UnitVectors(names, np.stack([self._read(unit) for unit in names]))

    def erase(self, units: Iterable[str]) -> None:
        """Overwrite and remove the files of `units`; those that are gone already are passed over.

        Call it when the model without them is durable: until then a crash must find the vectors here.
        """
        for unit in units:
            path = self._path(unit)
            try:
                overwrite(path)
                path.unlink()
            except FileNotFoundError:
                continue
            sync_directory(self._directory)

    def _path(self, unit: str) -> Path:
        return self._directory / f"{hashlib.sha256(unit.encode()).hexdigest()}.vector"

    def _read(self, unit: str) -> Vector:
        try:
            content = self._path(unit).read_bytes()
        except FileNotFoundError as exc:
            raise DataError(
                f"There is no vector of unit {unit!r} in {self._directory}: it was not carried, or was used and "
                "erased."
            ) from exc
        return decode(content, unit, self._key)
