"""Clients that count as online and answer no more, as the records of rounds show them.

A SuperNode says that it lives by its own heartbeat, whatever became of the process that works at its message. Flower's
waits for good where that process ended by SIGTERM or hangs, and takes no other message meanwhile.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from server.ledger.records import ClientRecord
from server.ledger.store import Ledger

HEARTBEAT = timedelta(seconds=35)
"""A SuperNode sends a heartbeat every 17.5 to 22.5 s, and the ledger is told within 5 s; the rest is for a slow one."""
IN_A_ROW = 2
REMEDY = (
    "Restart its SuperNode (systemctl restart flower-supernode, or its container): the message's process there "
    "hangs or was ended by SIGTERM. If the client only is slow, raise round-timeout-s."
)
_NEWEST = 50  # rounds; a client that was not asked in so many is not said to be silent


def presence(client: ClientRecord, now: datetime) -> str:
    """Say whether a client is online: `yes`, `no`, or for how long nobody has heard of it.

    Flower counts a SuperNode that was killed as online until its lease ends, 60 s after its last heartbeat.
    """
    if not client.online:
        return "no"
    silence = timedelta() if client.last_seen is None else now - client.last_seen
    return "yes" if silence < HEARTBEAT else f"not heard of for {silence.total_seconds():,.0f} s"


def sentence(client: str, rounds: Sequence[int]) -> str:
    """Say that a client is silent, for the log and for `check`."""
    return f"Client {client} is online and gave no answer in rounds {', '.join(map(str, rounds))}."


def unresponsive_clients(ledger: Ledger) -> Mapping[str, tuple[int, ...]]:
    """Return the online clients that let the last `IN_A_ROW` messages of rounds pass their deadline; and the rounds."""
    online = {record.client_id for record in ledger.clients() if record.online} - ledger.forgotten_clients()
    newest = {
        record.round: record for record in ledger.rounds(after=max(0, ledger.events.newest()[1] - _NEWEST))
    }
    found: dict[str, list[int]] = defaultdict(list)
    for number in sorted(newest, reverse=True):
        metrics = newest[number].metrics
        silent = set(metrics.get("silent") or ())
        for client in silent & online:
            found[client].append(number)
        # Who answered, whatever it was, is not silent; nor is it before that.
        online -= {*(metrics.get("participants") or ()), *(metrics.get("failed") or ())} - silent
        online -= {client for client in online if len(found[client]) >= IN_A_ROW}
    return {
        client: tuple(sorted(rounds)) for client, rounds in sorted(found.items()) if len(rounds) >= IN_A_ROW
    }
