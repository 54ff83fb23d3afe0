"""The picture data sets, and features of pictures, read from where they are. Nothing is imported before it is needed.

Each function returns one half of a data set: every Flower message starts a process, and a client needs
the training half only. The halves stay in memory, for a simulation runs many clients in one process.
"""

import os
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unlearning.errors import DataError
from unlearning.tasks.arrays import Arrays, read_archive
from unlearning.tasks.task import numbered

DOWNLOAD_VARIABLE = "FLOWER_UNLEARNING_DOWNLOAD"
DIGITS_TEST_SHARE = 0.2
NUCLEI_SITES = 6
CIFAR_FEATURES = Path("cifar10-features", "efficientnet-lite0-128.npz")
NUM_FEATURES = 472


def _digits_of_scikit_learn() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return pixels (1797, 64) in 0..16 and labels (1797,), read from the package's own file.

    `load_digits` reads the same file, but importing it takes a second, in the process of every message.
    """
    package = find_spec("sklearn")
    file = Path(package.origin or "").parent / "datasets/data/digits.csv.gz" if package else Path()
    if not file.is_file():  # another release may keep it elsewhere
        from sklearn.datasets import load_digits

        return load_digits(return_X_y=True)  # type: ignore[no-any-return]
    table = np.loadtxt(file, delimiter=",")
    return table[:, :-1], table[:, -1].astype(np.int64)


@lru_cache(maxsize=1)
def _digits() -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.bool_]]:
    """Return all inputs and labels of scikit-learn's digits, and which examples are the test set."""
    pixels, labels = _digits_of_scikit_learn()
    random = np.random.RandomState(0)
    is_test = np.zeros(len(labels), dtype=np.bool_)
    for label in np.unique(labels):
        members = random.permutation(np.flatnonzero(labels == label))
        is_test[members[: round(DIGITS_TEST_SHARE * len(members))]] = True
    return (pixels / 16).astype(np.float32).reshape(-1, 1, 8, 8), labels.astype(np.int64), is_test


def read_digits(train: bool) -> Arrays:
    """Return four fifths (train) or one fifth of the digits in each class, values 0..1, always the same."""
    inputs, labels, is_test = _digits()
    chosen = ~is_test if train else is_test
    return Arrays(inputs=inputs[chosen], targets=labels[chosen], ids=numbered(len(labels))[chosen])


@lru_cache(maxsize=4)
def read_torchvision(class_name: str, directory: Path, train: bool) -> Arrays:
    """Return one half of a torchvision data set: bytes (n, channels, height, width).

    Raises:
        DataError: the files are not there and may not be downloaded, or are damaged.
    """
    # Only the module of these data sets is needed, but importing it imports all of torchvision.
    from torchvision import datasets

    download = os.environ.get(DOWNLOAD_VARIABLE) == "1"
    try:
        data_set = getattr(datasets, class_name)(str(directory), train=train, download=download)
    except (RuntimeError, OSError) as exc:
        raise DataError(
            f"The data set {class_name} cannot be loaded from {directory} ({exc}). Set the environment "
            f"variable {DOWNLOAD_VARIABLE}=1 to let torchvision download it, or put the files there."
        ) from exc
    return _pictures(np.asarray(data_set.data), np.asarray(data_set.targets), train)


@lru_cache(maxsize=2)
def read_cifar(class_name: str, directory: Path, train: bool) -> Arrays:
    """Return one half of CIFAR10 or CIFAR100, from `cifar10.npz`, `cifar100.npz` where there is one, else
    through torchvision.

    The keys are x_train, x_test (n, 32, 32, 3) uint8 and y_train, y_test.

    Raises:
        DataError: neither can be read.
    """
    path = directory / f"{class_name.lower()}.npz"
    if not path.exists():
        try:
            return read_torchvision(class_name, directory, train)
        except DataError as exc:
            raise DataError(
                f"{exc} A file {path.name} with x_train (n, 32, 32, 3) uint8, y_train, x_test and y_test will do "
                "as well."
            ) from exc
    half = "train" if train else "test"
    content = _npz(path, f"x_{half}", f"y_{half}")
    pictures, labels = content[f"x_{half}"], content[f"y_{half}"].reshape(-1)
    if pictures.dtype != np.uint8 or pictures.shape != (len(labels), 32, 32, 3):
        raise DataError(
            f"{path}: the key 'x_{half}' must be bytes ({len(labels)}, 32, 32, 3), "
            f"got {pictures.dtype} {pictures.shape}."
        )
    return _pictures(pictures, labels, train)


@lru_cache(maxsize=2)
def read_features(directory: Path, train: bool) -> Arrays:
    """Return one half of the features of CIFAR-10's pictures from a frozen network: bytes (n, 472) and labels (n,).

    The file holds 472 features of each picture, in their order; a byte x stands for low + x/255 · (high − low). A model
    gets x/255 − ½, so that no client's data decides a scale: the norm of an input is √472/2 = 10.9 at most, which is
    known without looking at data.

    Raises:
        DataError: the file is missing, damaged, or holds something else.
    """
    half = "train" if train else "test"
    inputs, labels = f"x_{half}", f"y_{half}"
    layout = (
        f"It holds {inputs} (n, {NUM_FEATURES}) uint8 and {labels} (n,); "
        "python -m benchmarks.features makes it from CIFAR-10's pictures."
    )
    path = directory / CIFAR_FEATURES
    content = _npz(path, inputs, labels, layout=layout)
    values, classes = content[inputs], content[labels].reshape(-1)
    if values.dtype != np.uint8 or values.shape != (len(classes), NUM_FEATURES):
        raise DataError(f"{path}: {inputs} is {values.dtype} {values.shape}. {layout}")
    if not (np.issubdtype(classes.dtype, np.integer) and np.isin(classes, np.arange(10)).all()):
        raise DataError(f"{path}: {labels} must be integers from 0 to 9. {layout}")
    return Arrays(inputs=values, targets=classes, ids=numbered(len(classes), "" if train else "test-"))


@lru_cache(maxsize=1)
def read_nuclei(directory: Path) -> Arrays:
    """Return tiles of microscope pictures with nucleus masks, from `nuclei_128.npz`, of the sites 0 to 5.

    The keys are images (n, 128, 128, 3) uint8, masks (n, 128, 128) of 0 and 1, site, image_id. Site 6
    is a rest of several sources and is left out. Tiles of one picture are one group.

    Raises:
        DataError: the file cannot be read.
    """
    path = directory / "nuclei_128.npz"
    content = _npz(path, "images", "masks", "site", "image_id")
    kept = content["site"] < NUCLEI_SITES
    return Arrays(
        inputs=content["images"][kept].transpose(0, 3, 1, 2),
        targets=content["masks"][kept],
        ids=numbered(len(kept))[kept],
        sites=content["site"][kept],
        groups=content["image_id"][kept],
    )


def _pictures(pixels: NDArray[Any], labels: NDArray[Any], train: bool) -> Arrays:
    """Return grey (n, h, w) or coloured (n, h, w, channels) bytes, with the channels put first."""
    inputs = pixels[:, None] if pixels.ndim == 3 else pixels.transpose(0, 3, 1, 2)
    ids = numbered(len(labels), "" if train else "test-")
    return Arrays(inputs=inputs, targets=labels, ids=ids)


def _npz(path: Path, *keys: str, layout: str = "") -> dict[str, NDArray[Any]]:
    layout = layout or f"It needs the keys {', '.join(keys)}."
    content = read_archive(path, keys, layout)
    missing = [key for key in keys if key not in content]
    if missing:
        raise DataError(f"{path} lacks {', '.join(missing)}. {layout}")
    return content
