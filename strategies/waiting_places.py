"""Places of connections that wait: where there is none for one more, the party that has most loses one.

So silent connections of one party, however many, keep out no other party's.
"""

import threading
from collections.abc import Callable
from ipaddress import IPv6Address
from typing import Any, Protocol


class WaitingConnection(Protocol):
    """A connection that may be closed. party: a certificate's name, or a network where there is no certificate."""

    @property
    def party(self) -> str:
        """Return the party that it belongs to."""

    @property
    def close(self) -> Callable[[], object]:
        """End it, whatever it waits for."""


class WaitingPlaces:
    """`size` places. When one more comes, the oldest connection of the party that has most is closed.

    per_party: how many places one party may have.
    """

    def __init__(self, size: int, *, per_party: int | None = None) -> None:
        self._size, self._per_party = size, per_party
        self._by_party: dict[str, dict[WaitingConnection, threading.Timer | None]] = {}
        self._lock = threading.Lock()

    def enter(self, connection: WaitingConnection, longest_s: float | None = None) -> bool:
        """Let a connection in, and close the one that has to go for it; False where its party may have no more.

        longest_s: it is closed when it still has its place after that.
        """
        displaced: WaitingConnection | None = None
        with self._lock:
            if self._per_party is not None and self._count(connection.party) >= self._per_party:
                return False
            if sum(map(len, self._by_party.values())) >= self._size:
                most: dict[WaitingConnection, Any] = max(self._by_party.values(), key=len)
                displaced = next(iter(most))
                self._remove(displaced)
            self._by_party.setdefault(connection.party, {})[connection] = _timer(connection, longest_s)
        if displaced is not None:
            displaced.close()
        return True

    def leave(self, connection: WaitingConnection) -> None:
        """Remove a connection, if it is here."""
        with self._lock:
            if connection in self._by_party.get(connection.party, {}):
                self._remove(connection)

    def _count(self, party: str) -> int:
        return len(self._by_party.get(party, {}))

    def _remove(self, connection: WaitingConnection) -> None:
        of_party = self._by_party[connection.party]
        timer = of_party.pop(connection)
        if timer is not None:
            timer.cancel()
        if not of_party:
            del self._by_party[connection.party]


def _timer(connection: WaitingConnection, longest_s: float | None) -> threading.Timer | None:
    if longest_s is None:
        return None
    timer = threading.Timer(longest_s, connection.close)
    timer.daemon = True
    timer.start()
    return timer


def network_of(address: str) -> str:
    """Return by what connections are counted: an IPv4 address, or the 64 bits of IPv6 that one subscriber has."""
    if ":" not in address:
        return address
    parsed = IPv6Address(address.partition("%")[0])
    return str(parsed.ipv4_mapped or parsed.packed[:8].hex())
