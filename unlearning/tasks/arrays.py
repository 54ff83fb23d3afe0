"""A data set as it is stored, and the step from there to the `Examples` that a model sees.

Pictures stay bytes until a client's part is chosen: CIFAR-10 is 0.15 GB as bytes and 0.6 GB as scaled
floats, and every Flower message starts a process that loads it.
"""

import zipfile
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from unlearning.errors import DataError
from unlearning.tasks.sources import ArraySource, Scaling
from unlearning.tasks.task import Examples


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrays:
    """Examples as stored.

    inputs: (n, ...), pictures with the channels first; bytes 0..255, or numbers that are used as is. Memory-mapped
        ones stay where they are.
    targets: (n,) or (n, height, width), integers.
    ids: (n,), opaque, stable across partitions.
    sites: (n,), the natural owner of each example, or None.
    groups: (n,), examples of one group are never split between training and test; or None.
    """

    inputs: NDArray[Any]
    targets: NDArray[Any]
    ids: NDArray[np.str_]
    sites: NDArray[Any] | None = None
    groups: NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.ids)


def examples(arrays: Arrays, which: NDArray[np.intp], scaling: Scaling) -> Examples:
    """Return the examples at the positions `which`, as tensors that share no memory with `arrays`.

    Memory-mapped arrays are not read: then the examples are these files' and are read batch by batch.
    """
    if isinstance(arrays.inputs, np.memmap):
        return Examples.from_arrays(arrays.inputs, arrays.targets, arrays.ids, scaling).select(which)
    inputs, targets = ArraySource(arrays.inputs, arrays.targets, scaling).read(which)
    return Examples(inputs, targets, arrays.ids[which])


def read_archive(path: Path, keys: Collection[str], layout: str) -> dict[str, NDArray[Any]]:
    """Return the arrays that a `.npz` file holds under `keys`; those that it lacks are left out.

    `layout` is a sentence for the message that says what the file should hold.

    Raises:
        DataError: the file is missing, unreadable, or no archive of plain arrays.
    """
    try:
        # NumPy leaves the file open where it is damaged, so it is opened here. Pickled objects could
        # run code and are refused.
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, NpzFile):
                raise DataError(f"{path} is no .npz archive but a single array. {layout}")
            return {key: archive[key] for key in keys if key in archive.files}
    except FileNotFoundError as exc:
        raise DataError(f"There is no file {path}. {layout}") from exc
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as exc:
        raise DataError(f"{path} is no .npz archive of plain arrays ({exc}). {layout}") from exc
