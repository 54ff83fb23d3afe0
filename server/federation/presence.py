"""Which clients are online and when each was last heard of, as the ledger tells others."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from server.ledger import ClientRecord, LedgerWriter
from strategies.roster import Member

FRESH = timedelta(seconds=20)
"""So long the ledger need not be told again that a client without heartbeats, a virtual one, is online."""


def register_clients(writer: LedgerWriter, online: Mapping[str, Member]) -> None:
    """Write who is online, and when each was last heard of, into the ledger: others know clients from there."""
    now = writer.now()
    known = {record.client_id: record for record in writer.ledger.clients()}
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


def _is_fresh(record: ClientRecord | None, member: Member, now: datetime) -> bool:
    """Tell whether the ledger knows a client as it is; thousands of rows need no rewriting each round."""
    if record is None or not record.online or record.last_seen is None:
        return False
    if record.node_name != str(member.node_id):
        return False
    return now - record.last_seen < FRESH if member.heard_at is None else member.heard_at <= record.last_seen
