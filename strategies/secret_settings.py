"""No secret in a run's configuration: the SuperLink stores it, and Flower sends it to every client.

What the server needs and nobody else may know comes by the environment (`server/state_directory/ledger_address.py`)
or in a file that its owner alone can read, and the configuration names the file.
"""

import re
from collections.abc import Mapping
from typing import Any

_SECRETS = (
    ("a password", re.compile(r"://[^/@\s:]*:[^@\s]+@|:[^@/\s:]+@")),
    ("a password", re.compile(r"(?i)(pass(word|wd|phrase)?|pwd|secret|token|api[-_]?key)\s*[=:]\s*\S")),
    ("a private key", re.compile(r"PRIVATE KEY")),
)
_PLACES = {
    "ledger": "Put the URL into FLOWER_UNLEARNING_LEDGER, or into a file of mode 600 that "
    "FLOWER_UNLEARNING_LEDGER_FILE names, in the environment of flower-superexec (docs/access.md)"
}
_ELSEWHERE = "Put it into a file of mode 600 on the machine that needs it, and name the file"


def secrets_in(values: Mapping[str, Any]) -> list[str]:
    """One sentence for each setting that holds a secret: what to do. The secret is not repeated."""
    return [
        f"{name}: it holds {what}, which the SuperLink would store and send to every client. "
        f"{_PLACES.get(name, _ELSEWHERE)}; if it was submitted before, change it."
        for name, value in values.items()
        if (what := _secret_in(value))
    ]


def _secret_in(value: Any) -> str:
    """What kind of secret a text is or has in it; empty for none."""
    if not isinstance(value, str):
        return ""
    return next((what for what, pattern in _SECRETS if pattern.search(value)), "")
