"""What a client that forgets a part of its examples answers as one that stays."""

from dataclasses import replace

import numpy as np
import pytest

from tests.raising import raises
from unlearning.errors import MethodFailed
from unlearning.methods.method import Reply
from unlearning.methods.updates import NUM_RETAINED, RETAINED_UPDATE, update_of_kept

FORGOTTEN, KEPT = np.full(3, 5.0, dtype=np.float32), np.full(3, 2.0, dtype=np.float32)


def answer(num_retained: int | None, *, with_update: bool) -> Reply:
    values = {} if num_retained is None else {NUM_RETAINED: num_retained}
    arrays = {RETAINED_UPDATE: KEPT} if with_update else {}
    return Reply(vector=FORGOTTEN, num_examples=4, values=values, arrays=arrays)


def test_it_is_the_update_of_what_it_keeps():
    """With the number of examples that it keeps."""
    found = update_of_kept("PUF", "a", answer(7, with_update=True))
    np.testing.assert_array_equal(found.vector, KEPT)
    assert found.num_examples == 7


def test_what_it_says_of_buffers_stays_with_it():
    """The model's running statistics are averaged of all that stay."""
    buffers = np.array([0.5, 1.5])
    found = update_of_kept("PUF", "a", replace(answer(7, with_update=True), buffers=buffers))
    assert found.buffers is buffers


def test_a_client_that_keeps_nothing_moves_nothing():
    """All of its examples were of the class."""
    found = update_of_kept("PUF", "a", answer(0, with_update=False))
    np.testing.assert_array_equal(found.vector, np.zeros(3))
    assert found.num_examples == 0


@pytest.mark.parametrize("num_retained", [None, 7])
def test_without_the_update_there_is_nothing_to_stay_with(num_retained: int | None):
    """A client of another version, or one that lies; a later answer may have it."""
    with raises(MethodFailed, "client-cannot") as caught:
        update_of_kept("PUF", "a", answer(num_retained, with_update=False))
    assert caught.value.retryable
