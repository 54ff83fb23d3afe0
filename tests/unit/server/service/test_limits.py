"""How much one caller may take, without a network: time is a number that the test passes in."""

import pytest

from server.ledger import Ledger, LimitExceeded
from server.service.access import Caller
from server.service.calls import Role
from server.service.limits import DAY_S, Limits, Places, Rates, TokenBucket
from tests.ledgers import submit
from tests.raising import raises
from unlearning.errors import ConfigurationError

ADA = Caller("ada", Role.OFFICER)
BOB = Caller("bob", Role.CLIENT)
OPERATOR = Caller("ada", Role.OPERATOR)


@pytest.mark.parametrize(
    ("rate_per_s", "capacity", "at", "waits"),
    [
        pytest.param(2, 3, [10, 10, 10, 10], [0, 0, 0, 0.5], id="its capacity at once and no more"),
        pytest.param(2, 3, [10, 10, 10, 10.5, 10.5], [0, 0, 0, 0, 0.5], id="it fills at its rate"),
        pytest.param(2, 3, [0, *[86_400] * 4], [0, 0, 0, 0, 0.5], id="it never holds more than its capacity"),
        pytest.param(1, 2, [100, 50, 50], [0, 0, 1], id="a clock that goes back takes nothing away"),
    ],
)
def test_a_bucket_gives_what_flowed_in(
    rate_per_s: float, capacity: float, at: list[float], waits: list[float]
) -> None:
    """A token, or the seconds until there is one."""
    bucket = TokenBucket(rate_per_s, capacity)
    assert [bucket.take(now) for now in at] == waits


def test_a_caller_over_its_rate_is_told_when_to_try_again() -> None:
    """At two a second, four at once; the fifth waits half a second."""
    rates = Rates(Limits(calls_per_s=2.0))
    for _ in range(4):
        rates.take(ADA, 0.0)
    with raises(LimitExceeded, "too-many-calls", wait_s=0.5):
        rates.take(ADA, 0.0)


def test_one_caller_takes_nothing_from_another() -> None:
    """The same name in another role is another caller."""
    rates = Rates(Limits(calls_per_s=1.0))
    for caller in (ADA, BOB):
        rates.take(caller, 0.0)
        rates.take(caller, 0.0)
    with pytest.raises(LimitExceeded):
        rates.take(ADA, 0.0)
    for _ in range(50):
        rates.take(OPERATOR, 0.0)


def places(total: int, each: int) -> Places:
    return Places(total, each, "sending samples", "wait until the list is filed")


def test_places_of_one_caller_are_limited_before_all_are_taken() -> None:
    """Its third stream is refused; somebody else's is not."""
    sending = places(4, 2)
    with sending.place(BOB), sending.place(BOB):
        with raises(LimitExceeded, "places-of-a-caller"), sending.place(BOB):
            pass
        with sending.place(ADA):
            pass


def test_nobody_else_takes_an_operators_place() -> None:
    """When clients and officers have all of theirs, an operator still has all of its own, and no more."""
    sending = places(2, 1)
    with sending.place(BOB), sending.place(ADA):
        with (
            raises(LimitExceeded, "all-places"),
            sending.place(Caller("c", Role.CLIENT)),
        ):
            pass
        with sending.place(OPERATOR), sending.place(OPERATOR):  # noqa: SIM117
            with raises(LimitExceeded, "all-places"), sending.place(OPERATOR):
                pass


def test_a_place_is_free_again_when_its_call_ends_with_an_error() -> None:
    """Otherwise broken lines would use the places up."""
    sending = places(1, 1)
    with pytest.raises(ZeroDivisionError), sending.place(BOB):
        raise ZeroDivisionError
    with sending.place(BOB):
        pass


def test_sample_ids_of_a_client_are_counted_by_the_day() -> None:
    """At ten a day: ten at once, one more after a tenth of a day, and another client has its own; an operator any."""
    quota = Rates(Limits(sample_ids_per_day=10))
    quota.take_samples(BOB, 7, 0.0)
    quota.take_samples(BOB, 3, 0.0)
    with raises(LimitExceeded, "sample-quota"):
        quota.take_samples(BOB, 1, 0.0)
    quota.take_samples(BOB, 1, DAY_S / 10)
    quota.take_samples(Caller("carl", Role.CLIENT), 10, 0.0)
    quota.take_samples(OPERATOR, 1_000_000, 0.0)


def test_a_message_of_exactly_the_limit_passes() -> None:
    """One byte more does not, and the message says what to do."""
    limits = Limits(max_message_mib=1.0)
    limits.check_size(1024 * 1024)
    with raises(LimitExceeded, "message-size"):
        limits.check_size(1024 * 1024 + 1)


def test_all_wrong_limits_are_named_at_once() -> None:
    """Zero, negative, infinite and NaN."""
    with pytest.raises(ConfigurationError) as caught:
        Limits(
            calls_per_s=0.0,
            max_open_requests=-1,
            operator_calls_per_s=float("nan"),
            max_message_mib=float("inf"),
        )
    assert len(caught.value.problems) == 4


def test_each_party_files_so_many_requests_a_day(ledger: Ledger) -> None:
    """A client as clients may, an officer and an operator as staff may, each by their own count."""
    limits = Limits(max_requests_per_day=1, staff_requests_per_day=2)

    def file(caller: Caller, key: str) -> None:
        allowance = limits.allowance(caller)
        submit(
            ledger,
            key=key,
            submitted_by=caller.name,
            submitted_role=str(caller.role),
            quota=allowance.daily,
        )

    file(BOB, "1")
    for caller in (ADA, OPERATOR):
        file(caller, f"{caller.role} 1")
        file(caller, f"{caller.role} 2")
    for caller in (ADA, BOB, OPERATOR):
        with raises(LimitExceeded, "daily-quota"):
            file(caller, f"{caller.role} 3")
