"""No secret in a run's configuration: the SuperLink stores it, and Flower sends it to every client.

What the server needs and nobody else may know comes by the environment (`server/state_directory/ledger_address.py`)
or in a file that its owner alone can read, and the configuration names the file.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_SECRETS = (
    ("a password", re.compile(r"://[^/@\s:]*:[^@\s]+@|:[^@/\s:]+@")),
    ("a password", re.compile(r"(?i)(pass(word|wd|phrase)?|pwd|secret|token|api[-_]?key)\s*[=:]\s*\S")),
    ("a private key", re.compile(r"PRIVATE KEY")),
)


@dataclass(frozen=True, slots=True)
class SecretPlace:
    """Marks a setting whose secret belongs in a place of its own; `advice` says where."""

    advice: str = "Put it into a file of mode 600 on the machine that needs it, and name the file"


def describe_secrets(values: Mapping[str, Any], places: Mapping[str, SecretPlace]) -> list[str]:
    """Say of each setting that holds a secret what to do, by its own of the `places`; the secret is not repeated."""
    return [
        f"{name}: it holds {what}, which the SuperLink would store and send to every client. "
        f"{places.get(name, SecretPlace()).advice}; if it was submitted before, change it."
        for name, value in values.items()
        if (what := _secret_in(value))
    ]


def _secret_in(value: Any) -> str:
    """Return what kind of secret a text is or has in it; empty for none."""
    if not isinstance(value, str):
        return ""
    return next((what for what, pattern in _SECRETS if pattern.search(value)), "")
