"""The data sets that are not embedded, where FLOWER_UNLEARNING_DATA names a directory with them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.tasks import data_directory
from unlearning.errors import DataError
from unlearning.tasks import TaskSettings, load_server_test, load_site
from unlearning.tasks.arrays import Arrays
from unlearning.tasks.datasets import DATASETS
from unlearning.tasks.images import DOWNLOAD_VARIABLE, read_cifar, read_torchvision


@pytest.mark.parametrize(
    ("name", "path", "num_train"),
    [
        ("mnist", "MNIST", 60_000),
        ("fashion-mnist", "FashionMNIST", 60_000),
        ("cifar10", "cifar10.npz", 50_000),
    ],
)
def test_pictures_are_complete_and_standardised(name: str, path: str, num_train: int) -> None:
    """With one client: all pictures, per-channel mean 0 and deviation 1, 10,000 for the server."""
    data_directory(path)
    settings = TaskSettings(dataset=name, num_clients=1)
    train = load_site(settings, 0).train
    info = DATASETS[name]
    assert train.inputs.shape == (num_train, *info.input_shape)
    assert train.inputs.mean(dim=(0, 2, 3)).tolist() == pytest.approx([0] * info.input_shape[0], abs=2e-3)
    assert train.inputs.std(dim=(0, 2, 3)).tolist() == pytest.approx([1] * info.input_shape[0], abs=2e-3)
    assert np.bincount(train.targets.numpy()).min() > num_train / 12
    assert train.ids[17] == "17"
    assert len(load_server_test(settings)) == 10_000


def test_the_first_fashion_pictures_are_the_known_ones() -> None:
    """Ankle boot, T-shirt, T-shirt, dress: labels belong to pictures in the original order."""
    data_directory("FashionMNIST")
    settings = TaskSettings(dataset="fashion-mnist", num_clients=1)
    assert load_site(settings, 0).train.targets[:4].tolist() == [9, 0, 0, 3]


def test_nuclei_sites_hold_out_whole_pictures() -> None:
    """Six sites with the sizes of the source; no tile of a tested picture is trained on."""
    directory = data_directory("nuclei_128.npz")
    settings = TaskSettings(dataset="nuclei", model="res-unet", partition="natural", num_clients=6)
    with np.load(directory / "nuclei_128.npz") as archive:
        picture = archive["image_id"]
    sizes = []
    for client in range(6):
        site = load_site(settings, client)
        trained, tested = (set(picture[part.ids.astype(int)]) for part in (site.train, site.test))
        assert not trained & tested
        assert len(tested) == round(0.2 * (len(trained) + len(tested)))
        sizes.append(len(site.train) + len(site.test))
    assert sizes == [334, 111, 90, 360, 256, 52]
    assert load_server_test(settings) is None


def test_iid_nuclei_keep_a_picture_with_one_client() -> None:
    """Else a client would test on a picture that another one trained on."""
    directory = data_directory("nuclei_128.npz")
    settings = TaskSettings(dataset="nuclei", model="res-unet", num_clients=3)
    with np.load(directory / "nuclei_128.npz") as archive:
        picture = archive["image_id"]
    owned = []
    for client in range(3):
        site = load_site(settings, client)
        owned.append(set(picture[np.concatenate([site.train.ids, site.test.ids]).astype(int)]))
    assert sum(map(len, owned)) == len(set.union(*owned))


def test_hospitals_are_clients() -> None:
    """Four hospitals with the sizes and the sick of the source; each holds out a fifth."""
    data_directory("heart-disease")
    settings = TaskSettings(dataset="heart-disease", partition="natural", num_clients=4)
    sites = [load_site(settings, client) for client in range(4)]
    assert [len(site.train) + len(site.test) for site in sites] == [303, 294, 123, 200]
    assert [len(site.test) for site in sites] == [61, 59, 25, 40]
    sick = [int(site.train.targets.sum() + site.test.targets.sum()) for site in sites]
    assert sick == [139, 106, 115, 149]
    assert load_server_test(settings) is None


def test_a_hospitals_own_file_is_its_natural_part(tmp_path: Path) -> None:
    """Running alone on its machine, a hospital trains and tests on the same patients."""
    directory = data_directory("heart-disease")
    settings = TaskSettings(dataset="heart-disease", partition="natural", num_clients=4)
    name = "processed.hungarian.data"
    (tmp_path / name).write_bytes((directory / "heart-disease" / name).read_bytes())
    shared, own = load_site(settings, 1), load_site(settings, 1, tmp_path)
    assert shared.test.ids.tolist() == own.test.ids.tolist()
    assert torch.equal(shared.train.inputs, own.train.inputs)


@pytest.mark.parametrize("class_name", ["CIFAR10", "CIFAR100"])
def test_a_cifar_archive_is_read(tmp_path: Path, class_name: str) -> None:
    """Channels come first, training ids are positions, test ids say so."""
    pixels = np.arange(2 * 32 * 32 * 3, dtype=np.int64).reshape(2, 32, 32, 3).astype(np.uint8)
    labels = np.asarray([3, 8])
    np.savez(
        tmp_path / f"{class_name.lower()}.npz", x_train=pixels, y_train=labels, x_test=pixels, y_test=labels
    )
    train, test = read_cifar(class_name, tmp_path, True), read_cifar(class_name, tmp_path, False)
    assert np.array_equal(train.inputs[1, 2], pixels[1, :, :, 2])
    assert train.targets.tolist() == [3, 8]
    assert train.ids.tolist() == ["0", "1"]
    assert test.ids.tolist() == ["test-0", "test-1"]


def test_a_cifar_archive_without_a_key_is_refused(tmp_path: Path) -> None:
    """The message names the key and the layout."""
    np.savez(tmp_path / "cifar10.npz", x_train=np.zeros((1, 32, 32, 3), dtype=np.uint8))
    with pytest.raises(DataError):
        read_cifar("CIFAR10", tmp_path, True)


@pytest.mark.parametrize(
    ("read", "class_name"),
    [
        (read_torchvision, "MNIST"),
        (read_cifar, "CIFAR100"),
    ],
)
def test_pictures_that_are_not_there_are_not_downloaded_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[..., Arrays], class_name: str
) -> None:
    """The message says how to allow the download; of CIFAR either layout will do."""
    monkeypatch.delenv(DOWNLOAD_VARIABLE, raising=False)
    with pytest.raises(DataError):
        read(class_name, tmp_path, True)
