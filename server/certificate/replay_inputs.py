"""What the setting `keep-replay-inputs` keeps of a deletion, so that its server step can be executed again.

    STATE_DIR/replay/REQUEST/begin.npz              the model before, the method, settings, the first problem
    STATE_DIR/replay/REQUEST/kept-00000001.npz      for a prepared method: what was kept of one client's one round
    STATE_DIR/replay/REQUEST/exchange-000001.npz    the replies that the method was given, and its problem
    STATE_DIR/replay/REQUEST/after.npz              the model after recovery: the federation goes on training from it

REQUEST is the first request of those that were served together. These files carry what was forgotten: the
model that still knows it, and updates made from it. They lie there until `flower-unlearn erase-replay`.

A file is written before the checkpoint that knows its exchange. After a crash the exchange is done again and
its file written again, so the files are those of the exchanges that count.
"""

import hashlib
import io
import json
import shutil
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from server.certificate.document import InputFile, ReplayInputs
from server.federation.state import ActiveDeletion
from strategies.run_config import RunSettings
from unlearning.durable_files import sync_directory, write_atomically
from unlearning.errors import CertificateError
from unlearning.methods.method import (
    ClientSite,
    Instruction,
    Method,
    PreparedStore,
    Problem,
    Reply,
    UnlearningState,
)
from unlearning.parameters import Vector
from unlearning.requests import Forget
from unlearning.stores import MemoryStore, Store

DIRECTORY = "replay"
BEGIN, AFTER = "begin.npz", "after.npz"
VERSION = 1
# Where this server keeps things, and its secrets: no business of whoever replays.
_LEFT_OUT = frozenset(
    {
        "data_dir",
        "state_dir",
        "ledger",
        "certificate_key",
        "requests",
        "session_address",
        "session_bind",
        "session_tls_ca",
        "session_tls_cert",
        "session_tls_key",
    }
)


class RecordingMethod:
    """`method`, which also writes down what its server half is given; its results are the same."""

    def __init__(self, method: Method, directory: Path, settings: RunSettings) -> None:
        self._method = method
        self._directory = directory
        self._settings = settings
        self.info = method.info
        self.Parameters = method.Parameters

    def begin(self, problem: Problem, parameters: Vector) -> UnlearningState:
        """As the method begins; what an earlier attempt has left is erased."""
        discard(self._directory)
        meta = {
            "version": VERSION,
            "method": self.info.name,
            "settings": self._settings.model_dump(mode="json", by_alias=True, exclude=set(_LEFT_OUT)),
            "problem": _problem_to_json(problem),
        }
        if problem.kept is not None:
            _copy_store(problem.kept.store, self._directory)
        write_atomically(self._directory / BEGIN, _packed(meta, {"parameters": parameters}))
        return self._method.begin(problem, parameters)

    def configure(self, problem: Problem, state: UnlearningState) -> Mapping[str, Instruction]:
        """As the method does."""
        return self._method.configure(problem, state)

    def client_step(self, instruction: Instruction, site: ClientSite) -> Reply:
        """As the method does."""
        return self._method.client_step(instruction, site)

    def aggregate(
        self, problem: Problem, state: UnlearningState, replies: Mapping[str, Reply]
    ) -> UnlearningState:
        """As the method does; its exchange is on disk when this returns.

        Raises:
            MethodFailed: the replies do not suffice.
        """
        following = self._method.aggregate(problem, state, replies)
        if (self._directory / BEGIN).exists():  # not where the setting was switched on half-way
            self._keep(following.exchanges, problem, replies)
        return following

    def _keep(self, number: int, problem: Problem, replies: Mapping[str, Reply]) -> None:
        clients = sorted(replies)
        arrays: dict[str, NDArray[Any]] = {}
        for index, client in enumerate(clients):
            arrays[f"{index}.vector"] = replies[client].vector
            for position, name in enumerate(sorted(replies[client].arrays)):
                arrays[f"{index}.{position}"] = replies[client].arrays[name]
        meta = {
            "problem": _problem_to_json(problem),
            "replies": [
                {
                    "client": client,
                    "num_examples": replies[client].num_examples,
                    "metrics": dict(replies[client].metrics),
                    "arrays": sorted(replies[client].arrays),
                    "values": dict(replies[client].values),
                }
                for client in clients
            ],
        }
        write_atomically(self._directory / _exchange_file(number), _packed(meta, arrays))
        for later in _files(self._directory):  # of a time before a crash that went back further
            if later.name.startswith("exchange-") and later.name > _exchange_file(number):
                later.unlink()


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """What a replay starts from: the names of the method and the run's settings, and the model before."""

    method: str
    settings: RunSettings
    problem: Mapping[str, Any]
    parameters: Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """What the method was given in one exchange."""

    problem: Mapping[str, Any]
    replies: Mapping[str, Reply] = field(default_factory=dict)


def directory_of(state_dir: Path, batch: ActiveDeletion) -> Path:
    """Where the inputs of a batch lie."""
    return state_dir / DIRECTORY / batch.request_ids[0]


def kept_inputs(directory: Path, note: str) -> ReplayInputs:
    """The files in `directory` by name and SHA-256; where there are none, `note` says why."""
    files = [
        InputFile(name=path.name, sha256=hashlib.sha256(path.read_bytes()).hexdigest())
        for path in _files(directory)
    ]
    return ReplayInputs(directory=directory.name if files else "", files=files, note="" if files else note)


def keep_model_after(directory: Path, parameters: Vector) -> None:
    """Keep the model that the deletion leaves behind, where inputs are kept; written again it is the same."""
    if (directory / BEGIN).exists():
        write_atomically(directory / AFTER, _packed({}, {"parameters": parameters}))


def read_model(path: Path) -> Vector:
    """The model in a file that is kept here, as one flat vector.

    Raises:
        CertificateError: it cannot be read, or holds no model.
    """
    _, arrays = _unpacked(path)
    if "parameters" not in arrays:
        raise CertificateError(
            f"{path} holds no model. Give after.npz, or model.pt of `flower-unlearn model`."
        )
    return arrays["parameters"]


def read_begin(directory: Path) -> Begun:
    """What the replay starts from.

    Raises:
        CertificateError: it cannot be read, or is of another version.
    """
    meta, arrays = _unpacked(directory / BEGIN)
    if meta.get("version") != VERSION:
        raise CertificateError(
            f"{directory / BEGIN} is of version {meta.get('version')}, this program replays version {VERSION}."
        )
    return Begun(
        method=meta["method"],
        settings=RunSettings.from_run_config(meta["settings"]),
        problem=meta["problem"],
        parameters=arrays["parameters"],
    )


def read_exchanges(directory: Path) -> Iterator[Exchanged]:
    """The exchanges in their order; one at a time, for they may be large.

    Raises:
        CertificateError: a file cannot be read.
    """
    number = 1
    while (path := directory / _exchange_file(number)).exists():
        meta, arrays = _unpacked(path)
        replies = {
            item["client"]: Reply(
                vector=arrays[f"{index}.vector"],
                num_examples=item["num_examples"],
                metrics=item["metrics"],
                arrays={name: arrays[f"{index}.{place}"] for place, name in enumerate(item["arrays"])},
                values=item["values"],
            )
            for index, item in enumerate(meta["replies"])
        }
        yield Exchanged(problem=meta["problem"], replies=replies)
        number += 1


def read_kept(directory: Path, begun: Begun) -> PreparedStore | None:
    """What the server had kept for the method in training rounds; None where the method was not prepared for.

    Raises:
        CertificateError: a file cannot be read.
    """
    prepared = begun.settings.preparations().get(begun.method)
    if prepared is None:
        return None
    store = MemoryStore()
    for path in sorted(directory.glob("kept-*.npz")):
        meta, arrays = _unpacked(path)
        store.save(meta["key"], meta["round"], arrays)
    return PreparedStore(options=prepared.options, store=store, next_store=MemoryStore())


def targets_of(problem: Mapping[str, Any]) -> dict[str, Forget]:
    """What each concerned client must forget, of a problem that was read."""
    return {client: Forget.from_json(value) for client, value in problem["targets"].items()}


def list_kept(state_dir: Path) -> list[Path]:
    """The directories of all deletions whose inputs are kept, by name."""
    return sorted(path for path in (state_dir / DIRECTORY).glob("*") if path.is_dir())


def discard(directory: Path) -> bool:
    """Erase one deletion's inputs for good; False where there are none."""
    if not directory.exists():
        return False
    shutil.rmtree(directory)
    sync_directory(directory.parent)
    return True


def _copy_store(store: Store, directory: Path) -> None:
    entries = ((key, number) for key in store.list_keys() for number in store.rounds(key))
    for index, (key, number) in enumerate(entries, start=1):
        content = _packed({"key": key, "round": number}, store.load(key, number))
        write_atomically(directory / f"kept-{index:08d}.npz", content)


def _files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.npz"))


def _exchange_file(number: int) -> str:
    return f"exchange-{number:06d}.npz"


def _problem_to_json(problem: Problem) -> dict[str, Any]:
    return {
        "seed": problem.seed,
        "rounds_trained": problem.rounds_trained,
        "targets": {client: forget.to_json() for client, forget in problem.targets.items()},
        "retained": list(problem.retained),
        "num_examples": dict(problem.num_examples),
        "parameters": problem.parameters.model_dump(mode="json"),
        "round": problem.round,
    }


def _packed(meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Arrays as such, the rest as JSON; no pickle. Equal content gives equal bytes."""
    buffer = io.BytesIO()
    text = np.frombuffer(json.dumps(meta, sort_keys=True).encode(), dtype=np.uint8)
    np.savez(buffer, allow_pickle=False, meta=text, **arrays)
    return buffer.getvalue()


def _unpacked(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        return json.loads(arrays.pop("meta").tobytes()), arrays
    except (OSError, RuntimeError, TypeError, ValueError, EOFError, KeyError, BadZipFile, zlib.error) as exc:
        raise CertificateError(f"{path}, kept for a replay, cannot be read: {exc}") from exc
