"""Which clients a sum of data may be over, beside the one before it."""

import pytest

from unlearning.errors import SecureAggregationError
from unlearning.secure_aggregation.terms import check_repeated


@pytest.mark.parametrize(
    ("before", "now", "leaving"),
    [
        ("", "abc", ""),
        ("abc", "abc", ""),
        ("abcd", "abc", "d"),
        ("abcd", "abc", "de"),
        ("abc", "abcdef", ""),
        ("abcx", "abcdef", "x"),
    ],
)
def test_a_sum_whose_difference_shows_no_client_or_a_forgotten_one_goes_on(before, now, leaving):
    """The same clients, without those that are forgotten, or with several that are new."""
    check_repeated(before, now, leaving=leaving, fewest=3)


@pytest.mark.parametrize(
    ("before", "now", "leaving"),
    [
        ("abcd", "abc", ""),
        ("abcd", "abc", "a"),
        ("abcd", "ab", "c"),
        ("abc", "abcd", ""),
        ("abc", "abcde", ""),
    ],
)
def test_a_sum_that_would_show_what_a_client_holds_is_refused(before, now, leaving):
    """One that lacks a client that is not forgotten, or has one or two more."""
    with pytest.raises(SecureAggregationError, check=lambda exc: exc.code == "cohort-changed"):
        check_repeated(before, now, leaving=leaving, fewest=3)
