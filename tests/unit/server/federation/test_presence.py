"""The ledger says who is online and when each was last heard of; `clients` says it to people."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from server.federation.clients import Clients
from server.federation.presence import presence, register_clients
from server.ledger import WAITING, ClientRecord, Ledger, LedgerWriter
from strategies.exchange import Exchange
from strategies.roster import Member
from tests.ledgers import submit
from unlearning.requests import Granularity, Target

NOW = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)
CLIENT = Member("hospital-0", 5, "ab", True, heard_at=NOW)


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


@pytest.fixture
def writer(sqlite_ledger: Ledger) -> LedgerWriter:
    """Of a ledger whose clock says an hour later than the heartbeats."""
    return sqlite_ledger.live(sqlite_ledger.acquire_fence("test", now=NOW), lambda: after(3600))


@pytest.fixture
def seen(sqlite_ledger: Ledger, writer: LedgerWriter) -> Callable[[Member | None], ClientRecord]:
    """Registers the one client that is online, or none; gives the ledger's record of it."""

    def register(member: Member | None) -> ClientRecord:
        register_clients(sqlite_ledger, writer, {} if member is None else {member.client_id: member})
        [record] = sqlite_ledger.clients()
        return record

    return register


def test_a_client_was_seen_when_its_heartbeat_came(seen):
    """Not when somebody looked; and still then when it has gone."""
    assert seen(CLIENT).last_seen == NOW
    assert seen(replace(CLIENT, heard_at=after(20))).last_seen == after(20)
    gone = seen(None)
    assert (gone.online, gone.last_seen) == (False, after(20))


def test_a_client_that_comes_back_as_another_node_is_that_node(seen):
    """Also where its heartbeat is no newer."""
    seen(CLIENT)
    assert seen(replace(CLIENT, node_id=6)).node_name == "6"


def test_a_client_without_heartbeats_was_seen_when_it_was_looked(seen):
    """As in a simulation."""
    assert seen(replace(CLIENT, heard_at=None)).last_seen == after(3600)


def test_a_killed_client_is_not_said_to_be_online():
    """Flower counts it until its lease ends; what people read says for how long nobody has heard of it."""
    record = ClientRecord("hospital-0", last_seen=NOW)
    assert presence(record, after(22)) == "yes"
    assert presence(record, after(40)) == "not heard of for 40 s"
    assert presence(replace(record, online=False), after(40)) == "no"


def test_clients_that_are_there_are_listed_while_others_are_waited_for(sqlite_ledger, writer):
    """Before the first round, too: a run that waits for a fourth client has seen the three that are online."""
    listed: list[str] = []

    class WaitsForTwo:
        roster = SimpleNamespace(online=lambda _grid, **_: {CLIENT.client_id: CLIENT})

        def await_clients(self, _grid, tell):
            tell("Waiting for 2 client(s).")
            listed.extend(record.client_id for record in sqlite_ledger.clients())
            tell("")

    clients = Clients(grid=None, fedavg=WaitsForTwo(), ledger=sqlite_ledger, writer=writer, asked=None)
    clients.await_clients()
    assert listed == ["hospital-0"]
    assert sqlite_ledger.facts()[WAITING] == {}


def test_the_ledger_says_for_whom_answers_are_waited_since_when_and_until_when(sqlite_ledger, monkeypatch):
    """After a while only, and no longer than it lasts; who follows the request under way is told, too."""
    time = [NOW]
    writer = sqlite_ledger.live(sqlite_ledger.acquire_fence("test", now=NOW), lambda: time[0])
    request = submit(sqlite_ledger, Target(Granularity.CLIENT, "hospital-0"), key="1", method="not", now=NOW)
    found: list[Mapping[str, object]] = []

    def wait(_grid, _messages, *, timeout_s, meanwhile):
        for seconds, names in ((19, {"st-mary", "st-luke"}), (20, {"st-mary"})):
            time[0] = after(seconds)
            meanwhile(names)
            found.append(sqlite_ledger.facts().get(WAITING))
        return Exchange()

    monkeypatch.setattr("server.federation.clients.LOOK_S", 0.0)
    monkeypatch.setattr("server.federation.clients.exchange", wait)
    strategy = SimpleNamespace(
        settings=SimpleNamespace(round_timeout_s=600.0, secure_aggregation=False),
        roster=SimpleNamespace(online=lambda _grid, **_: {}, unable={}),
    )
    clients = Clients(grid=None, fedavg=strategy, ledger=sqlite_ledger, writer=writer, asked=None)
    clients._served = (request.id,)
    clients.exchange({})
    text = "Waiting for st-mary since 12:00:00, at most until 12:10:00 (UTC)."
    said = {"clients": ["st-mary"], "since": NOW.isoformat(), "until": after(600).isoformat(), "text": text}
    assert found == [None, said]
    assert sqlite_ledger.facts()[WAITING] == {}
    assert list(sqlite_ledger.events.all(request.id))[-1].detail == {"text": text}
