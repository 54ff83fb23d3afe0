"""Checkpoints: the whole state of the live federation in one file, atomic and content-hashed.

A file is named `SEQUENCE-TOKEN-HASH.npz`. TOKEN is the fencing token of the process that wrote it, HASH
the first 16 hex digits of the file's SHA-256. The newest one by (token, sequence) counts; a file whose
content is not what its name says is passed over with a warning.
"""

import hashlib
import io
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from server.federation.state import ActiveDeletion, Before, FederationState, Phase, PhaseCost
from unlearning.durable_files import make_private, sync_directory, write_atomically
from unlearning.errors import CheckpointError, DataError
from unlearning.methods.costs import WorkDone
from unlearning.methods.method import UnlearningState
from unlearning.requests import Exclusions, Target
from unlearning.verification.measurement import Measurement
from unlearning.verification.observations import Outputs
from unlearning.verification.shadow_models import ShadowFits

_log = getLogger(__name__)
_NAME = re.compile(r"(\d{10})-(\d{6})-([0-9a-f]{16})\.npz")
VERSION = 1


@dataclass(frozen=True, slots=True, order=True)
class _Entry:
    token: int
    sequence: int
    digest: str
    path: Path


class CheckpointStore:
    """The checkpoints in one directory; `keep` of them are kept."""

    def __init__(self, directory: Path, *, keep: int = 3) -> None:
        self._directory = directory
        self._keep = keep
        make_private(directory)

    def save(self, state: FederationState, *, token: int) -> Path:
        """Write `state`; when this returns it survives a crash."""
        entries = self._entries()
        sequence = max((entry.sequence for entry in entries), default=0) + 1
        content = encode(state)
        digest = hashlib.sha256(content).hexdigest()[:16]
        path = self._directory / f"{sequence:010d}-{token:06d}-{digest}.npz"
        write_atomically(path, content)
        for entry in sorted(self._entries())[: -self._keep]:
            entry.path.unlink(missing_ok=True)
        return path

    def newest(self) -> FederationState | None:
        """The newest readable state, or None if there is none at all.

        Raises:
            CheckpointError: there are checkpoints and none can be read.
        """
        entries = sorted(self._entries(), reverse=True)
        for entry in entries:
            try:
                return self._read(entry)
            except CheckpointError as exc:
                _log.error("%s", exc)
        if entries:
            raise CheckpointError(
                f"None of the {len(entries)} checkpoints in {self._directory} can be read. "
                "Restore the directory from a backup."
            )
        return None

    def newest_file(self) -> Path | None:
        """Where the newest state lies, read or not."""
        return max(self._entries()).path if self._entries() else None

    def erase_older(self) -> int:
        """Erase all but the newest; older ones still carry what was forgotten. Returns how many."""
        old = sorted(self._entries())[:-1]
        for entry in old:
            entry.path.unlink(missing_ok=True)
        sync_directory(self._directory)
        return len(old)

    def _read(self, entry: _Entry) -> FederationState:
        content = entry.path.read_bytes()
        if hashlib.sha256(content).hexdigest()[:16] != entry.digest:
            raise CheckpointError(f"{entry.path} is damaged: its content is not what its name says.")
        return decode(content)

    def _entries(self) -> list[_Entry]:
        found = []
        for path in self._directory.glob("*.npz"):
            match = _NAME.fullmatch(path.name)
            if match:
                found.append(_Entry(int(match[2]), int(match[1]), match[3], path))
        return found


def encode(state: FederationState) -> bytes:
    """A state as the bytes of an .npz file: arrays as such, everything else as JSON. No pickle."""
    arrays: dict[str, NDArray[Any]] = {"parameters": state.parameters}
    meta: dict[str, Any] = {
        "version": VERSION,
        "round": state.round,
        "training_rounds": state.training_rounds,
        "phase": str(state.phase),
        "exclusions": state.exclusions.to_json(),
        "is_resting": state.is_resting,
        "num_examples": dict(state.num_examples),
        "prepared_since": dict(state.prepared_since),
        "generations": dict(state.generations),
        "event_sequence": state.event_sequence,
        "batch": _batch_to_json(state.deletion, arrays) if state.deletion is not None else None,
    }
    text = json.dumps(meta, sort_keys=True).encode()
    arrays["meta"] = np.frombuffer(text, dtype=np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def decode(content: bytes) -> FederationState:
    """The inverse of `encode`.

    Raises:
        CheckpointError: the bytes are no checkpoint of a version that is known here.
    """
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        meta = json.loads(arrays.pop("meta").tobytes())
        if meta["version"] != VERSION:
            raise CheckpointError(
                f"The checkpoint is of version {meta['version']}, this program reads version {VERSION}."
            )
        return FederationState(
            parameters=arrays["parameters"],
            round=meta["round"],
            training_rounds=meta["training_rounds"],
            phase=Phase(meta["phase"]),
            exclusions=Exclusions.from_json(meta["exclusions"]),
            is_resting=meta["is_resting"],
            num_examples=meta["num_examples"],
            prepared_since=meta.get("prepared_since", {}),
            generations=meta.get("generations", {}),
            event_sequence=meta["event_sequence"],
            deletion=_batch_from_json(meta["batch"], arrays) if meta["batch"] is not None else None,
        )
    except (KeyError, ValueError, OSError, EOFError, DataError) as exc:
        raise CheckpointError(f"Not a checkpoint: {type(exc).__name__}: {exc}") from exc


_COSTS = ("unlearning_cost", "recovery_cost", "measuring_cost", "shadow_cost")


def _batch_to_json(batch: ActiveDeletion, arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
    method = batch.method_state
    state = None
    if method is not None:
        arrays["method.parameters"] = method.parameters
        arrays |= {f"method.arrays.{name}": value for name, value in method.arrays.items()}
        state = {
            "exchanges": method.exchanges,
            "finished": method.finished,
            "values": dict(method.values),
            "findings": dict(method.findings),
            "work": asdict(method.work),
        }
    if batch.before is not None:
        arrays["model_before"] = batch.before.parameters
    for name, outputs in batch.outputs_before.items():
        arrays[f"before.handles.{name}"] = outputs.handles
        arrays[f"before.posteriors.{name}"] = outputs.posteriors
    for name, fits in (batch.shadow_fits or {}).items():
        arrays |= {f"shadow.{name}.{key}": array for key, array in fits.to_arrays().items()}
    plain = asdict(
        replace(
            batch,
            method_state=None,
            measurements={},
            targets=(),
            outputs_before={},
            shadow_fits=None,
            before=None,
        )
    )
    return {
        **plain,
        "method_state": state,
        "before": None if batch.before is None else _before_to_json(batch.before),
        "shadow_fits": None if batch.shadow_fits is None else sorted(batch.shadow_fits),
        "targets": [target.to_json() for target in batch.targets],
        "measurements": {
            request_id: [measurement.to_json() for measurement in measurements]
            for request_id, measurements in batch.measurements.items()
        },
    }


def _batch_from_json(value: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> ActiveDeletion:
    fields = dict(value)
    state = fields.pop("method_state")
    if state is not None:
        prefix = "method.arrays."
        state = UnlearningState(
            parameters=arrays["method.parameters"],
            arrays={
                name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)
            },
            **{**state, "work": WorkDone(**state.get("work", {}))},
        )
    # a checkpoint of an earlier version knows of no shadow models, and of no model to go back to
    if fields.get("before") is not None:
        fields["before"] = Before(parameters=arrays["model_before"], **fields["before"])
    fields["work"] = WorkDone(**fields.get("work", {}))
    fields |= {name: PhaseCost.from_json(fields.get(name, {})) for name in _COSTS}
    shadowed = fields.get("shadow_fits")
    try:
        fields["shadow_fits"] = (
            None if shadowed is None else {name: _fits_from_arrays(name, arrays) for name in shadowed}
        )
    except (
        DataError
    ) as exc:  # of an earlier version; the deletion goes on without LiRA, and its report says why
        fields |= {"shadow_fits": None, "shadow_notes": {**fields.get("shadow_notes", {}), "": str(exc)}}
    fields["request_ids"] = tuple(fields["request_ids"])
    fields["participants"] = tuple(fields["participants"])
    fields["targets"] = tuple(Target.from_json(item) for item in fields["targets"])
    fields["measurements"] = {
        request_id: tuple(Measurement.from_json(item) for item in items)
        for request_id, items in fields["measurements"].items()
    }
    prefix = "before.handles."
    fields["outputs_before"] = {
        (name := key.removeprefix(prefix)): Outputs(array, arrays[f"before.posteriors.{name}"])
        for key, array in arrays.items()
        if key.startswith(prefix)
    }
    return ActiveDeletion(method_state=state, **fields)


def _before_to_json(before: Before) -> dict[str, Any]:
    return {
        "num_examples": dict(before.num_examples),
        "prepared_since": dict(before.prepared_since),
        "generations": dict(before.generations),
    }


def _fits_from_arrays(name: str, arrays: Mapping[str, NDArray[Any]]) -> ShadowFits:
    prefix = f"shadow.{name}."
    return ShadowFits.from_arrays(
        {key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)}
    )
