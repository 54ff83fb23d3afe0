"""Requests written into the run configuration: for simulations, tests and repeatable experiments.

    requests = "at=3 client=2; at=3 client=4 method=puf-regular; at=5 client=1 samples=17,21; at=6 class=7"

`at` is the number of training rounds after which the request is filed. It is admitted as any
other; doing it again after a restart is harmless, because its place in the list is its key.
What cannot be served is refused before the first round: what the text itself says (`parse_requests`), and what the
federation is not (`check_scripted`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from server.ledger import Ledger, NewRequest
from unlearning.errors import ConfigurationError, InvalidRequest, RequestError
from unlearning.methods.eligibility import FederationProfile, check_eligible
from unlearning.methods.method import Method
from unlearning.methods.preparation import Preparation
from unlearning.methods.registry import METHODS, check_supports, checked, method_named
from unlearning.requests import Granularity, Target

_KNOWN = frozenset({"at", "client", "samples", "class", "method"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedRequest:
    """A request that is filed after `at` training rounds."""

    at: int
    new: NewRequest


def parse_requests(text: str, rounds: int = 0) -> tuple[ScriptedRequest, ...]:
    """Return the requests in `text`; words that are not listed above are the method's parameters.

    rounds: how many training rounds the run has; 0 for no end.

    Raises:
        ConfigurationError: lists every entry that is wrong, would never be filed, or repeats an earlier one.
    """
    found: list[ScriptedRequest] = []
    wrong: list[str] = []
    for number, entry in enumerate((part.strip() for part in text.split(";")), start=1):
        if not entry:
            continue
        try:
            one = _parse(entry, f"script/{number}")
            _check(one, found, rounds)
            found.append(one)
        except (RequestError, ValueError) as exc:
            wrong.append(f"requests, entry {number} ({entry!r}): {exc}")
    if wrong:
        raise ConfigurationError(wrong)
    return tuple(found)


def check_scripted(
    scripted: Iterable[ScriptedRequest],
    ledger: Ledger,
    federation: FederationProfile,
    prepared: Mapping[str, Preparation],
    num_clients: int,
) -> None:
    """Refuse what this federation cannot serve; a client may still come as long as there are fewer than `num_clients`.

    Raises:
        ConfigurationError: lists every request that is wrong.
    """
    wrong: list[str] = []
    known = [record.client_id for record in ledger.clients()]
    for one in scripted:
        new, client = one.new, one.new.target.client_id
        if ledger.requests.find(new.idempotency_key, new.submitted_by) is not None:
            continue
        try:
            if client is not None and client not in known and len(known) >= num_clients:
                raise InvalidRequest(f"there is no client {client!r}. Known: {', '.join(known[:20])}.")
            reasons = [
                _refusal(method_named(name), new.target, federation, prepared)
                for name in ([new.method] if new.method else METHODS)
            ]
            if None not in reasons:
                raise next(filter(None, reasons))
        except RequestError as exc:
            entry = new.idempotency_key.removeprefix("script/")
            wrong.append(f"requests, entry {entry} ({new.target.describe()}): {exc}")
    if wrong:
        raise ConfigurationError(wrong)


def _refusal(
    method: Method, target: Target, federation: FederationProfile, prepared: Mapping[str, Preparation]
) -> RequestError | None:
    try:
        check_supports(method, target)
        check_eligible(method, target, federation, prepared)
    except RequestError as exc:
        return exc
    return None


def _check(one: ScriptedRequest, earlier: Iterable[ScriptedRequest], rounds: int) -> None:
    """Refuse what no federation can serve.

    Raises:
        RequestError: says what is wrong.
    """
    target, method = one.new.target, one.new.method
    if one.at < 0 or (rounds and one.at > rounds):
        last = f"to {rounds}, the rounds of this run" if rounds else "or more"
        raise InvalidRequest(
            f"it would never be filed: at is 0 (before the first round) {last}, got {one.at}."
        )
    if method:
        checked(method_named(method), [target], one.new.parameters)
    elif one.new.parameters:
        raise InvalidRequest(
            f"{', '.join(one.new.parameters)} would be parameters of a method; name it, as in method=puf-special."
        )
    for other in earlier:
        gone = other.new.target
        whole = gone.granularity is Granularity.CLIENT and gone.client_id == target.client_id
        if gone == target or (whole and other.at <= one.at):
            raise InvalidRequest(
                f"{gone.describe()} is forgotten at={other.at} already. Leave one of the two out."
            )


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
