"""Features of pictures from a frozen network, as bytes: what a head is trained on, and forgets.

`cifar10-features/efficientnet-lite0-128.npz` holds 472 features of each CIFAR-10 picture, in their order;
`python -m benchmarks.features` makes it. A byte x stands for low + x/255 · (high − low).

A model gets x/255 − ½, so that no client's data decides a scale: the norm of an input is √472/2 = 10.9 at most, which
is known without looking at data.
"""

from functools import lru_cache
from pathlib import Path

import numpy as np

from unlearning.errors import DataError
from unlearning.tasks.arrays import Arrays, read_archive
from unlearning.tasks.task import numbered

CIFAR_FEATURES = Path("cifar10-features", "efficientnet-lite0-128.npz")
NUM_FEATURES = 472


@lru_cache(maxsize=2)
def read_features(directory: Path, train: bool) -> Arrays:
    """Return one half of the CIFAR-10 features: bytes (n, 472) and labels (n,).

    Raises:
        DataError: the file is missing, damaged, or holds something else.
    """
    path, half = directory / CIFAR_FEATURES, "train" if train else "test"
    inputs, labels = f"x_{half}", f"y_{half}"
    layout = (
        f"It holds {inputs} (n, {NUM_FEATURES}) uint8 and {labels} (n,); "
        "python -m benchmarks.features makes it from CIFAR-10's pictures."
    )
    content = read_archive(path, (inputs, labels), layout)
    missing = [key for key in (inputs, labels) if key not in content]
    if missing:
        raise DataError(f"{path} lacks {', '.join(missing)}. {layout}")
    values, classes = content[inputs], content[labels].reshape(-1)
    if values.dtype != np.uint8 or values.shape != (len(classes), NUM_FEATURES):
        raise DataError(f"{path}: {inputs} is {values.dtype} {values.shape}. {layout}")
    if not (np.issubdtype(classes.dtype, np.integer) and np.isin(classes, np.arange(10)).all()):
        raise DataError(f"{path}: {labels} must be integers from 0 to 9. {layout}")
    return Arrays(inputs=values, targets=classes, ids=numbered(len(classes), "" if train else "test-"))
