"""The features of CIFAR-10's pictures: a made-up file, refusals, and the real one where it is at hand."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.tasks import data_directory
from unlearning.errors import DataError
from unlearning.tasks import TaskSettings, load_server_test, load_site
from unlearning.tasks.images import CIFAR_FEATURES, NUM_FEATURES, read_features


def made_up(directory: Path, **changes: np.ndarray) -> Path:
    generator = np.random.default_rng(0)
    content = {
        "x_train": generator.integers(0, 256, (40, NUM_FEATURES), dtype=np.uint8),
        "y_train": np.arange(40) % 10,
        "x_test": generator.integers(0, 256, (20, NUM_FEATURES), dtype=np.uint8),
        "y_test": np.arange(20) % 10,
    }
    (directory / CIFAR_FEATURES).parent.mkdir()
    np.savez(directory / CIFAR_FEATURES, **{**content, **changes})
    return directory


def test_rows_are_examples_between_plus_and_minus_a_half(tmp_path):
    """A byte over 255 less a half, in the pictures' order; the test rows are the server's."""
    settings = TaskSettings(
        dataset="cifar10-features", model="mlp-head", num_clients=2, data_dir=str(made_up(tmp_path))
    )
    sites = [load_site(settings, number).train for number in range(2)]
    assert sorted(int(key) for site in sites for key in site.ids) == list(range(40))
    with np.load(tmp_path / CIFAR_FEATURES) as archive:
        row = archive["x_train"][int(sites[0].ids[0])]
    assert torch.equal(sites[0].inputs[0], torch.from_numpy(row.astype(np.float32) / np.float32(255)) - 0.5)
    test = load_server_test(settings)
    assert test.ids[0] == "test-0"
    assert len(test) == 20


@pytest.mark.parametrize(
    "changes",
    [
        {"x_train": np.zeros((40, 12), np.uint8)},
        {"x_train": np.zeros((40, NUM_FEATURES))},
        {"y_train": np.full(40, 10)},
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path, changes):
    """The message says what was got, and which program makes the file."""
    with pytest.raises(DataError):
        read_features(made_up(tmp_path, **changes), train=True)


def test_a_missing_file_says_how_it_is_made(tmp_path):
    """Path and program."""
    with pytest.raises(DataError):
        read_features(tmp_path, train=False)


def test_a_ridge_head_on_the_real_features_reaches_85_percent():
    """10,000 rows, one-hot targets, an L2 term of 1e-3 a row: the features hold what a linear head needs."""
    directory = data_directory(CIFAR_FEATURES)
    train, test = read_features(directory, True), read_features(directory, False)
    x, t = (np.hstack([part / 255, np.ones((len(part), 1))]) for part in (train.inputs[:10_000], test.inputs))
    gram = x.T @ x + 1e-3 * len(x) * np.eye(x.shape[1])
    head = np.linalg.solve(gram, x.T @ np.eye(10)[train.targets[:10_000]])
    assert ((t @ head).argmax(axis=1) == test.targets).mean() > 0.845
