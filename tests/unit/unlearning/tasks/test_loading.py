"""From settings to tasks and data, on the embedded digits."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from unlearning.errors import DataError
from unlearning.tasks import TaskSettings, images, load_server_test, load_site, make_task
from unlearning.tasks.loading import DATA_VARIABLE

DIGITS = TaskSettings(num_clients=7)


@pytest.mark.parametrize("partition", ["iid", "dirichlet"])
def test_clients_and_server_share_out_all_digits(partition: str) -> None:
    """Every one of the 1,797 digits is with one client or in the server's test set, by its id."""
    settings = replace(DIGITS, partition=partition)
    sites = [load_site(settings, client) for client in range(7)]
    ids = np.concatenate([site.train.ids for site in sites] + [load_server_test(settings).ids])
    assert sorted(ids.tolist(), key=int) == [str(index) for index in range(1797)]
    assert all(len(site.test) == 0 for site in sites)


def test_the_server_can_measure_on_a_part_of_its_test_set() -> None:
    """A seeded subset of the whole set, as many as were asked for."""
    whole, part = load_server_test(DIGITS), load_server_test(replace(DIGITS, max_test_examples=50))
    assert len(part) == 50
    assert set(part.ids.tolist()) <= set(whole.ids.tolist())
    assert np.array_equal(part.ids, load_server_test(replace(DIGITS, max_test_examples=50)).ids)


def test_an_id_is_the_position_in_the_original_set() -> None:
    """Whatever the partition, id 17 is the 17th digit of scikit-learn's, scaled to 0..1."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    site = load_site(replace(DIGITS, partition="dirichlet", seed=5), 3).train
    positions = site.ids.astype(int)
    assert np.array_equal(site.inputs.numpy().reshape(-1, 64) * 16, pixels[positions].astype(np.float32))
    assert np.array_equal(site.targets.numpy(), labels[positions])


def test_where_scikit_learn_keeps_the_digits_elsewhere_it_is_asked_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its file is read without importing it, if it is where it has been so far."""
    known = images.read_digits(train=True)
    monkeypatch.setattr(images, "find_spec", lambda _: None)
    images._digits.cache_clear()
    asked_for = images.read_digits(train=True)
    assert np.array_equal(known.inputs, asked_for.inputs)
    assert np.array_equal(known.targets, asked_for.targets)


def test_the_servers_digits_are_a_fifth_of_each_class() -> None:
    """And the same for every seed, so that results can be compared."""
    test = load_server_test(DIGITS)
    counts = np.bincount(test.targets.numpy())
    all_counts = np.asarray([178, 182, 177, 183, 181, 182, 181, 179, 174, 180])
    assert counts.tolist() == np.round(0.2 * all_counts).astype(int).tolist()
    assert np.array_equal(test.ids, load_server_test(replace(DIGITS, seed=9)).ids)


def test_a_site_may_be_changed_without_changing_the_next_load() -> None:
    """The arrays that are kept in memory are copied out."""
    site = load_site(DIGITS, 0).train
    before = site.inputs.clone()
    site.inputs.zero_()
    assert torch.equal(load_site(DIGITS, 0).train.inputs, before)


@pytest.mark.parametrize("partition", [-1, 7])
def test_a_partition_that_does_not_exist_is_refused(partition: int) -> None:
    with pytest.raises(DataError):
        load_site(DIGITS, partition)


def test_a_task_takes_its_dtype_and_shape_from_the_settings() -> None:
    task = make_task(replace(DIGITS, model="cnn", dtype="float64"))
    assert task.dtype is torch.float64
    assert task.num_classes == 10
    assert task.score_name == "accuracy"
    assert task.build_model()(torch.zeros(1, 1, 8, 8)).shape == (1, 10)


def test_a_users_own_model_of_the_wrong_kind_is_refused() -> None:
    """Its outputs are looked at: a segmentation model cannot classify digits."""
    settings = replace(DIGITS, model="unlearning.tasks.convnets:ResUNet")
    with pytest.raises(DataError):
        make_task(settings)


def test_a_data_set_without_a_directory_says_how_to_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    with pytest.raises(DataError):
        load_site(TaskSettings(dataset="cifar10", model="small-cnn"), 0)
