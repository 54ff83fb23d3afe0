"""Sites whose parts of dealt-out data do not fit each other are named, each with what to do."""

from server.federation.site_problems import misfits


def test_sites_that_fit_each_other_are_not_named():
    """Also while some are away, and where nobody has a part."""
    assert misfits({"a": (0, 3), "b": (1, 3)}) == {}
    assert misfits({}) == {}


def test_a_site_with_another_number_of_parts_is_named():
    """By the number that most have."""
    found = misfits({"a": (0, 3), "b": (1, 3), "c": (2, 4)})
    assert list(found) == ["c"]
    assert "part 2 of 4" in found["c"]
    assert "3 parts among the others (a, b)" in found["c"]


def test_sites_with_the_same_part_are_named():
    """Each with the other."""
    found = misfits({"a": (0, 3), "b": (1, 3), "c": (1, 3)})
    assert set(found) == {"b", "c"}
    assert "as has c" in found["b"]
    assert "as has b" in found["c"]
