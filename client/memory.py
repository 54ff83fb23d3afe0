"""What a client must remember beyond one message: tombstones, and requests filed at its own site.

On a deployment this is the client's own state directory (`--node-config 'state-dir="…"'`): it outlives
runs and restarts, and no operator of the server can make a client forget it. Without one
(simulation) it is Flower's `context.state`, which lives as long as the run.

    state-dir/tombstones.json     what may never be trained on again; sample ids as keyed hashes
    state-dir/excluded.json       what each ledger has said that is forgotten, by the ledger's identity
    state-dir/subject-keys        the server's keys for this client's sample ids, one a line, the newest last
    state-dir/outbox/KEY.json     requests that the server has not confirmed yet
    state-dir/sent/KEY.json       requests with the server's answer, without the ids of samples and people's texts
    state-dir/problem             what is wrong with this site's set-up, as it or the server found; empty: nothing
    state-dir/sample-places       where samples without ids stand (`client.sample_places`)
    state-dir/sample-ids          the ids of the samples that may be used, one a line, as they were last loaded
    state-dir/removed-samples     the ids of those that could be used before and are no longer there, oldest first
    state-dir/kept/METHOD/...     what methods keep here from round to round (`unlearning.runtime.stores`)
    state-dir/last-answer         the last answer, in case it is lost on its way (`client.last_answer`)
    state-dir/arriving            a session's models while they are in use, in files without a name
    state-dir/client-id           whose directory it is: another client that was given it takes no part
    state-dir/version             of the program (`unlearning.protocol`); an older one does not touch the directory
    state-dir/secure-round.json   the last round of secure aggregation that was answered, and its secrets until its end
    state-dir/sample-privacy.json what training with privacy for single samples has used (`client.sample_privacy`)
    state-dir/planted-noise.npz   noise that the owner planted, noise-scores.json its scores (`client.planted_noise`)

When something more of the client's own is forgotten, all that methods keep here and the last answer are erased: they
were computed from that. Of local layers those values stay that were trained without it (`newest_values`).
"""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from unlearning.certified.round_lengths import PrivateRounds
from unlearning.errors import CheckpointError, ConfigurationError, InvalidRequest
from unlearning.gdpr import NOTHING_GIVEN, Particulars
from unlearning.one_line import as_line
from unlearning.protocol import VERSION_FILE, claim_directory
from unlearning.pseudonyms import merge_keyed
from unlearning.requests import NOTHING, Forget, Target
from unlearning.runtime.durable_files import close_state, write_atomically, write_new
from unlearning.runtime.json_codec import from_plain, to_plain
from unlearning.runtime.stores import Arrays, DirectoryStore, Store, keep_newest, newest
from unlearning.untrusted import SITE_REQUEST_BYTES, SITE_REQUESTS

SAMPLE_IDS, _PROBLEM, SECURE_ROUND = "sample-ids", "problem", "secure-round.json"
_REMOVED = "removed-samples"
MOST_REMOVED = 1_000_000
"""How many ids of removed samples are kept; of more, those that were removed last."""
SAMPLE_PRIVACY = "sample-privacy.json"
PLANTED, SCORES = "planted-noise.npz", "noise-scores.json"
LAST_ANSWER, ARRIVING = "last-answer", "arriving"
_OWNER = "client-id"
LOCAL = "local-layers"  # the store of the values of local layers
PARTIAL_ANSWER = f"{LAST_ANSWER}.part"
_OURS = (
    "tombstones.json",
    "subject-keys",
    "excluded.json",
    "outbox",
    "sent",
    SAMPLE_IDS,
    _REMOVED,
    "sample-places",
    _PROBLEM,
    SECURE_ROUND,
    "kept",
    "peer",
    LAST_ANSWER,
    ARRIVING,
    SAMPLE_PRIVACY,
    PLANTED,
    SCORES,
    _OWNER,
    VERSION_FILE,
)
"""What this program keeps in a client's or a peer's state directory."""

_Kept = TypeVar("_Kept")


class ClientMemory(Protocol):
    """The memory of a client; every change is durable when the call returns."""

    def tombstones(self) -> Forget:
        """Return what may never be trained on again; ids that the server has given a key for are keyed hashes."""

    def keys(self) -> tuple[bytes, ...]:
        """Return the keys under which `tombstones` hashes ids, the newest last; several if the server lost its own."""

    def add_tombstones(self, forget: Forget, key: bytes = b"") -> None:
        """Add to the tombstones, which only ever grow; `key` hashes ids from now on."""

    def note_excluded(self, ledger: str, forget: Forget) -> bool:
        """Take note of what a ledger says is forgotten; return whether it has said more before."""

    def store(self, method: str) -> Store:
        """Return what this client keeps for a method from round to round."""

    def privacy(self) -> tuple[PrivateRounds, ...]:
        """Return the training steps that had noise for single samples, and those since the first of them without."""

    def count_privacy(self, rounds: tuple[PrivateRounds, ...]) -> None:
        """Replace what `privacy` returns; no deletion takes anything of it back."""

    def outbox(self) -> list[dict[str, Any]]:
        """Return the requests that the server has not confirmed, oldest first."""

    def confirm(self, answers: Mapping[str, str]) -> None:
        """Take note of the server's answers to the requests with these keys."""

    def no_longer_there(self, usable: Sequence[str], present: NDArray[np.str_]) -> list[str]:
        """Return the samples that this client could use before and no longer has, in the order in which they went.

        usable, present: the ids of those that it may use now, and of all that it has.
        """

    def note_samples(self, ids: Iterable[str], removed: Sequence[str] = ()) -> None:
        """Take note of the samples that this client may use, and of those that it could and no longer has."""

    def note_problem(self, text: str) -> None:
        """Take note of what is wrong with this site's set-up; empty: nothing is."""


class DirectoryMemory:
    """A memory in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        _private(directory)

    def claim(self, client_id: str) -> None:
        """Take the directory for this client, or see that it has it.

        Raises:
            ConfigurationError: it is another client's, whose requests and tombstones this one would send and obey.
        """
        path = self._directory / _OWNER
        if not path.exists():
            with suppress(FileExistsError):  # another process was first
                write_new(path, client_id.encode())
        if (owner := path.read_text(encoding="utf-8", errors="replace")) != client_id:
            raise ConfigurationError(
                [
                    f"state-dir: {self._directory} is client {as_line(owner, 100)}'s, and this is client {client_id}. "
                    f"Give each a directory of its own; if the client has a new name, remove {path}."
                ]
            )

    def tombstones(self) -> Forget:
        """Return what may never be trained on again.

        Raises:
            CheckpointError: the file is damaged; training on would break a promise.
        """
        return self._load("tombstones.json", lambda text: from_plain(Forget, json.loads(text)), NOTHING)

    def keys(self) -> tuple[bytes, ...]:
        """Return the keys under which ids are hashed.

        Raises:
            CheckpointError: the file is damaged; no sample that was forgotten could be found any more.
        """
        return self._load("subject-keys", lambda text: tuple(map(bytes.fromhex, text.splitlines())), ())

    def _load(self, name: str, parse: Callable[[str], _Kept], nothing: _Kept) -> _Kept:
        path = self._directory / name
        if not path.exists():
            return nothing
        try:
            return parse(path.read_text(encoding="utf-8"))
        except (ValueError, AttributeError, TypeError, RecursionError) as exc:
            raise CheckpointError(
                f"{path} is damaged ({exc}). Restore it from a backup; this client does not train until then."
            ) from exc

    def add_tombstones(self, forget: Forget, key: bytes = b"") -> None:
        """Add to the tombstones."""
        keys = self.keys()
        if key and key not in keys:
            keys = (*keys, key)
            write_atomically(
                self._directory / "subject-keys", "".join(f"{item.hex()}\n" for item in keys).encode()
            )
        known = self.tombstones()
        hashed, more = merge_keyed(known, forget, keys)
        if more:
            # Erased first: after a crash in between the tombstone is still to be written, so both come again.
            for kept in (self._directory / "kept").glob("*"):
                if kept.name != LOCAL:
                    shutil.rmtree(kept, ignore_errors=True)
            erase_trained_with(self.store(LOCAL), hashed)
            erase_last_answer(self._directory)
        if hashed != known:
            _write(self._directory / "tombstones.json", to_plain(hashed))

    def note_excluded(self, ledger: str, forget: Forget) -> bool:
        """Write it down; a ledger that says less was set back to an earlier state.

        Raises:
            CheckpointError: the file is damaged.
        """
        none: dict[str, Forget] = {}
        said = self._load("excluded.json", lambda text: from_plain(dict[str, Forget], json.loads(text)), none)
        before = said.get(ledger, NOTHING)
        if before | forget != before:
            _write(self._directory / "excluded.json", to_plain({**said, ledger: before | forget}))
        return before | forget != forget

    def store(self, method: str) -> Store:
        """Return what this client keeps for a method, in files."""
        return DirectoryStore(self._directory / "kept" / method)

    def privacy(self) -> tuple[PrivateRounds, ...]:
        """Return the steps that are counted.

        Raises:
            CheckpointError: the file is damaged; what was used is not known any more.
        """
        return self._load(SAMPLE_PRIVACY, rounds_from_json, ())

    def count_privacy(self, rounds: tuple[PrivateRounds, ...]) -> None:
        """Write them down."""
        write_atomically(self._directory / SAMPLE_PRIVACY, rounds_to_json(rounds).encode())

    def file_request(
        self,
        target: Target,
        method: str,
        parameters: Mapping[str, Any],
        particulars: Particulars = NOTHING_GIVEN,
    ) -> str:
        """Put a request into the outbox; it travels with one of the client's next answers. Returns its key.

        Raises:
            InvalidRequest: it is too large to travel.
        """
        key = uuid4().hex
        count = sum(len(list((self._directory / name).glob("*.json"))) for name in ("outbox", "sent"))
        request = {
            "key": key,
            "number": count,
            "target": to_plain(target),
            "method": method,
            "parameters": dict(parameters),
            "particulars": to_plain(particulars),
        }
        if _size(request) > SITE_REQUEST_BYTES:
            raise InvalidRequest(_TOO_LARGE)
        _write(self._directory / "outbox" / f"{key}.json", request)
        return key

    def outbox(self) -> list[dict[str, Any]]:
        """Return the requests that the server has not confirmed, oldest first."""
        return self._read("outbox")

    def answered_requests(self) -> list[dict[str, Any]]:
        """Return the requests that the server has answered, with its answer."""
        return self._read("sent")

    def confirm(self, answers: Mapping[str, str]) -> None:
        """Move the answered requests out of the outbox, and write down newer answers to earlier ones."""
        for key, answer in answers.items():
            path = self._directory / "outbox" / f"{Path(key).name}.json"
            if path.exists():
                request = json.loads(path.read_text(encoding="utf-8"))
                request.pop("particulars", None)  # the server has them, where they can be erased
                target = to_plain(from_plain(Target, request["target"]).without_ids())
                _write(self._directory / "sent" / path.name, {**request, "target": target, "answer": answer})
                path.unlink()
                continue
            sent = self._directory / "sent" / path.name
            if sent.exists():
                request = json.loads(sent.read_text(encoding="utf-8"))
                if request["answer"] != answer:
                    _write(sent, {**request, "answer": answer})

    def no_longer_there(self, usable: Sequence[str], present: NDArray[np.str_]) -> list[str]:
        """Return those that `note_samples` wrote down."""
        known = self.removed_samples()
        if self._has_noted(SAMPLE_IDS, _lines(usable)):  # there may be millions, and they hardly ever change
            return known
        used, there = [*known, *(self.sample_ids() or ())], set(present.tolist())
        return [one for one in dict.fromkeys(used) if one not in there]

    def note_samples(self, ids: Iterable[str], removed: Sequence[str] = ()) -> None:
        """Write the ids down, where they are not those that are written."""
        if removed or self.removed_samples():  # first: after a crash in between all are still known
            self._note_ids(_REMOVED, removed[-MOST_REMOVED:])
        self._note_ids(SAMPLE_IDS, ids)

    def removed_samples(self) -> list[str]:
        """Return the ids of the samples that this client could use before and no longer has."""
        return self._ids(_REMOVED) or []

    def _note_ids(self, name: str, ids: Iterable[str]) -> None:
        content = _lines(ids)
        if not self._has_noted(name, content):
            write_atomically(self._directory / name, content)

    def _has_noted(self, name: str, content: bytes) -> bool:
        path = self._directory / name
        return path.exists() and path.read_bytes() == content

    def _ids(self, name: str) -> list[str] | None:
        path = self._directory / name
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else None

    def note_problem(self, text: str) -> None:
        """Write it down for `flower-unlearn-site status`, where it is not what is written."""
        if text != self.problem():
            write_atomically(self._directory / _PROBLEM, text.encode())

    def problem(self) -> str:
        """Return what is wrong with this site's set-up; empty if nothing is."""
        path = self._directory / _PROBLEM
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def sample_ids(self) -> list[str] | None:
        """Return the ids of the samples that this client may use; None before its first message."""
        return self._ids(SAMPLE_IDS)

    def _read(self, folder: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for path in (self._directory / folder).glob("*.json"):
            with suppress(FileNotFoundError):  # confirmed since, by another process
                found.append(json.loads(path.read_text(encoding="utf-8")))
        return sorted(found, key=lambda request: (request["number"], request["key"]))


def site_directory(directory: Path) -> Path:
    """Return a client's state directory: what is filed in another one would never travel.

    Raises:
        InvalidRequest: there is none, or it holds other things than a client's.
    """
    try:
        found = {path.name for path in directory.iterdir()}
    except OSError as exc:
        raise InvalidRequest(f"{directory} is no state directory: {exc.strerror}. {_WHERE}") from exc
    if found and found.isdisjoint(_OURS):
        raise InvalidRequest(f"{directory} is no client's state directory: it has {min(found)}. {_WHERE}")
    return directory


_WHERE = "Name the one that `state-dir` in the SuperNode's --node-config names."


def rounds_to_json(rounds: tuple[PrivateRounds, ...]) -> str:
    """Return counted steps as JSON."""
    return json.dumps([to_plain(one) for one in rounds])


def rounds_from_json(text: str) -> tuple[PrivateRounds, ...]:
    """Read what `rounds_to_json` wrote."""
    return tuple(from_plain(PrivateRounds, one, exactly=True) for one in json.loads(text))


@cache
def _private(directory: Path) -> None:
    claim_directory(directory)
    close_state(
        directory, _OURS
    )  # once a process: a client's answer takes seconds, a walk of many files as well


def erase_trained_with(store: Store, forget: Forget) -> None:
    """Erase the values that were trained with something of `forget`, a site's tombstones."""
    for key in store.list_keys():
        left_out = from_plain(Forget, json.loads(key))
        if left_out | forget != left_out:
            store.erase(key)


def erase_last_answer(directory: Path) -> None:
    """Erase the answer in a client's state directory, and what a process that died left half-written."""
    for name in (LAST_ANSWER, PARTIAL_ANSWER):
        (directory / name).unlink(missing_ok=True)


def state_dir_of(node_config: Mapping[str, Any]) -> Path | None:
    """Return the state directory that the node's configuration names, if it does.

    Raises:
        ConfigurationError: not by its whole path: a SuperNode that starts elsewhere would not know what was forgotten.
    """
    given = str(node_config.get("state-dir", ""))
    if not given:
        return None
    directory = Path(os.path.expanduser(given))  # noqa: PTH111 - pathlib's fails for unknown accounts
    if not directory.is_absolute():
        raise ConfigurationError(
            [f"state-dir: give its whole path in this node's configuration, from / on, got {given!r}."]
        )
    return directory


def requests_to_send(memory: ClientMemory) -> list[dict[str, Any]]:
    """Return the requests to send with the next answer: the oldest, up to the limits of a message and the server."""
    room = SITE_REQUEST_BYTES
    chosen: list[dict[str, Any]] = []
    for filed in memory.outbox()[:SITE_REQUESTS]:
        room -= _size(filed)
        if room < 0:
            break
        chosen.append(filed)
    return chosen


_TOO_LARGE = (
    f"The request is larger than {SITE_REQUEST_BYTES:,} bytes, the most that travels with an answer. Split the list of "
    "sample ids."
)


def _lines(ids: Iterable[str]) -> bytes:
    return "".join(f"{item}\n" for item in ids).encode()


def _size(request: Mapping[str, Any]) -> int:
    return len(json.dumps(request))


def _write(path: Path, value: Mapping[str, Any]) -> None:
    write_atomically(path, json.dumps(value).encode())


def newest_values(memory: ClientMemory) -> Arrays:
    """Return the values of this site's own layers (`unlearning.local_layers`) that were trained last; nothing where
    none were.

    They are kept by round, under what was left out when they were trained. So data that is withheld sends their
    training back to the beginning without it; where a deletion is abandoned they go on from where they were; and
    tombstones erase those alone that were trained with what may never be used again.
    """
    store = memory.store(LOCAL)
    found = [one for key in store.list_keys() if (one := newest(store, key))]
    return max(found, key=lambda one: one[0])[1] if found else {}


def values_before(memory: ClientMemory, withheld: Forget, number: int) -> Arrays:
    """Return the values that training without `withheld` goes on from in a round; nothing where it begins."""
    found = newest(memory.store(LOCAL), _key(memory, withheld), before=number)
    return found[1] if found else {}


def keep_values(memory: ClientMemory, withheld: Forget, number: int, values: Arrays) -> None:
    """Keep the values of a round without `withheld`, beside those of all that may be used."""
    store, key = memory.store(LOCAL), _key(memory, withheld)
    for other in {*store.list_keys()} - {key, _key(memory, NOTHING)}:
        store.erase(other)
    keep_newest(store, key, number, values)


def _key(memory: ClientMemory, withheld: Forget) -> str:
    left_out, _ = merge_keyed(memory.tombstones(), withheld, memory.keys())
    return json.dumps(to_plain(left_out), sort_keys=True)
