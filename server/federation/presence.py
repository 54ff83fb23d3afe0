"""Which clients take part: which are online, which answer no more, which are left out of rounds for a while.

The roster (`strategies.roster`) knows what the SuperLink says; `register_clients` writes it into the ledger, from where
the deletion service, the command line and the checks know it (`presence`).

A SuperNode sends its own heartbeat, whatever happened to the process that works at its message. Flower's waits without
end where that process ended by SIGTERM or hangs, and takes no other message meanwhile. The records of rounds show such
clients (`unresponsive_clients`).

A client without which a round could be committed, and with which it could not, is left out (`suspend`): the first time
for 3 rounds, then for twice as many as the time before, 48 at most; after 48 rounds without such a round it begins
again at 3. Its own deletions are carried out meanwhile, and its requests are taken.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from server.ledger import ClientRecord, Ledger, LedgerWriter
from server.ledger.records import HEARTBEAT

if TYPE_CHECKING:  # it brings in Flower, and the command line needs `presence` only
    from strategies.roster import Member

IN_A_ROW = 2
REMEDY = (
    "Restart its SuperNode (systemctl restart flower-supernode, or its container): the message's process there "
    "hangs or was ended by SIGTERM. If the client only is slow, raise round-timeout-s."
)
_NEWEST = 50  # rounds; a client that got no message in them does not count as silent


FIRST_ROUNDS, MOST_ROUNDS = 3, 48
FINDING = "clients that were left out of rounds"
"""What a deletion's report calls them."""
FRESH = timedelta(seconds=20)
"""For this long the entry of an online client without heartbeats, a virtual one, need not be renewed."""


def register_clients(ledger: Ledger, writer: LedgerWriter, online: Mapping[str, "Member"]) -> frozenset[str]:
    """Write into the ledger which clients are online, and when the last heartbeat of each came; return all it knows."""
    now = writer.now()
    known = {record.client_id: record for record in ledger.clients()}
    records = [
        ClientRecord(client, str(member.node_id), member.public_key_hex, True, member.heard_at or now)
        for client, member in online.items()
        if not _is_fresh(known.get(client), member, now)
    ]
    records += [
        replace(record, online=False)
        for client, record in known.items()
        if client not in online and record.online
    ]
    if records:
        writer.register_clients(records)
    return frozenset({*known, *online})


def _is_fresh(record: ClientRecord | None, member: "Member", now: datetime) -> bool:
    """Tell whether the ledger knows a client as it is; thousands of rows need no rewriting each round."""
    if record is None or not record.online or record.last_seen is None:
        return False
    if record.node_name != str(member.node_id):
        return False
    return now - record.last_seen < FRESH if member.heard_at is None else member.heard_at <= record.last_seen


def presence(client: ClientRecord, now: datetime) -> str:
    """Say whether a client is online: `yes`, `no`, or for how long no heartbeat has come.

    Flower counts a SuperNode that was killed as online until its lease ends, 60 s after its last heartbeat.
    """
    if not client.online:
        return "no"
    silence = client.silence(now)
    return "yes" if silence < HEARTBEAT else f"not heard of for {silence.total_seconds():,.0f} s"


def sentence(client: str, rounds: Sequence[int]) -> str:
    """Say that a client is silent, for the log and for `check`."""
    return f"Client {client} is online and gave no answer in rounds {', '.join(map(str, rounds))}."


def unresponsive_clients(ledger: Ledger) -> Mapping[str, tuple[int, ...]]:
    """Return the online clients that let the last `IN_A_ROW` messages of rounds pass their deadline; and the rounds."""
    online = {record.client_id for record in ledger.online_clients()} - ledger.forgotten_clients()
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspension:
    """The round until which a client is left out, and for how many rounds that was."""

    until: int
    rounds: int


def suspend(known: Mapping[str, Suspension], client: str, number: int) -> dict[str, Suspension]:
    """Return the suspensions after round `number`, in which `client` was left out of the mean; none if it is empty."""
    left = {name: one for name, one in known.items() if number <= one.until + MOST_ROUNDS}
    if client:
        rounds = min(2 * left[client].rounds, MOST_ROUNDS) if client in left else FIRST_ROUNDS
        left[client] = Suspension(until=number + rounds, rounds=rounds)
    return left


def suspended(known: Mapping[str, Suspension], number: int) -> dict[str, Suspension]:
    """Return the clients that are left out of the round `number`."""
    return {client: one for client, one in sorted(known.items()) if number <= one.until}


def sentences(known: Mapping[str, Suspension], number: int) -> dict[str, str]:
    """Say by client that it is left out of the round `number`, and until when."""
    return {
        client: f"It is left out of rounds until round {one.until}: a round could be committed only without it."
        for client, one in suspended(known, number).items()
    }


def with_left_out(
    findings: Mapping[str, Any], known: Mapping[str, Suspension], number: int
) -> dict[str, Any]:
    """Return a deletion's findings with those clients named that are left out of the round `number`."""
    said = sentences(known, number)
    return {**findings, FINDING: {**findings.get(FINDING, {}), **said}} if said else dict(findings)
