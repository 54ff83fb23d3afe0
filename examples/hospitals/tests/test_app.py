"""The hospitals learn and forget one of them, on made-up patients; on the public files where they are."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hospitals.client_app import app as client_app
from hospitals.made_up import write_hospitals, write_patients
from hospitals.patients import COLUMNS, MEASURED, Preprocessing, read_patients
from hospitals.server_app import app as server_app
from hospitals.task import HOSPITALS, load_site
from strategies.in_process_grid import read_run_config, run_apps
from unlearning.errors import DataError

APP = Path(__file__).parents[1]
PUBLIC = Path(os.environ.get("FLOWER_UNLEARNING_DATA", "/nowhere"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Made-up patients of four hospitals, of which the first records no blood pressure."""
    write_hospitals(tmp_path)
    return tmp_path


def forget(data: Path, state: Path, method: str) -> dict[str, Any]:
    """Let the third hospital leave after half of the rounds; return the report."""
    changes = {
        "hospitals.data": str(data),
        "state-dir": str(state),
        "rounds": 12,
        "requests": f"at=6 client=2 method={method}",
    }
    run_apps(server_app, client_app, read_run_config(APP, changes), num_clients=4)
    (path,) = state.glob("reports/*/report.json")
    return dict(json.loads(path.read_text(encoding="utf-8")))


def check(report: dict[str, Any], least: float) -> None:
    """The others keep what they have learnt, by the patients that they hold out."""
    assert report["federation"]["clients_retained"] == ["0", "1", "3"]
    scores = [one["test"]["score"] for one in report["measurements"]]
    assert scores[0] > least
    assert scores[-1] > least


def test_a_hospital_is_forgotten(data: Path, tmp_path: Path) -> None:
    """On made-up patients."""
    check(forget(data, tmp_path / "state", "puf-special"), 0.8)


@pytest.mark.skipif(
    not (PUBLIC / "heart-disease").is_dir(),
    reason="FLOWER_UNLEARNING_DATA names no directory with heart-disease/",
)
def test_a_real_hospital_is_forgotten(tmp_path: Path) -> None:
    """On the public files."""
    check(forget(PUBLIC, tmp_path, "newton-cg"), 0.7)


def test_nothing_of_one_hospital_is_used_at_another(data: Path) -> None:
    """Nor of the patients that are held out: their values may change as they like."""
    site = load_site({"data": str(data)}, {"partition-id": 1})
    for name in HOSPITALS:
        if name != "hungarian":
            write_patients(data / f"processed.{name}.data", 30, seed=99)
    path = data / "processed.hungarian.data"
    rows = path.read_text(encoding="ascii").splitlines()
    held_out = {int(one.removeprefix("hungarian-")) for one in site.test.ids}
    changed = [
        ",".join(["99", *row.split(",")[1:]]) if at in held_out else row for at, row in enumerate(rows)
    ]
    path.write_text("\n".join(changed) + "\n", encoding="ascii")
    again = load_site({"data": str(data)}, {"partition-id": 1})
    assert np.array_equal(again.train.inputs, site.train.inputs)
    assert not np.array_equal(again.test.inputs, site.test.inputs)


def test_what_is_missing_is_the_hospitals_own_median_and_is_told(data: Path) -> None:
    """A column that is missing throughout is 0; the others have mean 0 and deviation 1."""
    patients = read_patients(data / "processed.cleveland.data")
    inputs = Preprocessing.learnt_from(patients).apply(patients)
    pressure, cholesterol = MEASURED.index(COLUMNS.index("trestbps")), MEASURED.index(COLUMNS.index("chol"))
    assert (inputs[:, pressure] == 0).all()
    assert (inputs[:, 6 + pressure] == 1).all()
    missing = inputs[:, 6 + cholesterol] == 1
    assert 0 < missing.sum() < len(patients)
    assert len(set(inputs[missing, cholesterol])) == 1
    np.testing.assert_allclose(inputs[:, [0, cholesterol]].mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(inputs[:, [0, cholesterol]].std(axis=0), 1)


def test_without_the_files_it_says_where_they_come_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether nothing names a directory or the file is not in it."""
    monkeypatch.delenv("FLOWER_UNLEARNING_DATA", raising=False)
    for directory in ("", str(tmp_path)):
        with pytest.raises(DataError, match="UCI Machine"):
            load_site({"data": directory}, {"partition-id": 0})
    with pytest.raises(DataError, match="There is no hospital for partition-id=4"):
        load_site({"data": str(tmp_path)}, {"partition-id": 4})


def test_a_file_that_is_no_such_table_is_refused(tmp_path: Path) -> None:
    """A word among the numbers, or a column too few."""
    path = tmp_path / "processed.va.data"
    for line in (",".join(["63"] * 13 + ["ill"]), ",".join(["63"] * 13)):
        path.write_text(f"{line}\n", encoding="ascii")
        with pytest.raises(DataError, match=r"processed\.va\.data"):
            read_patients(path)
