"""Fixed point and masks: the quantisation error, the clip, and what a masked vector looks like."""

import hashlib

import numpy as np
import pytest
from scipy.stats import chisquare

from unlearning.errors import DataError
from unlearning.secure_aggregation.ring import (
    FINEST,
    add_masks,
    clipped,
    from_ring,
    is_fine,
    scale_of,
    to_ring,
)

NONE = np.zeros(0, dtype=np.intp)


@pytest.mark.parametrize(("count", "weight", "norm"), [(3, 1e6, 1.0), (1000, 2e7, 0.01), (30, 1.0, 1e4)])
def test_the_mean_is_as_fine_as_promised(count: int, weight: float, norm: float) -> None:
    """At most 2^−20 of the clip norm a coordinate, against float64, where every weight is at least 1."""
    generator = np.random.default_rng(1)
    scale, weights = scale_of(count, weight, norm), generator.uniform(1, min(weight, 50), count)
    total, exact = np.zeros(7, dtype=np.uint64), np.zeros(7)
    for one in weights:
        vector, _ = clipped(generator.normal(size=7) * norm, norm, NONE)
        total += to_ring(one * vector, scale)
        exact += one * vector
    error = np.abs(from_ring(total, scale) - exact) / weights.sum()
    assert is_fine(count, weight)
    assert error.max() <= FINEST * norm


def test_the_largest_vectors_of_all_clients_do_not_overflow() -> None:
    """Every client at its bound, all on one coordinate and of one sign."""
    scale = scale_of(1000, 1e6, 2.0)
    total = sum((to_ring(np.array([-2e6]), scale) for _ in range(1000)), start=np.zeros(1, dtype=np.uint64))
    assert from_ring(total, scale)[0] == pytest.approx(-2e9)


def test_too_many_clients_of_too_large_weights_are_not_fine() -> None:
    """Then the settings are refused."""
    assert is_fine(1000, 1e9)
    assert not is_fine(10**6, 1e9)


def test_a_clipped_vector_has_the_norm_and_its_buffers_are_cut() -> None:
    """Buffers are no part of the norm."""
    found, was_longer = clipped(np.array([3.0, 4.0, 100.0]), 2.5, np.array([2]))
    np.testing.assert_allclose(found, [1.5, 2.0, 2.5])
    assert was_longer
    same, was_longer = clipped(np.array([3.0, 4.0, -1.0]), 5.0, np.array([2]))
    np.testing.assert_array_equal(same, [3.0, 4.0, -1.0])
    assert not was_longer
    with pytest.raises(DataError):
        clipped(np.array([np.nan]), 1.0, NONE)


def test_a_mask_is_the_key_stream_of_its_seed_whatever_the_blocks() -> None:
    """ChaCha20 of RFC 8439, key and nonce zero; subtracting it gives the vector back."""
    masked = np.zeros(300_000, dtype=np.uint64)
    add_masks(masked, [(bytes(32), False)])
    assert masked[0].tobytes() == bytes.fromhex("76b8e0ada0f13d90")
    assert len(set(masked.tolist())) == masked.size  # no block comes twice
    add_masks(masked, [(bytes(32), True)])
    assert not masked.any()


def is_uniform(values: np.ndarray) -> bool:
    """Tell whether bytes look uniform, by a χ² test whose false alarms are one in a million."""
    counts = np.bincount(values.view(np.uint8), minlength=256)
    return bool(chisquare(counts).pvalue > 1e-6)


def found_by_search(masked: np.ndarray, vector: np.ndarray, seeds: list[bytes]) -> bool:
    """Tell whether one of the seeds explains a masked vector, as an attacker would."""
    for seed in seeds:
        guess = masked.copy()
        add_masks(guess, [(seed, True)])
        if np.array_equal(guess, vector):
            return True
    return False


def folded(seed: bytes) -> bytes:
    """Fold a seed to 10 bits, as a prototype folds it to 32."""
    number = 0
    for start in range(0, len(seed), 2):
        number ^= int.from_bytes(seed[start : start + 2], "big")
    return hashlib.sha256((number % 1024).to_bytes(2, "big")).digest()


def test_a_masked_vector_is_uniform_and_no_seed_of_a_small_space_explains_it() -> None:
    """The control: with a seed that is folded to few bits the bytes are as uniform, and the search finds it."""
    vector, seed = np.arange(2**13, dtype=np.uint64), hashlib.sha256(b"seed").digest()
    space = [hashlib.sha256(number.to_bytes(2, "big")).digest() for number in range(1024)]
    whole, weak = vector.copy(), vector.copy()
    add_masks(whole, [(seed, False)])
    add_masks(weak, [(folded(seed), False)])
    assert is_uniform(whole)
    assert is_uniform(weak)
    assert not is_uniform(vector)
    assert not found_by_search(whole[:8], vector[:8], space)
    assert found_by_search(weak[:8], vector[:8], space)
