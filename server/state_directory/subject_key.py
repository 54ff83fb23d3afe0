"""The file with the operator's key of sample ids, `STATE_DIR/subject-key`; made at the first start, mode 600.

Who has it can test guesses at the ids that the ledger, checkpoints and certificates hold as keyed hashes. Who
loses it can tell no client any more which samples it must leave out, so it belongs into backups.
"""

import re
import secrets
from contextlib import suppress
from pathlib import Path

from server.state_directory.files import SUBJECT_KEY as FILE
from unlearning.errors import ConfigurationError
from unlearning.pseudonyms import SubjectKeys
from unlearning.runtime.durable_files import write_new


def subject_keys(state_dir: Path) -> SubjectKeys:
    """Return the keys of the federation in `state_dir`, made there where there are none.

    Raises:
        ConfigurationError: the file holds no key.
        OSError: it cannot be read or made.
    """
    path = state_dir / FILE
    if not path.exists():
        with suppress(FileExistsError):  # another process has made it at this very moment
            write_new(path, secrets.token_hex(32).encode() + b"\n")
    return read_subject_keys(path)


def read_subject_keys(path: Path) -> SubjectKeys:
    """Return the keys in a file.

    Raises:
        ConfigurationError: it holds none, or cannot be read.
    """
    return SubjectKeys(_keys_in(path)[0])


def read_client_keys(path: Path, client_id: str) -> list[bytes]:
    """Return the keys of one client: from the operator's file, or from the client's own file `subject-keys`.

    Raises:
        ConfigurationError: it holds none, or cannot be read.
    """
    found = _keys_in(path)
    return [SubjectKeys(found[0]).of(client_id)] if path.name == FILE else found


def _keys_in(path: Path) -> list[bytes]:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeError) as exc:
        raise ConfigurationError([f"{path} cannot be read as a key of sample ids: {exc}"]) from exc
    if not lines or not all(re.fullmatch("[0-9a-f]{64}", line) for line in lines):
        raise ConfigurationError(
            [f"{path} holds no key of sample ids (64 hexadecimal digits). Restore it from a backup."]
        )
    return [bytes.fromhex(line) for line in lines]
