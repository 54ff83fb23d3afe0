"""What others send is read strictly: whatever it is, it is read or refused, at a cost that its size bounds."""

import json
import tracemalloc
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hostile import ARRAYS, JSON, npy, saved
from tests.raising import raises
from unlearning.errors import UpdateRefused
from unlearning.one_line import MAX_LINE, as_line
from unlearning.untrusted import DTYPES, json_object, npy_array

HONEST = [
    *(np.arange(6).astype(name).reshape(2, 3) for name in DTYPES),
    np.zeros(()),
    np.zeros((0, 5)),
    np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    np.arange(12.0).reshape(3, 4)[:, ::2],
]


@pytest.mark.parametrize("array", HONEST, ids=lambda array: f"{array.dtype}-{array.shape}")
def test_what_numpy_saves_of_numbers_is_read(array):
    """Bit for bit, and nothing writes to what others may have too."""
    found = npy_array(saved(array))
    np.testing.assert_array_equal(found, array)
    assert found.dtype == array.dtype
    assert not found.flags.writeable


@pytest.mark.parametrize("kind", ARRAYS)
def test_what_is_no_array_of_numbers_is_refused_before_room_is_made(kind):
    """At a cost of little more than the bytes that came."""
    data = ARRAYS[kind]
    tracemalloc.start()
    try:
        with pytest.raises(UpdateRefused):
            npy_array(data)
        assert tracemalloc.get_traced_memory()[1] < len(data) + 2**17
    finally:
        tracemalloc.stop()


def test_an_array_longer_than_expected_is_refused_before_it_is_copied():
    """The length is known from the model."""
    with raises(UpdateRefused, "too-many-numbers", max_size=3):
        npy_array(saved(np.zeros(4)), max_size=3)
    assert npy_array(saved(np.zeros(3)), max_size=3).size == 3


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data):
    """Nothing else is raised."""
    for content in (data, npy(data), npy(b"{'descr': '" + data)):
        with suppress(UpdateRefused):
            assert npy_array(content).nbytes <= len(content)


@pytest.mark.parametrize("kind", JSON)
def test_what_is_no_object_of_moderate_size_is_refused(kind):
    """Too deep, too long, ambiguous or not to be written down."""
    with pytest.raises(UpdateRefused):
        json_object(JSON[kind])


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), JSON_VALUES, max_size=4))
def test_moderate_json_is_read_as_it_is(value):
    """The same as by the standard reader."""
    assert json_object(json.dumps(value)) == value


@given(st.text(max_size=200) | st.binary(max_size=200))
def test_any_text_is_read_or_refused(text):
    """Nothing else is raised."""
    with suppress(UpdateRefused):
        json_object(text)


@given(
    st.text(st.characters(exclude_categories=[])) | st.text(alphabet="\n\r\x1b\u202e\u2028a ", min_size=400)
)
def test_a_foreign_text_becomes_one_printable_line(text):
    """Whatever the text, nobody can begin a line of the log with it, or colour it, or turn it round."""
    line = as_line(text)
    assert line.isprintable()
    assert len(line) <= MAX_LINE
    assert len(line.splitlines()) <= 1


def test_a_long_text_keeps_its_beginning_and_its_end():
    """A stack trace says at its end what went wrong."""
    line = as_line("begin " + "x" * 5_000_000 + " end")
    assert line.startswith("begin ")
    assert line.endswith(" end")
    assert len(line) == MAX_LINE
    assert as_line("as\nit  is") == "as it is"
