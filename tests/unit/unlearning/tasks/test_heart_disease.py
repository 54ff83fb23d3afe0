"""The heart disease files: the inputs by hand, and what is refused."""

from pathlib import Path

import numpy as np
import pytest

from unlearning.errors import DataError
from unlearning.tasks import TaskSettings, load_site
from unlearning.tasks.heart_disease import NUM_INPUTS, read_hospital

COMPLETE = "65,1,4,150,300,0,2,115,1,2,3,0,7,2"
GAPS = "55,?,1,0,0,?,?,?,-9,?,?,?,?,0"
SETTINGS = TaskSettings(dataset="heart-disease", partition="natural", num_clients=4)


def written(directory: Path, *rows: str) -> Path:
    path = directory / "processed.ulm.data"
    path.write_text("\n".join(rows) + "\n")
    return path


def test_a_complete_patient_by_hand(tmp_path: Path) -> None:
    """Six measurements, three signs, then one flag for each category; the label is num > 0."""
    arrays = read_hospital(written(tmp_path, COMPLETE), site=2)
    measurements = [1.0, 1.0, 1.0, -1.0, 1.0, -1.0]
    signs = [1.0, -1.0, 1.0]
    flags = [0, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 1]
    assert arrays.inputs.tolist() == [measurements + signs + flags]
    assert arrays.targets.tolist() == [1]
    assert arrays.ids.tolist() == ["ulm-0"]
    assert arrays.sites.tolist() == [2]


def test_what_is_missing_is_zero(tmp_path: Path) -> None:
    """`?`, -9, and a blood pressure or cholesterol of 0 say nothing either way."""
    arrays = read_hospital(written(tmp_path, GAPS), site=0)
    expected = np.zeros(NUM_INPUTS)
    expected[9] = 1  # chest pain of type 1 is known; an age of 55 is the centre
    assert arrays.inputs.tolist() == [expected.tolist()]
    assert arrays.targets.tolist() == [0]


def test_a_hospital_can_be_given_its_own_file(tmp_path: Path) -> None:
    """A fifth is held out, the same at every start; nobody is on both sides."""
    written(tmp_path, *[COMPLETE] * 10)
    site, again = load_site(SETTINGS, 3, tmp_path), load_site(SETTINGS, 0, tmp_path)
    assert len(site.test) == 2
    assert sorted(site.train.ids.tolist() + site.test.ids.tolist()) == [f"ulm-{i}" for i in range(10)]
    assert site.test.ids.tolist() == again.test.ids.tolist()


@pytest.mark.parametrize(
    "row",
    [
        COMPLETE + ",1",
        COMPLETE.replace("150", "high"),
        COMPLETE.replace("150", "inf"),
        COMPLETE.replace(",7,", ",5,"),
        COMPLETE.replace("65,1", "65,2"),
        COMPLETE[:-1] + "5",
        COMPLETE[:-1] + "?",
    ],
)
def test_a_malformed_patient_is_named(tmp_path: Path, row: str) -> None:
    """File, line and column."""
    with pytest.raises(DataError):
        read_hospital(written(tmp_path, COMPLETE, row), site=0)


def test_an_empty_or_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        read_hospital(written(tmp_path, ""), site=0)
    with pytest.raises(DataError):
        read_hospital(tmp_path / "none.data", site=0)


def test_two_files_in_an_own_directory_are_refused(tmp_path: Path) -> None:
    written(tmp_path, COMPLETE)
    (tmp_path / "old.data").write_text(COMPLETE)
    with pytest.raises(DataError):
        load_site(SETTINGS, 0, tmp_path)
