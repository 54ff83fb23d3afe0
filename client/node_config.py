"""What a site's owner sets in the SuperNode's `--node-config`: which keys there are, and that each says what is meant.

A key that is misspelt would be left out without a word: the state directory, and with it what must not be trained on
again, or a demand of the owner.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from typing import Any

from client.sample_privacy import demanded_epsilon
from unlearning.errors import DataError

OF_DATA = ("data-dir", "partition-id", "num-partitions")
"""Read for the built-in tasks; an app of one's own reads what it likes."""
SWITCHES = ("answer-rechecks", "require-secure-aggregation")
KEYS = (
    "client-id",
    "state-dir",
    *SWITCHES,
    "require-sample-privacy",
    "secure-key",
    "secure-roster",
    "min-cohort",
    "session-tls-ca",
    "session-tls-cert",
    "session-tls-key",
)
_NEAR = 0.85
"""By which a key of an app's own is like one of `KEYS` that is not given: `state_dir` is, `site` is not."""


def node_problems(node_config: Mapping[str, Any], *, is_built_in: bool) -> list[str]:
    """Say in one sentence each what is wrong with a node's configuration; keys of an app's own are its own affair."""
    # An app of one's own may well have a `client_id` and a `data_dir`.
    meant = (*KEYS, *OF_DATA) if is_built_in else KEYS[1:]
    others = [name for name in node_config if name not in (*KEYS, *OF_DATA)]
    wrong = [*_misspelt(others, [name for name in meant if name not in node_config], is_built_in=is_built_in)]
    wrong += [
        f"{name}: give true or false, got {node_config[name]!r}."
        for name in SWITCHES
        if node_config.get(name, False) not in (True, False, "true", "false")
    ]
    try:
        demanded_epsilon(node_config)
    except DataError as exc:
        wrong.append(str(exc))
    numbers = ("min-cohort", *(OF_DATA[1:] if is_built_in else ()))
    return wrong + [
        f"{name}: give a whole number, 0 or more, got {node_config[name]!r}."
        for name in numbers
        if name in node_config and not _is_count(node_config[name])
    ]


def _misspelt(names: Iterable[str], absent: list[str], *, is_built_in: bool) -> Iterable[str]:
    for name in names:
        near = get_close_matches(name.lower().replace("_", "-"), absent, n=1, cutoff=_NEAR)
        if near:
            yield f"{name}: there is no such key in a node's configuration; {near[0]} is one."
        elif is_built_in:
            yield f"{name}: there is no such key in a node's configuration (docs/reference-settings.md)."


def _is_count(value: object) -> bool:
    with suppress(ValueError):
        return not isinstance(value, bool | float) and int(str(value)) >= 0
    return False
