"""Which connection goes where one more comes than there is room for."""

import pytest

from strategies.waiting_places import WaitingPlaces, network_of


class Stranger:
    """As much of a connection as its place knows."""

    def __init__(self, party: str) -> None:
        self.party = party
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


def fill(size: int, *addresses: str) -> list[bool]:
    """Whether each of them was closed, when all had come."""
    room, came = WaitingPlaces(size), [Stranger(address) for address in addresses]
    for one in came:
        room.enter(one)
    return [one.is_closed for one in came]


@pytest.mark.parametrize(
    ("addresses", "closed"),
    [
        ("aaa", [False, False, False]),
        ("aaaa", [True, False, False, False]),
        ("baaa", [False, True, False, False]),
        ("abaab", [True, False, True, False, False]),
        ("aabcc", [True, True, False, False, False]),
    ],
)
def test_the_oldest_of_the_address_that_has_most_goes(addresses: str, closed: list[bool]) -> None:
    """There is room for three."""
    assert fill(3, *addresses) == closed


def test_who_has_left_takes_no_room() -> None:
    """Also where it leaves twice."""
    room, first, second = WaitingPlaces(1), Stranger("a"), Stranger("a")
    room.enter(first)
    room.leave(first)
    room.leave(first)
    room.enter(second)
    assert not first.is_closed
    assert not second.is_closed


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "20010db800010002"),
        ("2001:db8:1:2::9", "20010db800010002"),
        ("fe80::1%eth0", "fe80000000000000"),
    ],
)
def test_addresses_of_one_subscriber_count_together(address: str, network: str) -> None:
    """An IPv6 subscriber has 2^64 of them."""
    assert network_of(address) == network
