"""Lists in messages."""

import pytest

from unlearning.one_line import list_first


@pytest.mark.parametrize(
    ("num_items", "expected"),
    [(0, ""), (2, "a, a"), (3, "a, a and 1 more"), (1002, "a, a and 1,000 more")],
)
def test_a_long_list_names_its_first_items_and_counts_the_others(num_items: int, expected: str) -> None:
    """Nothing is counted where all are named."""
    assert list_first(["a"] * num_items, 2) == expected
