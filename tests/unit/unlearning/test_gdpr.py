"""Deadlines: the calendar month, the days that can be, and texts that are plain."""

from datetime import UTC, date, datetime, timedelta

import pytest

from tests.raising import raises
from unlearning.errors import InvalidRequest
from unlearning.gdpr import (
    EARLIEST_RECEIVED,
    Ground,
    Particulars,
    check_extension,
    check_reason,
    one_month_after,
    parse_day,
    parse_ground,
)

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("received", "due"),
    [
        ("2026-11-22", "2026-12-22"),
        ("2026-12-31", "2027-01-31"),
        ("2026-01-31", "2026-02-28"),
        ("2028-01-31", "2028-02-29"),
        ("2026-03-31", "2026-04-30"),
        ("2026-02-28", "2026-03-28"),
    ],
)
def test_a_month_ends_on_the_same_day_or_on_the_last_one(received: str, due: str) -> None:
    """As Regulation 1182/71 counts, leap years and the turn of the year included."""
    assert one_month_after(date.fromisoformat(received)) == date.fromisoformat(due)


def test_today_is_any_day_that_it_is_somewhere() -> None:
    """An officer in Kiribati files in the morning what UTC still calls tomorrow; the day after is refused."""
    evening = datetime(2026, 11, 22, 10, tzinfo=UTC)
    tomorrow = date(2026, 11, 23)
    assert Particulars(received_on=tomorrow).dates(evening)[0] == tomorrow
    with raises(InvalidRequest, "bad-day", field="received_on"):
        Particulars(received_on=tomorrow).dates(evening - timedelta(minutes=1))


@pytest.mark.parametrize(
    ("received", "due", "lawful"),
    [
        (None, None, True),
        (EARLIEST_RECEIVED, None, True),
        (EARLIEST_RECEIVED - timedelta(days=1), None, False),
        (date.min, None, False),
        (date.max, None, False),
        (None, date(2026, 11, 22), True),
        (None, date(2026, 12, 22), True),
        (None, date(2026, 12, 23), False),
        (None, date(2026, 11, 21), False),
        (None, date.max, False),
        (None, date.min, False),
    ],
)
def test_the_days_that_can_be(received: date | None, due: date | None, lawful: bool) -> None:
    """From the Regulation's first day to today, and due between then and a month later."""
    given = Particulars(received_on=received, due_on=due)
    if lawful:
        received_on, due_on = given.dates(NOW)
        assert (received_on, due_on) == (received or NOW.date(), due or one_month_after(received_on))
    else:
        with raises(InvalidRequest, "bad-day"):
            given.dates(NOW)


@pytest.mark.parametrize(
    "text",
    ["0000-01-01", "2026-13-01", "2026-02-29", "20261122", "2026-W47-7", "٢٠٢٦-١١-٢٢", "x" * 10**6, " "],
)
def test_what_is_no_day_is_refused(text: str) -> None:
    """In a short sentence that names the form."""
    with raises(InvalidRequest, "not-a-day", field="received-on") as refused:
        parse_day("received-on", text)
    assert len(str(refused.value)) < 150
    assert parse_day("received-on", "") is None


def test_a_ground_is_a_letter_of_article_17() -> None:
    """Each has its words; another letter is refused with all of them."""
    assert [parse_ground(letter) for letter in "abcdef"] == list(Ground)
    assert all(ground.describe().startswith(f"Art. 17(1)({ground}): ") for ground in Ground)
    assert parse_ground("") is None
    for other in ("g", "A", "17(1)(a)", "a" * 10**6):
        with raises(InvalidRequest, "unknown-ground") as refused:
            parse_ground(other)
        assert "consent was withdrawn" in str(refused.value)


@pytest.mark.parametrize(
    "text", ["", " \n ", "x" * 1001, " " * 10**7, "<b>", "a\x00", "a\rb", "\ud800", "a\u202eb"]
)
def test_a_reason_is_plain_text_that_says_something(text: str) -> None:
    """Nothing, too much, markup, control characters, lone surrogates and changes of direction are refused."""
    with pytest.raises(InvalidRequest):
        check_reason("a hold", text)
    assert check_reason("a hold", "  a lawsuit\nof 2026 – § 17 ") == "a lawsuit\nof 2026 – § 17"


def test_an_extension_has_one_to_sixty_days() -> None:
    """At most the days of two further months."""
    assert [check_extension(days) for days in (1, 60)] == [1, 60]
    for days in (-1, 0, 61):
        with raises(InvalidRequest, "bad-extension"):
            check_extension(days)
