"""A data set as it is stored, and the step from there to the `Examples` that a model sees.

Pictures stay bytes until a client's part is chosen: CIFAR-10 is 0.15 GB as bytes and 0.6 GB as scaled
floats, and every Flower message starts a process that loads it.
"""

import zipfile
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from unlearning.errors import DataError
from unlearning.tasks.task import Examples


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrays:
    """Examples as stored.

    inputs: (n, ...), pictures with the channels first; bytes 0..255, or numbers that are used as is.
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


@dataclass(frozen=True, slots=True)
class Scaling:
    """Per-channel mean and standard deviation of pixel values in 0..1; none leaves them in 0..1."""

    mean: Sequence[float] = ()
    std: Sequence[float] = ()

    def apply(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return bytes (n, channels, height, width), or (n, features), as standardised floats of the same shape."""
        scaled = pixels.astype(np.float32) / np.float32(255)
        if self.mean:
            each = (-1, *[1] * (pixels.ndim - 2))
            scaled -= np.asarray(self.mean, np.float32).reshape(each)
            scaled /= np.asarray(self.std, np.float32).reshape(each)
        return scaled


def index_ids(count: int, prefix: str = "") -> NDArray[np.str_]:
    """Return the ids "0", "1", ... with a prefix: an example's position in the original set."""
    return np.asarray([f"{prefix}{index}" for index in range(count)], dtype=np.str_)


def examples(arrays: Arrays, which: NDArray[np.intp], scaling: Scaling) -> Examples:
    """Return the examples at the positions `which`, as tensors that share no memory with `arrays`."""
    inputs = arrays.inputs[which]
    if inputs.dtype == np.uint8:
        inputs = scaling.apply(inputs)
    elif inputs.dtype != np.float64:
        inputs = inputs.astype(np.float32)
    targets = arrays.targets[which].astype(np.int64)
    return Examples(
        torch.from_numpy(np.ascontiguousarray(inputs)), torch.from_numpy(targets), arrays.ids[which]
    )


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
