"""The program that makes features of pictures: quantisation by hand, and the network where it is installed."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from benchmarks.features import difference, main, quantised
from unlearning.tasks.images import NUM_FEATURES, read_features


def test_values_become_the_nearest_of_256_steps():
    """By hand: from −1 to 1 a step is 2/255; what lies outside is bounded."""
    low, high = np.array([-1.0]), np.array([1.0])
    values = np.array([[-1.0], [1.0], [-1 + 2 / 255 * 7.4], [5.0], [-5.0]], dtype=np.float32)
    assert quantised(values, low, high).ravel().tolist() == [0, 255, 7, 255, 0]


def test_a_feature_that_never_changes_is_0():
    """No division by nothing."""
    assert quantised(np.ones((2, 1), np.float32), np.ones(1), np.ones(1)).tolist() == [[0], [0]]


def test_the_difference_counts_steps():
    """Of four values two alike, one a step and one ten steps apart; only as many rows as there are."""
    ours = np.array([[1, 2], [3, 20]], dtype=np.uint8)
    theirs = np.array([[1, 2], [4, 10], [0, 0]], dtype=np.uint8)
    assert (
        difference(ours, theirs)
        == "50.00% of the values alike, 25.00% more than a step apart, at most 10 steps"
    )


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("efficientnet_lite_pytorch") is None,
    reason="the extra features is not installed",
)
def test_pictures_become_a_file_that_the_data_set_reads(tmp_path: Path) -> None:
    """Three pictures a half; the same pictures with the same quantiles give the same bytes."""
    generator = np.random.default_rng(0)
    pictures = generator.integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(3)
    np.savez(tmp_path / "cifar10.npz", x_train=pictures, y_train=labels, x_test=pictures, y_test=labels)
    output = tmp_path / "cifar10-features" / "efficientnet-lite0-128.npz"
    main(tmp_path, output)
    first = read_features(tmp_path, train=True)
    assert first.inputs.shape == (3, NUM_FEATURES)
    assert len(np.unique(first.inputs)) > 10
    main(tmp_path, tmp_path / "again.npz", like=output)
    with np.load(tmp_path / "again.npz") as again:
        assert np.array_equal(again["x_train"], first.inputs)
