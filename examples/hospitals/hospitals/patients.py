"""A hospital's file, and what the network is given of it: nothing of one hospital is used at another.

The file has 14 comma-separated columns and no header; `?` and -9 are missing values, and so is a blood pressure or
cholesterol of 0. The last column, 0 to 4, is above 0 where the patient has a disease.

Source: Janosi, Steinbrunn, Pfisterer, Detrano, Heart Disease, UCI Machine Learning Repository, 1988.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from unlearning.errors import DataError

Table: TypeAlias = NDArray[np.float64]
"""Patients (n, 14), in the order of `COLUMNS`; NaN where a value is missing."""

COLUMNS = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg"),
    *("thalach", "exang", "oldpeak", "slope", "ca", "thal", "num"),
)
MEASURED = tuple(map(COLUMNS.index, ("age", "trestbps", "chol", "thalach", "oldpeak", "ca")))
YES_OR_NO = tuple(map(COLUMNS.index, ("sex", "fbs", "exang")))
CATEGORIES = {"cp": (1, 2, 3, 4), "restecg": (0, 1, 2), "slope": (1, 2, 3), "thal": (3, 6, 7)}
ZERO_IS_MISSING = tuple(map(COLUMNS.index, ("trestbps", "chol")))
NUM_INPUTS = 2 * len(MEASURED) + len(YES_OR_NO) + sum(map(len, CATEGORIES.values()))


def read_patients(path: Path) -> Table:
    """Return the patients of a file.

    Raises:
        DataError: it is not there, or is no such table; says where the public files come from.
    """
    try:
        table = np.loadtxt(path, delimiter=",", converters=_number, ndmin=2, encoding="ascii")
    except (OSError, ValueError) as exc:
        raise DataError(
            f"{path} cannot be read ({exc}). It is one of processed.cleveland.data, processed.hungarian.data, "
            "processed.switzerland.data and processed.va.data of the data set Heart Disease, which the UCI Machine "
            "Learning Repository gives away; put them into one directory, or each into its hospital's own."
        ) from exc
    if table.shape[1] != len(COLUMNS) or np.isnan(table[:, -1]).any():
        raise DataError(
            f"{path} must have the {len(COLUMNS)} columns {', '.join(COLUMNS)}, the last one never missing; got "
            f"{table.shape[1]} columns."
        )
    for column in ZERO_IS_MISSING:
        table[table[:, column] == 0, column] = np.nan
    return table


def has_disease(patients: Table) -> NDArray[np.int64]:
    """Return the labels (n,), 0 or 1."""
    return (patients[:, -1] > 0).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """What is put in for a missing measurement, and the scale, of one hospital's training patients: (6,) each.

    A hospital that is forgotten takes its numbers with it. Of a single patient who is forgotten a share of 1/n stays in
    the hospital's medians, means and deviations until the patient is taken out of the file.
    """

    median: Table
    mean: Table
    deviation: Table

    @classmethod
    def learnt_from(cls, patients: Table) -> "Preprocessing":
        """Return the numbers of these patients; a column that is missing throughout is 0 in the end."""
        measured = patients[:, MEASURED]
        known = [column[~np.isnan(column)] for column in measured.T]
        median = np.array([np.median(column) if len(column) else 0.0 for column in known])
        filled = np.where(np.isnan(measured), median, measured)
        deviation = filled.std(axis=0)
        return cls(median, filled.mean(axis=0), np.where(deviation > 0, deviation, 1.0))

    def apply(self, patients: Table) -> Table:
        """Return the inputs (n, 28): measurements, whether each is missing, yes (1) or no (−1), and categories."""
        measured = patients[:, MEASURED]
        missing = np.isnan(measured)
        filled = (np.where(missing, self.median, measured) - self.mean) / self.deviation
        answers = np.nan_to_num(2 * patients[:, YES_OR_NO] - 1)
        flags = [
            patients[:, [COLUMNS.index(name)]] == np.array(values) for name, values in CATEGORIES.items()
        ]
        return np.concatenate([filled, missing, answers, *flags], axis=1)


def _number(text: str) -> float:
    return np.nan if text.strip() in ("?", "-9", "-9.0") else float(text)
