"""A user's own data: what is read, and what is refused with the key's name."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.raising import raises
from unlearning.errors import DataError
from unlearning.tasks import TaskSettings, load_server_test, load_site

SETTINGS = TaskSettings(dataset="npz", num_classes=3, input_shape="2", num_clients=2)
SEGMENTATION = TaskSettings(dataset="npz", model="res-unet", num_classes=2, input_shape="1x8x8")


def content() -> dict[str, NDArray[Any]]:
    return {
        "inputs": np.asarray([[1.5, 2], [3, 4], [5, 6], [7, 8]], dtype=np.float32),
        "targets": np.asarray([0, 1, 2, 1]),
        "ids": np.asarray(["anna", "bert", "cleo", "dora"]),
    }


def write(path: Path, **changes: NDArray[Any] | None) -> None:
    np.savez(path, **{key: value for key, value in (content() | changes).items() if value is not None})


@pytest.mark.parametrize(
    ("changes", "inputs", "ids"),
    [
        ({}, content()["inputs"], ["anna", "bert", "cleo", "dora"]),
        ({"inputs": np.full((4, 2), 1 / 3)}, np.full((4, 2), 1 / 3), ["anna", "bert", "cleo", "dora"]),
        (
            {"inputs": np.asarray([[0, 255]] * 4, dtype=np.uint8), "ids": np.asarray([30, 10, 20, 40])},
            np.asarray([[0.0, 1.0]] * 4),
            ["30", "10", "20", "40"],
        ),
    ],
    ids=["single-precision", "double-precision", "bytes-and-integers"],
)
def test_an_own_directory_is_read_as_it_was_written(
    tmp_path: Path, changes: dict[str, NDArray[Any]], inputs: NDArray[Any], ids: list[str]
) -> None:
    """In order, but that bytes are scaled to one and ids are strings; no test.npz, no test examples."""
    write(tmp_path / "train.npz", **changes)
    site = load_site(SETTINGS, 0, tmp_path)
    assert np.array_equal(site.train.inputs.numpy(), inputs)
    assert np.array_equal(site.train.targets.numpy(), content()["targets"])
    assert site.train.ids.tolist() == ids
    assert len(site.test) == 0


def test_an_own_test_file_is_the_sites_test_set(tmp_path: Path) -> None:
    write(tmp_path / "train.npz")
    np.savez(tmp_path / "test.npz", inputs=np.ones((1, 2)), targets=np.asarray([2]))
    test = load_site(SETTINGS, 0, tmp_path).test
    assert test.targets.tolist() == [2]
    assert test.ids.tolist() == ["0"]


def test_a_shared_file_is_partitioned(tmp_path: Path) -> None:
    """data_dir/train.npz is dealt out; data_dir/test.npz is the server's test set."""
    write(tmp_path / "train.npz")
    write(tmp_path / "test.npz")
    settings = replace(SETTINGS, data_dir=str(tmp_path))
    ids = [load_site(settings, client).train.ids.tolist() for client in (0, 1)]
    assert sorted(ids[0] + ids[1]) == ["anna", "bert", "cleo", "dora"]
    assert [len(part) for part in ids] == [2, 2]
    assert len(load_server_test(settings)) == 4


def test_bytes_of_a_known_data_set_are_standardised_with_its_constants(tmp_path: Path) -> None:
    """A client's own Fashion-MNIST pictures look to the model like everybody's."""
    black = np.zeros((4, 1, 28, 28), dtype=np.uint8)
    write(tmp_path / "train.npz", inputs=black)
    settings = TaskSettings(dataset="fashion-mnist", model="lenet")
    inputs = load_site(settings, 0, tmp_path).train.inputs
    assert inputs.unique().tolist() == pytest.approx([-0.2860 / 0.3530])


def test_segmentation_masks_are_read(tmp_path: Path) -> None:
    masks = np.arange(4 * 64).reshape(4, 8, 8) % 2
    np.savez(tmp_path / "train.npz", inputs=np.zeros((4, 1, 8, 8)), targets=masks)
    assert np.array_equal(load_site(SEGMENTATION, 0, tmp_path).train.targets.numpy(), masks)


def test_masks_can_neither_be_dealt_out_by_class_nor_classified(tmp_path: Path) -> None:
    np.savez(tmp_path / "train.npz", inputs=np.zeros((4, 1, 8, 8)), targets=np.zeros((4, 8, 8), dtype=int))
    settings = replace(SEGMENTATION, num_clients=2, partition="dirichlet", data_dir=str(tmp_path))
    with pytest.raises(DataError):
        load_site(settings, 0)
    with raises(DataError, key="targets"):
        load_site(TaskSettings(), 0, tmp_path)


@pytest.mark.parametrize("key", ["inputs", "targets"])
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    write(tmp_path / "train.npz", **{key: None})
    with raises(DataError, key=key):
        load_site(SETTINGS, 0, tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("inputs", np.ones((4, 3))),
        ("inputs", np.ones((0, 2))),
        ("inputs", np.ones(())),
        ("inputs", np.ones((4, 2), dtype=np.int64)),
        ("inputs", np.asarray([[1, np.nan]] * 4)),
        ("targets", np.asarray([0, 1, 2])),
        ("targets", np.zeros((4, 1), dtype=int)),
        ("targets", np.asarray([0.0, 1, 2, 1])),
        ("targets", np.asarray([0, 1, 2, 3])),
        ("targets", np.asarray([0, -1, 2, 1])),
        ("ids", np.asarray(["a", "b", "c"])),
        ("ids", np.asarray([0.5, 1, 2, 3])),
        ("ids", np.asarray(["a", "b", "a", "c"])),
        ("ids", np.asarray(["a", "b", "", "c"])),
        ("ids", np.asarray(["a", "b", "c ", "d"])),
        ("ids", np.asarray(["a", "b", "c\n1", "d"])),
        ("ids", np.asarray(["a", "b", "c" * 201, "d"])),
    ],
)
def test_a_malformed_key_is_named(tmp_path: Path, key: str, value: NDArray[Any]) -> None:
    """The file, the key, what was expected and what came."""
    write(tmp_path / "train.npz", **{key: value})
    with raises(DataError, key=key):
        load_site(SETTINGS, 0, tmp_path)


def test_a_missing_file_says_what_it_should_hold(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        load_site(SETTINGS, 0, tmp_path)


@pytest.mark.parametrize("damage", ["text", "array", "objects", "cut"])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, damage: str) -> None:
    """Text, a bare array, pickled objects (which could run code), half a file."""
    path = tmp_path / "train.npz"
    match damage:
        case "text":
            path.write_text("no archive")
        case "array":
            with path.open("wb") as file:
                np.save(file, np.ones(3))
        case "objects":
            np.savez(path, inputs=np.asarray([{}], dtype=object), targets=np.asarray([0]))
        case "cut":
            write(path)
            path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(DataError):
        load_site(SETTINGS, 0, tmp_path)


def mapped(directory: Path, **changes: NDArray[Any] | None) -> None:
    """The content as a directory of .npy files."""
    directory.mkdir()
    for key, value in {**content(), **changes}.items():
        if value is not None:
            np.save(directory / f"{key}.npy", value)


def test_npy_files_are_read_where_they_lie(tmp_path: Path) -> None:
    """The same examples as from an archive, memory-mapped."""
    settings = replace(SETTINGS, dataset="npy")
    write(tmp_path / "train.npz")
    mapped(tmp_path / "train")
    mapped(tmp_path / "test", inputs=content()["inputs"][:1], targets=content()["targets"][:1], ids=None)
    archive, files = load_site(SETTINGS, 0, tmp_path), load_site(settings, 0, tmp_path)
    assert torch.equal(files.train.inputs, archive.train.inputs)
    assert torch.equal(files.train.targets, archive.train.targets)
    assert files.train.ids.tolist() == archive.train.ids.tolist()
    assert files.test.ids.tolist() == ["0"]
    base = files.train.source.inputs
    assert isinstance(base, np.memmap) or isinstance(base.base, np.memmap)


def test_a_missing_or_damaged_npy_file_is_refused_by_name(tmp_path: Path) -> None:
    """With what a directory must hold; ids are optional."""
    settings = replace(SETTINGS, dataset="npy")
    with pytest.raises(DataError):
        load_site(settings, 0, tmp_path)
    mapped(tmp_path / "train", ids=None, targets=content()["targets"] + 99)
    with raises(DataError, key="targets"):
        load_site(settings, 0, tmp_path)
    (tmp_path / "train" / "inputs.npy").write_bytes(b"nonsense")
    with pytest.raises(DataError):
        load_site(settings, 0, tmp_path)
