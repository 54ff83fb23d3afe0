"""Samples that are known by their positions: where rows have moved, an id may name another one.

An example without an id of its own has its position for one. Where a row is taken out, as a data owner does whose
patient asks for it, all behind it move up: what was forgotten stands where it may be used, and what is asked for is
another patient's. So the state directory has the number of rows and a hash of the last one, which is another one as
soon as rows before it come or go. Then nothing is trained on once some are forgotten, and no sample is forgotten by id.

    state-dir/sample-places      {"count": n, "last": SHA-256 of row n - 1, "moved": what changed since the first use}
"""

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor, device, uint8

from unlearning.errors import CheckpointError, DataError
from unlearning.runtime.devices import drawing
from unlearning.runtime.durable_files import write_atomically
from unlearning.runtime.json_codec import from_plain, to_plain
from unlearning.tasks.inputs import each
from unlearning.tasks.sources import Source
from unlearning.tasks.task import Examples

PLACES = "sample-places"


@dataclass(frozen=True, slots=True)
class Places:
    """How many rows there are, the SHA-256 of the last one, and what has changed since they were first used."""

    count: int
    last: str
    moved: str = ""


def check_places(directory: Path, examples: Examples, *, are_some_forgotten: bool) -> str:
    """Compare `examples` with those that the state directory knows, and take note of them.

    Returns why their ids may not name what they did at first; empty where they do.

    are_some_forgotten: whether samples of this site are to be left out, by their ids.

    Raises:
        DataError: examples without ids have moved since they were first loaded, and some are forgotten.
        CheckpointError: what the state directory knows of them is damaged.
    """
    if not _are_positions(examples):
        return ""
    source = examples.source
    path, found = directory / PLACES, _places(source, len(source))
    try:
        known = from_plain(Places, json.loads(path.read_bytes()), exactly=True) if path.exists() else found
    except (ValueError, TypeError) as exc:
        raise CheckpointError(
            f"{path} is damaged ({exc}). If no row of the data has moved, remove it."
        ) from exc
    if not (moved := known.moved):
        if len(source) < known.count:
            moved = f"there were {known.count:,} and are {len(source):,}"
        elif known != (found if known.count == found.count else _places(source, known.count)):
            moved = f"number {known.count - 1:,} is another one"
    why = moved and (
        f"This site's samples have no ids but their positions, and the data has changed: {moved}. An id may name "
        "another sample now. Give each example that stays its former position as its id "
        f"(docs/how-to-use-your-own-data.md); if none has moved, remove {path}."
    )
    if are_some_forgotten and why:
        raise DataError(why)
    if not path.exists() or known != replace(found, moved=moved):
        write_atomically(path, json.dumps(to_plain(replace(found, moved=moved))).encode())
    return why


def _are_positions(examples: Examples) -> bool:
    """Return whether the first and the last id are positions in what was loaded, of which some may be held out."""
    if not len(examples):
        return False
    where = examples.positions
    ends = (0, len(examples) - 1) if where is None else (where[0], where[-1])
    return (examples.ids[0], examples.ids[-1]) == (str(ends[0]), str(ends[1]))


def _places(source: Source, count: int) -> Places:
    with drawing(0, device("cpu")):  # by which a Dataset crops its pictures, for instance
        inputs, targets = source.read(slice(count - 1, count))
    digest = hashlib.sha256()

    def add(one: Tensor) -> Tensor:
        digest.update(one.contiguous().reshape(-1).view(uint8).numpy().data)
        return one

    each(add, inputs)
    add(targets)
    return Places(count, digest.hexdigest())
