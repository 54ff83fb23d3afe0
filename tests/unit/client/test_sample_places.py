"""Samples without ids: what moves is noticed before anything is trained on it."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from client.sample_places import PLACES, check_places
from tests.raising import raises
from unlearning.errors import CheckpointError, DataError
from unlearning.tasks.task import Examples, numbered

ROWS = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
LABELS = np.arange(9) % 2


def data(*kept: int, ids: bool = False, dtype: torch.dtype = torch.float32) -> Examples:
    where = list(kept)
    names = np.asarray([str(place) for place in where]) if ids else numbered(len(where))
    return Examples(torch.from_numpy(ROWS[where]).to(dtype), torch.from_numpy(LABELS[where]), names)


ALL = range(8)
MOVED = {
    "a row went": [0, 1, 2, 4, 5, 6, 7],
    "a row went and one came": [0, 1, 2, 4, 5, 6, 7, 8],
    "a row went and two came": [0, 1, 2, 4, 5, 6, 7, 8, 8],
    "a row was put in": [0, 8, 1, 2, 3, 4, 5, 6, 7],
    "another order": [7, 6, 5, 4, 3, 2, 1, 0],
}


@pytest.mark.parametrize("what", MOVED)
def test_rows_that_moved_are_refused_once_some_are_forgotten(tmp_path: Path, what: str) -> None:
    """Before, nothing depends on where they stand; and the refusal stays until it is mended."""
    check_places(tmp_path, data(*ALL), are_some_forgotten=False)
    for _ in range(2):
        with pytest.raises(DataError, match="its former position as its id"):
            check_places(tmp_path, data(*MOVED[what]), are_some_forgotten=True)
    check_places(tmp_path, data(*ALL), are_some_forgotten=True)
    check_places(tmp_path, data(*MOVED[what]), are_some_forgotten=False)


@pytest.mark.parametrize("what", MOVED)
def test_a_split_is_watched_by_all_that_was_loaded(tmp_path: Path, what: str) -> None:
    """By a fixed seed: its ids are positions in the file, of which the last row may be held out."""

    def split(*kept: int) -> Examples:
        return data(*kept).select(np.random.default_rng(1).permutation(len(kept))[:5])

    assert not check_places(tmp_path, split(*ALL), are_some_forgotten=True)
    assert not check_places(tmp_path, split(*ALL), are_some_forgotten=True)
    assert check_places(tmp_path, split(*MOVED[what]), are_some_forgotten=False)


@pytest.mark.parametrize("what", MOVED)
def test_rows_that_moved_are_remembered(tmp_path: Path, what: str) -> None:
    """An id that was written down before would name another row until the file is removed."""
    assert check_places(tmp_path, data(*ALL), are_some_forgotten=False) == ""
    for kept in (MOVED[what], ALL, [*ALL, 8]):
        assert "may name another sample" in check_places(tmp_path, data(*kept), are_some_forgotten=False)
    with pytest.raises(DataError):
        check_places(tmp_path, data(*ALL), are_some_forgotten=True)
    (tmp_path / PLACES).unlink()
    assert check_places(tmp_path, data(*ALL), are_some_forgotten=True) == ""


def test_the_file_of_an_earlier_program_is_read(tmp_path: Path) -> None:
    """It had no word of what has moved."""
    check_places(tmp_path, data(*ALL), are_some_forgotten=True)
    known = json.loads((tmp_path / PLACES).read_text())
    del known["moved"]
    (tmp_path / PLACES).write_text(json.dumps(known))
    assert check_places(tmp_path, data(*ALL), are_some_forgotten=True) == ""


class Cropped:
    """A Dataset that returns a row with other random numbers each time."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, place: int) -> tuple[torch.Tensor, int]:
        return torch.rand(2) + np.random.rand() + random.random(), place


def test_what_a_dataset_draws_is_no_move(tmp_path: Path) -> None:
    for seed in (1, 2):
        torch.manual_seed(seed)
        assert check_places(tmp_path, Examples.from_dataset(Cropped()), are_some_forgotten=True) == ""


def test_what_stays_where_it_was_is_no_problem(tmp_path: Path) -> None:
    """Rows at the end, the same once more, ids that keep what was; and the file can be removed."""
    for kept in (ALL, [*ALL, 8], [*ALL, 8]):
        check_places(tmp_path, data(*kept), are_some_forgotten=True)
    check_places(tmp_path, data(0, 1, 2, 4, 5, ids=True), are_some_forgotten=True)
    with pytest.raises(DataError):
        check_places(tmp_path, data(*ALL), are_some_forgotten=True)
    (tmp_path / PLACES).unlink()
    check_places(tmp_path, data(*ALL), are_some_forgotten=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
def test_rows_are_told_apart_in_every_type(tmp_path: Path, dtype: torch.dtype) -> None:
    """By their bytes, and their targets'."""
    check_places(tmp_path, data(*ALL, dtype=dtype), are_some_forgotten=True)
    check_places(tmp_path, data(*ALL, dtype=dtype), are_some_forgotten=True)
    others = data(*ALL, dtype=dtype).with_targets(
        torch.ones(8, dtype=torch.int64) - torch.from_numpy(LABELS[:8])
    )
    with pytest.raises(DataError):
        check_places(tmp_path, others, are_some_forgotten=True)


def test_inputs_by_name_and_a_single_row_have_places_too(tmp_path: Path) -> None:
    """No row has none."""
    one = Examples({"a": torch.ones(1, 2), "b": torch.zeros(1)}, torch.ones(1), numbered(1))
    check_places(tmp_path, one, are_some_forgotten=True)
    other = Examples({"a": torch.ones(1, 2), "b": torch.ones(1)}, torch.ones(1), numbered(1))
    with pytest.raises(DataError):
        check_places(tmp_path, other, are_some_forgotten=True)
    check_places(tmp_path, data(), are_some_forgotten=True)


@pytest.mark.parametrize("content", ["", "{}", '{"count": "8", "last": ""}', "[1]"])
def test_a_damaged_file_is_named(tmp_path: Path, content: str) -> None:
    """Who passes over it may train on what was forgotten."""
    (tmp_path / PLACES).write_text(content)
    with raises(CheckpointError):
        check_places(tmp_path, data(*ALL), are_some_forgotten=True)
