"""The server's state directory as files: what lies in it, for its owner alone, and nothing half-written."""

import json
from logging import getLogger
from pathlib import Path
from typing import Any

from server.state_directory.ledger_address import LEDGER_FILE
from unlearning.errors import BackupError, ConfigurationError
from unlearning.protocol import VERSION_FILE, claim_directory
from unlearning.runtime.durable_files import close_state, erase_partials, make_private
from unlearning.runtime.json_codec import from_plain

_log = getLogger(__name__)

CHECKPOINTS, KEPT, REPORTS = "checkpoints", "kept", "reports"
EARLIER = "until-"
"""How the folder in a request's reports begins that has those of an earlier completion."""
ARRIVING = "arriving"
"""Answers of a session's clients while they are in use, in files without a name (`unlearning.runtime.spool`)."""
SETTINGS_FILE = "settings.json"
"""The run's settings, which say what model a checkpoint's vector belongs to."""
OWN_RUNS = "comparisons.json"
"""What the user's own runs measured (`flower-unlearn bench --app`); the live loop tells it to the ledger."""
ASKED_ROUND = "asked-round"
"""The round of secure aggregation under way (`server.federation.checkpoints`)."""
UNDONE_FILE, RESIDUE_FILE = "undone-by-restore.json", "residue-erased.json"
NOISE_SECRET = "noise-secret"
"""What the noise of released models is derived from (`unlearning.certified.noise_secret`): 32 bytes, mode 600.

It is in no ledger, report, certificate, log or message. A reader of it can subtract the noise from released models;
without it no release can be repeated.
"""
SUBJECT_KEY = "subject-key"
"""The key of the hashes that stand for sample ids (`server.state_directory.subject_key`)."""
LAST_BACKUP = ".last-backup"
"""When the newest backup was made (ISO 8601): for `/metrics`, and in no backup."""
CALLBACKS = "callbacks"
"""Callbacks that the deletion service still owes (`server.service.callbacks`)."""
TOKEN_USES = "http-token-uses.json"
"""On which day each token of the HTTP API was used last (`server.service.tokens`)."""
REPLACED, RESTORING, RESTORE_JOURNAL = "replaced-", "restoring", "restoring.json"
"""What restores moved aside, the copies of one, and its journal (`server.operations.restore`)."""
SUPERLINK_DATABASE = Path("/var/lib/flower-unlearning/superlink.db")
"""Flower's own, beside the state directory, where deploy/ puts it."""
FOLDERS = (CHECKPOINTS, KEPT, REPORTS)
_OURS = (
    *FOLDERS,
    ARRIVING,
    CALLBACKS,
    TOKEN_USES,
    SETTINGS_FILE,
    OWN_RUNS,
    ASKED_ROUND,
    UNDONE_FILE,
    NOISE_SECRET,
    SUBJECT_KEY,
    RESIDUE_FILE,
    LAST_BACKUP,
    f"{LEDGER_FILE}*",
    f"{REPLACED}*",
    f"{RESTORING}*",
    VERSION_FILE,
)


def refuse_half_restored(state_dir: Path) -> None:
    """Refuse a state directory whose restore was broken off.

    Raises:
        BackupError: says how to finish it.
    """
    if (state_dir / RESTORE_JOURNAL).exists():
        raise BackupError(
            f"A restore into {state_dir} was broken off half-way. Finish it first: "
            "flower-unlearn restore BACKUP --state-dir DIR, as before.",
            code="half-restored",
        )


def private_state(state_dir: Path) -> None:
    """Make the directory if need be, and close to others what this program keeps in it; say what was open.

    Raises:
        OSError: a file belongs to another user.
        VersionMismatch: a newer version of this program has used it.
    """
    make_private(state_dir)
    claim_directory(state_dir)
    close_state(state_dir, _OURS)


def erase_unfinished(state_dir: Path) -> None:
    """Erase what a killed process left half-written; it may carry what was forgotten. Only the ServerApp calls this."""
    for folder in FOLDERS:
        for path in erase_partials(state_dir / folder):
            _log.info("%s was left half-written by a process that died; erased.", path)


def read_settings(state_dir: Path) -> dict[str, Any]:
    """Return the settings of the federation's last run.

    Raises:
        OSError: there was no run, or the file cannot be read.
        ConfigurationError: the file holds something else.
    """
    path = state_dir / SETTINGS_FILE
    try:
        return from_plain(dict[str, Any], json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, RecursionError) as exc:
        raise ConfigurationError(
            [f"{path} holds no settings ({exc}). A new run of the federation writes it again."]
        ) from exc
