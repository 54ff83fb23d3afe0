"""What the hospitals learn: whether a patient has a heart disease, from thirteen columns of a file."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hospitals.patients import NUM_INPUTS, Preprocessing, has_disease, read_patients
from unlearning.errors import DataError
from unlearning.tasks import Examples, Site, Task
from unlearning.tasks.losses import classification_measures, cross_entropy

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
HELD_OUT = 5  # one patient in so many


def make_task(settings: Mapping[str, Any]) -> Task:
    """Return a small network on what `Preprocessing` makes of a patient."""
    hidden = settings["hidden"]
    return Task(
        name="hospitals",
        num_classes=2,
        score_name="accuracy",
        build_model=lambda: nn.Sequential(nn.Linear(NUM_INPUTS, hidden), nn.Tanh(), nn.Linear(hidden, 2)),
        loss=cross_entropy,
        per_example=classification_measures,
    )


def load_site(settings: Mapping[str, Any], node_config: Mapping[str, Any]) -> Site:
    """Return one hospital's patients: of its file, every fifth is held out.

    The node's configuration says which hospital it is, by `hospital` or by `partition-id`, and where its file is, by
    `data-dir`; without that the app's setting `data` or FLOWER_UNLEARNING_DATA does.

    Raises:
        DataError: there is no such hospital, or its file is not there or cannot be read.
    """
    name = str(node_config.get("hospital") or _name_of(int(node_config["partition-id"])))
    path = _directory(settings, node_config) / f"processed.{name}.data"
    patients = read_patients(path)
    rows = np.arange(len(patients))
    is_held_out = rows % HELD_OUT == HELD_OUT - 1  # and stays so when patients are added
    held_out, own = rows[is_held_out], rows[~is_held_out]
    preprocessing = Preprocessing.learnt_from(patients[own])

    def examples(rows: NDArray[np.intp]) -> Examples:
        return Examples(
            torch.from_numpy(preprocessing.apply(patients[rows])).float(),
            torch.from_numpy(has_disease(patients[rows])),
            np.array([f"{name}-{row}" for row in rows], dtype=np.str_),
        )

    return Site(train=examples(own), test=examples(held_out))


def load_test(settings: Mapping[str, Any]) -> Examples | None:
    """Return None: the server has no patients, so each hospital measures on those that it holds out."""
    return None


def _name_of(site: int) -> str:
    if site >= len(HOSPITALS):
        raise DataError(
            f"There is no hospital for partition-id={site}; there are four, 0 to 3: {', '.join(HOSPITALS)}."
        )
    return HOSPITALS[site]


def _directory(settings: Mapping[str, Any], node_config: Mapping[str, Any]) -> Path:
    found = node_config.get("data-dir") or settings["data"] or os.environ.get("FLOWER_UNLEARNING_DATA")
    if not found:
        raise DataError(
            "Nothing says where the patients' files are. Set data-dir in the node's configuration, hospitals.data in "
            "the run's, or FLOWER_UNLEARNING_DATA; the files are the data set Heart Disease of the UCI Machine "
            "Learning Repository, as the README says."
        )
    inner = Path(str(found)) / "heart-disease"
    return inner if inner.is_dir() else Path(str(found))
