"""Sites whose parts of dealt-out data do not fit each other are named, each with what to do."""

from itertools import permutations

import pytest

from server.federation.site_problems import misfits


def test_sites_that_fit_each_other_are_not_named():
    """Also while some are away, and where nobody has a part."""
    assert misfits({"a": (0, 3), "b": (1, 3)}) == {}
    assert misfits({}) == {}


def test_a_site_with_another_number_of_parts_is_named():
    """By the number that more than half have."""
    found = misfits({"a": (0, 3), "b": (1, 3), "c": (2, 4)})
    assert list(found) == ["c"]
    assert "part 2 of 4" in found["c"]
    assert "the number of parts is 3 at a, b. Give all sites the same num-partitions" in found["c"]


def test_where_no_number_of_parts_has_most_sites_all_are_named():
    """Which of two is right nobody can know, so neither is named alone; that does not change as others come."""
    for parts in ({"a": (0, 3), "b": (0, 2)}, {"a": (0, 3), "b": (0, 2), "c": (1, 2), "d": (1, 3)}):
        found = misfits(parts)
        assert set(found) == set(parts)
        assert "part 0 of 3" in found["a"]
        assert "the number of parts is 2 at b" in found["a"]
        assert "part 0 of 2" in found["b"]
        assert "the number of parts is 3 at a" in found["b"]


@pytest.mark.parametrize(
    "parts",
    [{"a": (0, 3), "b": (0, 2), "c": (0, 4)}, {"a": (1, 3), "b": (1, 3), "c": (0, 2), "d": (0, 2)}],
)
def test_what_is_said_does_not_depend_on_who_came_first(parts):
    """Nor on the order of nodes."""
    assert len({tuple(sorted(misfits(dict(order)).items())) for order in permutations(parts.items())}) == 1


def test_a_large_federation_is_not_listed_at_each_site():
    """Five names, and how many more."""
    found = misfits({f"{number:03}": (number, 100 + number % 2) for number in range(100)})
    assert found["000"].endswith(
        "the number of parts is 101 at 001, 003, 005, 007, 009 and 45 more. Give all sites the same num-partitions, "
        "or they train on data of each other."
    )


def test_sites_with_the_same_part_are_named():
    """Each with the other."""
    found = misfits({"a": (0, 3), "b": (1, 3), "c": (1, 3)})
    assert set(found) == {"b", "c"}
    assert "as has c" in found["b"]
    assert "as has b" in found["c"]
