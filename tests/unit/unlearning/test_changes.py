"""A round in chunks: the mean has the bits of the mean over whole vectors, and a change's norm is that of the whole."""

import tracemalloc

import numpy as np
import pytest
from numpy.typing import NDArray

from unlearning import parameters
from unlearning.buffers import Change
from unlearning.errors import UpdateRefused
from unlearning.parameters import CHUNK, Vector, check_finite, weighted_mean


def whole_mean(models: dict[str, tuple[int, Vector]]) -> Vector:
    """The mean as it was computed before, over whole vectors in float64."""
    total = sum(count for count, _ in models.values())
    mean: NDArray[np.float64] = np.zeros(next(iter(models.values()))[1].size)
    for client in sorted(models):
        count, model = models[client]
        mean += count / total * model.astype(np.float64)
    return mean.astype(next(iter(models.values()))[1].dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("size", [1, 7, CHUNK - 1, CHUNK, 2 * CHUNK + 3])
@pytest.mark.parametrize("counts", [(1,), (3, 4), (1, 10**9, 7)])
def test_the_mean_in_chunks_has_the_bits_of_the_mean_of_whole_vectors(dtype, size, counts):
    """Whatever the length and the weights; a round that is done again on another version is the same."""
    random = np.random.default_rng(size)
    models = {
        str(place): (count, random.normal(0, 1, size).astype(dtype)) for place, count in enumerate(counts)
    }
    found = weighted_mean(models)
    assert (found.dtype, found.tobytes()) == (np.dtype(dtype), whole_mean(models).tobytes())


def test_the_norm_of_a_change_is_that_of_the_whole_without_its_buffers():
    """Zeros may lie in every chunk."""
    random = np.random.default_rng(0)
    after, before = (random.normal(0, 1, 2 * CHUNK + 9).astype(np.float32) for _ in range(2))
    zeros = np.array([0, 5, CHUNK - 1, CHUNK, 2 * CHUNK + 8])
    change = after - before
    change[zeros] = 0
    found = Change(after, before, zeros)
    assert found.norm == pytest.approx(np.linalg.norm(change.astype(np.float64)), rel=1e-12)
    np.testing.assert_array_equal(np.concatenate([chunk.copy() for chunk in found.chunks()]), change)


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64", ">f4", "float16", "float64"])
def test_a_change_of_any_numbers_has_a_norm(dtype):
    """What a client answers has the dtype that the client gives it."""
    numbers = np.array([3, 0, 4], dtype=dtype)
    assert Change(numbers).norm == Change(numbers, np.zeros(3, dtype=np.float32)).norm == 5
    assert [chunk.tolist() for chunk in Change(numbers).chunks()] == [[3, 0, 4]]


def test_a_change_that_is_no_number_has_no_finite_norm_and_warns_of_nothing():
    """The numbers are a client's."""
    large = np.full(3, 3e38, dtype=np.float32)
    assert Change(large, -large).norm == np.inf
    assert np.isnan(Change(np.array([np.inf]), np.array([np.inf])).norm)


def test_a_round_takes_the_room_of_one_model_whatever_the_number_of_clients():
    """The models may lie in files; norms and mean are computed in chunks of them."""
    model = np.ones(16 * CHUNK, dtype=np.float32)
    tracemalloc.start()
    try:
        assert all(Change(model, model).norm == 0 for _ in range(20))
        weighted_mean({str(client): (1, model) for client in range(20)})
        assert tracemalloc.get_traced_memory()[1] < 1.5 * model.nbytes
    finally:
        tracemalloc.stop()


def test_every_value_that_is_not_finite_is_counted(monkeypatch):
    """Over all chunks."""
    monkeypatch.setattr(parameters, "CHUNK", 2)
    with pytest.raises(UpdateRefused) as caught:
        check_finite(np.array([np.nan, 1, 2, np.inf, -np.inf]))
    assert (caught.value.code, caught.value.fields) == ("not-finite", {"count": 3})
