"""Requests written into the run configuration: for simulations, tests and repeatable experiments.

    requests = "at=3 client=2; at=3 client=4 method=puf-regular; at=5 client=1 samples=17,21; at=6 class=7"

`at` is the number of training rounds after which the request is filed. It is admitted as any
other; doing it again after a restart is harmless, because its place in the list is its key.
"""

from dataclasses import dataclass

from server.ledger import NewRequest
from unlearning.errors import ConfigurationError, InvalidRequest
from unlearning.requests import Granularity, Target

_KNOWN = frozenset({"at", "client", "samples", "class", "method"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedRequest:
    """A request that is filed after `at` training rounds."""

    at: int
    new: NewRequest


def parse_requests(text: str) -> tuple[ScriptedRequest, ...]:
    """Return the requests in `text`; words that are not listed above are the method's parameters.

    Raises:
        ConfigurationError: lists every entry that is wrong.
    """
    found: list[ScriptedRequest] = []
    wrong: list[str] = []
    for number, entry in enumerate((part.strip() for part in text.split(";")), start=1):
        if not entry:
            continue
        try:
            found.append(_parse(entry, f"script/{number}"))
        except (InvalidRequest, ValueError) as exc:
            wrong.append(f"requests, entry {number} ({entry!r}): {exc}")
    if wrong:
        raise ConfigurationError(wrong)
    return tuple(found)


def _parse(entry: str, key: str) -> ScriptedRequest:
    words: dict[str, str] = {}
    for word in entry.split():
        name, separator, value = word.partition("=")
        if not separator or not value:
            raise InvalidRequest(f"write name=value, got {word!r}")
        words[name] = value
    if "at" not in words:
        raise InvalidRequest("say after how many training rounds, as in at=3")
    at = int(words["at"])
    if "class" in words:
        target = Target(Granularity.CLASS, words.get("client"), class_label=int(words["class"]))
    elif "samples" in words:
        ids = frozenset(part for part in words["samples"].split(",") if part)
        target = Target(Granularity.SAMPLE, words.get("client"), ids)
    else:
        target = Target(Granularity.CLIENT, words.get("client"))
    new = NewRequest(
        target=target,
        method=words.get("method", ""),
        parameters={name: value for name, value in words.items() if name not in _KNOWN},
        submitted_by="run configuration",
        idempotency_key=key,
    )
    return ScriptedRequest(at=at, new=new)
