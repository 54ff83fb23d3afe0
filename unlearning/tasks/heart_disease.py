"""The UCI heart disease data: four hospitals, 920 patients, a federation by nature.

Each hospital's file has 14 comma-separated columns and no header; `?` or -9 is a missing value. The
label is whether the last column, 0 to 4, is above 0. A patient's id is the hospital and the line,
from 0: "cleveland-17".

The 22 inputs use fixed constants, so no hospital needs another one's numbers:

- measurements: (value − centre) / scale with the round numbers below; a missing one is 0, the centre.
  A blood pressure or cholesterol of 0 is a missing one (Switzerland records no cholesterol).
- yes/no: +1 or −1; a missing one is 0.
- categories: one input a value, 0 or 1; a missing one is 0 everywhere.

Source: Janosi, Steinbrunn, Pfisterer, Detrano, Heart Disease, UCI Machine Learning Repository, 1988.
"""

import csv
import math
from pathlib import Path
from typing import TypeAlias

import numpy as np

from unlearning.errors import DataError
from unlearning.tasks.arrays import Arrays

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
COLUMNS = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg"),
    *("thalach", "exang", "oldpeak", "slope", "ca", "thal", "num"),
)
MEASUREMENTS = {  # centre, scale
    "age": (55.0, 10.0),  # years
    "trestbps": (130.0, 20.0),  # resting blood pressure, mmHg
    "chol": (240.0, 60.0),  # serum cholesterol, mg/dl
    "thalach": (140.0, 25.0),  # highest heart rate reached, 1/min
    "oldpeak": (1.0, 1.0),  # ST depression under exercise, mm
    "ca": (1.0, 1.0),  # major vessels coloured, 0 to 3
}
ZERO_IS_MISSING = frozenset({"trestbps", "chol"})
YES_OR_NO = ("sex", "fbs", "exang")
CATEGORIES = {"cp": (1, 2, 3, 4), "restecg": (0, 1, 2), "slope": (1, 2, 3), "thal": (3, 6, 7)}
NUM_INPUTS = len(MEASUREMENTS) + len(YES_OR_NO) + sum(map(len, CATEGORIES.values()))

Patient: TypeAlias = dict[str, float]


def read_hospitals(directory: Path) -> Arrays:
    """Return all four hospitals; `sites` are their positions in `HOSPITALS`.

    Raises:
        DataError: a file is missing or malformed.
    """
    parts = [
        read_hospital(directory / "heart-disease" / f"processed.{name}.data", site)
        for site, name in enumerate(HOSPITALS)
    ]
    return Arrays(
        inputs=np.concatenate([part.inputs for part in parts]),
        targets=np.concatenate([part.targets for part in parts]),
        ids=np.concatenate([part.ids for part in parts]),
        sites=np.concatenate([part.sites for part in parts if part.sites is not None]),
    )


def read_own_hospital(directory: Path) -> Arrays:
    """Return the one `.data` file in a hospital's own directory.

    Raises:
        DataError: there is none or more than one, or it is malformed.
    """
    files = sorted(directory.glob("*.data"))
    if len(files) != 1:
        found = ", ".join(file.name for file in files) or "none"
        raise DataError(
            f"{directory} must hold exactly one file *.data with this hospital's patients, got {found}."
        )
    return read_hospital(files[0], site=0)


def read_hospital(path: Path, site: int) -> Arrays:
    """Return one hospital's patients, all of the given site.

    Raises:
        DataError: the file is missing or malformed; names the line and the column.
    """
    try:
        with path.open(newline="", encoding="ascii") as file:
            rows = [row for row in csv.reader(file) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as exc:
        raise DataError(
            f"{path} cannot be read ({exc}). Get the heart disease data from the UCI Machine Learning "
            "Repository and put its processed.*.data files there."
        ) from exc
    if not rows:
        raise DataError(f"{path} holds no patient.")
    patients = [_patient(row, f"{path}, line {number}") for number, row in enumerate(rows, start=1)]
    hospital = path.stem.removeprefix("processed.")
    return Arrays(
        inputs=np.asarray([_inputs(patient) for patient in patients], dtype=np.float32),
        targets=np.asarray([patient["num"] > 0 for patient in patients], dtype=np.int64),
        ids=np.asarray([f"{hospital}-{index}" for index in range(len(rows))], dtype=np.str_),
        sites=np.full(len(rows), site),
    )


def _patient(row: list[str], where: str) -> Patient:
    """Return the values of a row by column, NaN where missing."""
    if len(row) != len(COLUMNS):
        raise DataError(
            f"{where}: there must be {len(COLUMNS)} columns ({', '.join(COLUMNS)}), got {len(row)}."
        )
    patient = {column: _value(column, text.strip(), where) for column, text in zip(COLUMNS, row, strict=True)}
    if math.isnan(patient["num"]):
        raise DataError(f"{where}: the diagnosis (num, the last column) is missing; leave the patient out.")
    return patient


def _value(column: str, text: str, where: str) -> float:
    if text in ("?", "-9", "-9.0"):
        return math.nan
    allowed: tuple[int, ...] = (0, 1) if column in YES_OR_NO else CATEGORIES.get(column, ())
    if column == "num":
        allowed = (0, 1, 2, 3, 4)
    try:
        value = float(text)
    except ValueError as exc:
        raise DataError(f"{where}: {column} must be a number or ?, got {text!r}.") from exc
    if not math.isfinite(value) or (allowed and value not in allowed):
        listed = ", ".join(map(str, allowed)) or "a finite number"
        raise DataError(f"{where}: {column} must be {listed} or ?, got {text!r}.")
    return math.nan if column in ZERO_IS_MISSING and value == 0 else value


def _inputs(patient: Patient) -> list[float]:
    measurements = [(patient[column] - centre) / scale for column, (centre, scale) in MEASUREMENTS.items()]
    signs = [2 * patient[column] - 1 for column in YES_OR_NO]
    numbers = [0.0 if math.isnan(value) else value for value in measurements + signs]
    flags = [float(patient[column] == value) for column, values in CATEGORIES.items() for value in values]
    return numbers + flags
