"""Filing a request in three steps: what is to be forgotten, by which method, and a summary before it is filed.

What was typed is kept here between the steps, in memory only: no id of a sample is in an address or on a disk.
"""

import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import Any

from starlette.datastructures import FormData, UploadFile

from server.console.forms import MAX_FILE_BYTES, text_of
from server.service.access import Caller
from unlearning.errors import InvalidRequest
from unlearning.gdpr import NOTHING_GIVEN, Particulars
from unlearning.requests import Granularity, Target, parse_sample_ids
from unlearning.runtime.json_codec import json_or_word

MAX_DRAFTS = 20
REGISTER_FIELDS = tuple(item.name for item in fields(Particulars))
TOO_LONG = (
    f"The list is longer than {MAX_FILE_BYTES // 1024 // 1024} MiB, the most that the service takes. "
    "Split it: at most a million ids a request."
)


class FieldErrors(Exception):
    """What is wrong with a form: a sentence per field."""

    def __init__(self, errors: Mapping[str, str]) -> None:
        self.errors = dict(errors)
        super().__init__("; ".join(self.errors.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A request that is not filed yet. key: its idempotency key, so that a second click files nothing twice."""

    id: str = field(default_factory=lambda: secrets.token_urlsafe(9))
    key: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    target: Target
    method: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    particulars: Particulars = NOTHING_GIVEN
    typed: Mapping[str, str] = field(default_factory=dict)
    filed_as: str = ""


class Drafts:
    """The newest drafts, by id."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._drafts: dict[str, Draft] = {}

    def put(self, draft: Draft) -> None:
        """Keep a draft; the oldest one goes where there are too many."""
        with self._lock:
            self._drafts.pop(draft.id, None)
            self._drafts[draft.id] = draft
            if len(self._drafts) > MAX_DRAFTS:
                del self._drafts[next(iter(self._drafts))]

    def get(self, draft_id: str) -> Draft:
        """Return a draft.

        Raises:
            InvalidRequest: it is not here any more.
        """
        with self._lock:
            found = self._drafts.get(draft_id)
        if found is None:
            raise InvalidRequest(
                "This draft is not here any more: the console was restarted, or many others were begun since. "
                "Nothing was filed by it; begin again."
            )
        return found


def read_target(form: FormData, caller: Caller) -> Target:
    """Return what a form asks to forget.

    Raises:
        FieldErrors: a sentence for each field that is wrong.
    """
    what = text_of(form, "what")
    if what not in set(Granularity):
        raise FieldErrors({"what": "Choose what is to be forgotten."})
    kind = Granularity(what)
    if kind is Granularity.CLASS:
        text = text_of(form, "class_label")
        if not (text.isascii() and text.isdigit() and len(text) < 19):
            raise FieldErrors({"class_label": f"A class is a whole number of 0 or more, got {text[:40]!r}."})
        return Target(kind, class_label=int(text))
    client = caller.name if caller.is_client else text_of(form, "client")
    errors: dict[str, str] = {}
    ids: frozenset[str] = frozenset()
    if not client:
        errors["client"] = "Say which client; its id is the one under which its SuperNode is registered."
    if kind is Granularity.SAMPLE:
        try:
            ids = _read_ids(_listed(form))
        except InvalidRequest as exc:
            errors["samples"] = str(exc)
    if errors:
        raise FieldErrors(errors)
    try:
        return Target(kind, client, ids)
    except InvalidRequest as exc:
        raise FieldErrors({"samples" if "sample" in str(exc) else "client": str(exc)}) from exc


def read_details(draft: Draft, typed: Mapping[str, str], now: datetime) -> Draft:
    """Return a draft with its method, the method's parameters, and what belongs to the register.

    Raises:
        FieldErrors: a sentence for each field that is wrong.
    """
    errors = {} if typed["method"] else {"method": "Choose a method."}
    parameters: dict[str, Any] = {}
    try:
        parameters = read_parameters(typed["parameters"])
    except InvalidRequest as exc:
        errors["parameters"] = str(exc)
    for name in REGISTER_FIELDS:
        try:
            Particulars.from_texts(**{name: typed[name]})
        except InvalidRequest as exc:
            errors[name] = str(exc)
    if not errors.keys() & set(REGISTER_FIELDS):
        particulars = Particulars.from_texts(**{name: typed[name] for name in REGISTER_FIELDS})
        try:
            particulars.dates(now)
        except InvalidRequest as exc:
            errors[str(exc.fields["field"])] = str(exc)
    if errors:
        raise FieldErrors(errors)
    return replace(
        draft, method=typed["method"], parameters=parameters, particulars=particulars, typed=dict(typed)
    )


def read_parameters(text: str) -> dict[str, Any]:
    """Return a method's parameters: NAME=VALUE, one per line; a value is JSON, or a bare word."""
    found: dict[str, Any] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, separator, value = (part.strip() for part in line.partition("="))
        if not separator or not name:
            raise InvalidRequest(f"A parameter is NAME=VALUE, one per line; got {line[:80]!r}.")
        found[name] = json_or_word(value)
    return found


def _listed(form: FormData) -> str:
    """Return the list of ids that was chosen as a file or pasted."""
    file = form.get("samples")
    content = file.file.read() if isinstance(file, UploadFile) else b""
    pasted = text_of(form, "ids")
    if content and pasted:
        raise InvalidRequest("Give a file or paste the ids, not both.")
    if not content:
        if not pasted:
            raise InvalidRequest("Choose a file with one id per line, or paste the ids.")
        return pasted
    if len(content) > MAX_FILE_BYTES:
        raise InvalidRequest(TOO_LONG)
    try:
        return content.decode("utf-8")
    except UnicodeError:
        raise InvalidRequest("The file is not text in UTF-8. Give one id per line.") from None


def _read_ids(text: str) -> frozenset[str]:
    ids = parse_sample_ids(text)
    marked = next((item for item in sorted(ids) if "<" in item or ">" in item), None)
    if marked is not None:
        raise InvalidRequest(
            f"{marked[:60]!r} looks like markup, not like an id: give the ids alone, one per line. (An id that has < "
            "or > can be filed with `flower-unlearn request --samples FILE`.)"
        )
    return ids
