"""Places of connections that are not let in yet: where there is none for one more, the party that has most loses one.

So connections that say nothing keep out no other party's, however many a party opens.
"""

import threading
from collections.abc import Callable
from ipaddress import IPv6Address
from typing import Protocol


class WaitingConnection(Protocol):
    """A connection that may be closed. party: a certificate's name, or a network where there is no certificate."""

    @property
    def party(self) -> str:
        """Return whose it is."""

    @property
    def close(self) -> Callable[[], object]:
        """End it, whatever it waits for."""


class WaitingPlaces:
    """`size` places. When one more comes, the oldest connection of the party that has most is closed."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._num = 0
        self._by_party: dict[str, dict[WaitingConnection, None]] = {}
        self._lock = threading.Lock()

    def enter(self, connection: WaitingConnection) -> None:
        """Let a connection in; the one that has to go for it is closed."""
        going: WaitingConnection | None = None
        with self._lock:
            if self._num >= self._size:
                crowd: dict[WaitingConnection, None] = max(self._by_party.values(), key=len)
                going = next(iter(crowd))
                self._remove(going)
            self._by_party.setdefault(connection.party, {})[connection] = None
            self._num += 1
        if going is not None:
            going.close()

    def leave(self, connection: WaitingConnection) -> None:
        """Forget a connection, if it is here."""
        with self._lock:
            if connection in self._by_party.get(connection.party, {}):
                self._remove(connection)

    def _remove(self, connection: WaitingConnection) -> None:
        of_party = self._by_party[connection.party]
        del of_party[connection]
        self._num -= 1
        if not of_party:
            del self._by_party[connection.party]


def network_of(address: str) -> str:
    """Return by what connections are counted: an IPv4 address, or the 64 bits of IPv6 that one subscriber has."""
    if ":" not in address:
        return address
    parsed = IPv6Address(address.partition("%")[0])
    return str(parsed.ipv4_mapped or parsed.packed[:8].hex())
