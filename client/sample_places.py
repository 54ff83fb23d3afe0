"""Samples that are known by their positions: data whose rows have moved is not trained on once some are forgotten.

An example without an id of its own has its position for one. Where a row is taken out, as a data owner does whose
patient asks for it, all behind it move up, and what was forgotten stands where it may be used. So the state directory
has the number of rows and a hash of the last one, which is another one as soon as rows before it come or go.

    state-dir/sample-places      {"count": n, "last": SHA-256 of row n - 1}
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, uint8

from unlearning.errors import CheckpointError, DataError
from unlearning.runtime.durable_files import write_atomically
from unlearning.runtime.json_codec import from_plain, to_plain
from unlearning.tasks.inputs import each
from unlearning.tasks.task import Examples

PLACES = "sample-places"


@dataclass(frozen=True, slots=True)
class Places:
    """How many rows there are, and the SHA-256 of the last one."""

    count: int
    last: str


def check_places(directory: Path, examples: Examples, *, are_some_forgotten: bool) -> None:
    """Compare `examples` with those that the state directory knows, and take note of them.

    are_some_forgotten: whether samples of this site are to be left out, by their ids.

    Raises:
        DataError: examples without ids have moved since they were last loaded, and some are forgotten.
        CheckpointError: what the state directory knows of them is damaged.
    """
    if not _are_positions(examples):
        return
    path, found = directory / PLACES, _places(examples, len(examples))
    try:
        known = from_plain(Places, json.loads(path.read_bytes()), exactly=True) if path.exists() else found
    except (ValueError, TypeError) as exc:
        raise CheckpointError(
            f"{path} is damaged ({exc}). If no row of the data has moved, remove it."
        ) from exc
    if are_some_forgotten:
        changed = ""
        if len(examples) < known.count:
            changed = f"there were {known.count:,} and are {len(examples):,}"
        elif known != (found if known.count == found.count else _places(examples, known.count)):
            changed = f"number {known.count - 1:,} is another one"
        if changed:
            raise DataError(
                f"This site's samples have no ids but their positions, some are forgotten, and the data has changed: "
                f"{changed}. What was forgotten may stand elsewhere now. Give each example that stays its former "
                f"position as its id (docs/how-to-use-your-own-data.md); if none has moved, remove {path}."
            )
    if not path.exists() or found != known:
        write_atomically(path, json.dumps(to_plain(found)).encode())


def _are_positions(examples: Examples) -> bool:
    return bool(len(examples)) and (examples.ids[0], examples.ids[-1]) == ("0", str(len(examples) - 1))


def _places(examples: Examples, count: int) -> Places:
    inputs, targets = examples.batch(slice(count - 1, count))
    digest = hashlib.sha256()

    def add(one: Tensor) -> Tensor:
        digest.update(one.contiguous().reshape(-1).view(uint8).numpy().data)
        return one

    each(add, inputs)
    add(targets)
    return Places(count, digest.hexdigest())
