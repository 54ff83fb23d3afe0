"""A model as one flat vector, and back."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from tests.raising import raises
from unlearning.errors import UpdateRefused
from unlearning.parameters import Vector, check_finite, content_hash, fingerprint, flatten, layout, load


def network(seed: int = 0) -> nn.Module:
    """Float parameters and running statistics, and one integer buffer, the batch counter."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model(torch.randn(8, 3))
    return model


def test_the_vector_is_the_state_in_its_order() -> None:
    """Each slot holds the tensor of its name; together they are the whole vector, without the counter."""
    model = network()
    vector, slots, state = flatten(model), layout(model), model.state_dict()
    assert [slot.name for slot in slots] == [key for key in state if "num_batches_tracked" not in key]
    assert [slot.start for slot in slots] == [0, *[slot.stop for slot in slots[:-1]]]
    assert slots[-1].stop == vector.size == 3 * 4 + 4 + 4 * 4 + 4 * 2 + 2
    for slot in slots:
        assert np.array_equal(vector[slot.start : slot.stop].reshape(slot.shape), state[slot.name].numpy())


def test_a_loaded_model_is_the_flattened_one() -> None:
    """Running means travel; the integer counter stays as it was."""
    source, target = network(0), network(1)
    target(torch.randn(8, 3))
    load(target, flatten(source))
    assert np.array_equal(flatten(target), flatten(source))
    assert torch.equal(target.get_buffer("1.running_mean"), source.get_buffer("1.running_mean"))
    assert target.get_buffer("1.num_batches_tracked").item() == 2


def test_the_vector_is_a_copy() -> None:
    """Neither does writing into it change the model, nor loading keep a hold on it."""
    model = nn.Linear(2, 1)
    vector = flatten(model)
    before = vector.copy()
    vector += 1
    assert np.array_equal(flatten(model), before)
    load(model, vector)
    vector += 1
    assert np.array_equal(flatten(model), before + 1)


def test_double_precision_survives() -> None:
    model = network().double()
    vector = flatten(model)
    vector += 1e-12
    load(model, vector)
    assert vector.dtype == np.float64
    assert np.array_equal(flatten(model), vector)


@pytest.mark.parametrize("shape", [(2,), (4,), (3, 1), (0,)])
def test_a_vector_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    """The message says both sizes, and the model stays as it was."""
    model = nn.Linear(2, 1)
    before = flatten(model)
    with raises(UpdateRefused, "wrong-length", expected=3):
        load(model, np.zeros(shape))
    assert np.array_equal(flatten(model), before)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_vector_that_is_not_finite_is_refused(value: float) -> None:
    """One of the largest number passes."""
    check_finite(np.asarray([np.finfo(np.float32).max, 0, -1], dtype=np.float32))
    with raises(UpdateRefused, "not-finite", count=2):
        check_finite(np.asarray([value, 0.0, value]))


@pytest.mark.parametrize("hash_of", [content_hash, fingerprint])
def test_the_hash_tells_one_bit_apart(hash_of: Callable[[Vector], str]) -> None:
    """Also the sign of zero, the dtype and the length, which comparing values would not."""
    vector = np.asarray([0.0, 1.0], dtype=np.float32)
    flipped: Vector = (vector.view(np.uint32) ^ np.asarray([0, 1], dtype=np.uint32)).view(np.float32)
    others: list[Vector] = [
        flipped,
        np.asarray([-0.0, 1.0], np.float32),
        vector.astype(np.float64),
        vector[:1],
        vector[::-1],
    ]
    hashes = {hash_of(value) for value in (vector, *others)}
    assert len(hashes) == 6
    assert hash_of(vector.copy()) in hashes


@pytest.mark.parametrize("hash_of", [content_hash, fingerprint])
def test_the_hash_does_not_depend_on_the_machines_byte_order(hash_of: Callable[[Vector], str]) -> None:
    vector = np.asarray([1.5, -2.0], dtype="<f4")
    assert hash_of(vector) == hash_of(vector.astype(">f4"))
