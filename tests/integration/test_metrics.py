"""Metrics, health and logs: what an operator's tools read."""

import json
import logging
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.metadata import version

import pytest
import yaml
from cryptography import x509
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from server.ledger import WAITING, ClientRecord, Ledger, LedgerUnavailable, RoundRecord
from server.ledger.database import Database
from server.operations.logs import FORMAT_VARIABLE, JsonLines, is_json_wanted
from server.operations.metrics import LedgerCollector, MetricsServer, serve_metrics
from server.operations.service_metrics import ServiceCollector
from server.service.call_metrics import CallMetrics
from server.service.callback_urls import AllowedUrls
from server.service.callbacks import Callbacks
from server.state_directory.files import LAST_BACKUP
from tests.certificates import Authority
from tests.integration.conftest import REPOSITORY
from tests.ledgers import live_at, submit
from tests.waiting import WAIT_S
from unlearning.errors import ConfigurationError
from unlearning.requests import Granularity, Outcome, Status, Target

START = datetime(2026, 3, 1, tzinfo=UTC)


class Book:
    """A ledger and a clock that the test moves."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.token = self.ledger.acquire_fence("loop", now=START)
        self.now = START
        live_at(self.ledger, self.token, START).register_clients(
            [ClientRecord("1"), ClientRecord("2"), ClientRecord("3", online=False)]
        )

    def submit(self, client: str) -> str:
        target = Target(Granularity.CLIENT, client)
        return submit(self.ledger, target, key=client, method="puf-special", now=self.now).id

    def move(self, request_id: str, to: Status, after_s: float) -> None:
        self.now += timedelta(seconds=after_s)
        live_at(self.ledger, self.token, self.now).move(request_id, to)

    def round(self, number: int, kind: str = "training", **metrics: object) -> None:
        record = RoundRecord(round=number, kind=kind, metrics=metrics, at=self.now)
        live_at(self.ledger, self.token).record_round(record)


@pytest.fixture
def book(sqlite_ledger: Ledger) -> Book:
    return Book(sqlite_ledger)


@pytest.fixture
def server(book: Book) -> Iterator[MetricsServer]:
    running = serve_metrics(book.ledger, "127.0.0.1:0")
    yield running
    running.stop()


@pytest.fixture
def value(book: Book):
    """One metric's value by name and labels; the collector is the same at every look."""
    registry = CollectorRegistry()
    registry.register(LedgerCollector(book.ledger, now=lambda: book.now))

    def read(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"flower_unlearning_{name}", labels)

    return read


def get(server: MetricsServer, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{server.address}{path}", timeout=WAIT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, exc.read().decode()


def test_rounds_are_summed_by_kind(book, value):
    """Bytes and seconds of two rounds; the second scrape adds only what is new."""
    book.round(1, bytes_sent=100, bytes_received=70, seconds=1.5, failed={"2": "gone"}, refused={})
    assert value("rounds_total", kind="training") == 1
    book.round(2, "recovery", bytes_sent=11, bytes_received=7, seconds=0.25, refused={"1": "nan", "3": "x"})
    assert value("rounds_total", kind="training") == 1
    assert value("rounds_total", kind="recovery") == 1
    assert value("bytes_sent_total") == 111
    assert value("bytes_received_total") == 77
    assert value("round_seconds_total") == 1.75
    assert value("client_failures_total") == 1
    assert value("updates_refused_total") == 2
    assert value("round") == 2
    assert value("round_refused") == 2
    assert value("last_round_timestamp_seconds") == START.timestamp()


def test_requests_are_counted_by_state_with_their_age(book, value):
    """One is scheduled for 30 s, one has just been received."""
    first = book.submit("1")
    book.move(first, Status.SCHEDULED, 5)
    book.now += timedelta(seconds=30)
    book.submit("2")
    assert value("requests", state="scheduled") == 1
    assert value("requests", state="received") == 1
    assert value("requests", state="completed") == 0
    assert value("oldest_request_seconds", state="scheduled") == 30
    assert value("oldest_request_seconds", state="received") == 0


def test_clients_are_counted_by_what_they_are_now(book, value):
    """Forgotten goes before online."""
    request_id = book.submit("1")
    for status in (Status.SCHEDULED, Status.UNLEARNING, Status.RECOVERING, Status.VERIFYING):
        book.move(request_id, status, 1)
    states = {state: value("clients", state=state) for state in ("online", "offline", "forgotten")}
    assert states == {"online": 1, "offline": 1, "forgotten": 1}


def test_rounds_that_were_not_committed_are_counted(book, value):
    """A loop whose rounds are all held is not silent."""
    book.round(1)
    book.round(2, not_committed="test accuracy 0.9 before the round, 0.1 after it")
    assert value("rounds_not_committed_total") == 1


def test_deadlines_are_counted_on_the_day_of_the_scrape(book, value):
    """Due on 1 April: seven days before it is due soon, a day after overdue, and answered it is neither."""
    book.submit("1")
    request_id = book.submit("2")
    names = ("requests_due_within_7_days", "requests_overdue")
    for day, expected in (
        ("2026-03-24", (0, 0)),
        ("2026-03-25", (2, 0)),
        ("2026-04-01", (2, 0)),
        ("2026-04-02", (0, 2)),
    ):
        book.now = datetime.fromisoformat(f"{day}T23:59:00+00:00")
        assert tuple(map(value, names)) == expected
    book.ledger.decisions.refuse(request_id, reason="exempt", by="ada", now=book.now)
    assert tuple(map(value, names)) == (0, 1)


def test_completed_requests_are_counted_by_outcome(book, value):
    """One whose deletion was not shown is no success in a dashboard either."""
    request_id = book.submit("1")
    for status in (Status.SCHEDULED, Status.UNLEARNING, Status.RECOVERING, Status.VERIFYING):
        book.move(request_id, status, 1)
    live_at(book.ledger, book.token, book.now).move(request_id, Status.COMPLETED, outcome=Outcome.NOT_SHOWN)
    assert (value("deletions", outcome="not-shown"), value("deletions", outcome="reduced")) == (1, 0)


def test_the_page_is_what_prometheus_reads(book, server):
    """Through its own parser, with the process's own metrics beside ours."""
    book.round(1, seconds=2.0)
    status, text = get(server, "/metrics")
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert status == 200
    assert families["flower_unlearning_round_seconds"].samples[0].value == 2.0
    assert "process_resident_memory_bytes" in families


def test_every_metric_of_dashboard_alerts_and_page_is_exposed(book, tmp_path):
    """By its name, which no tool checks: a dashboard of a metric that is gone is empty, and its alert is silent."""
    book.round(1)
    (tmp_path / LAST_BACKUP).write_text(START.isoformat())
    callbacks = Callbacks(book.ledger, tmp_path, AllowedUrls(()), None, lambda: START)
    own = ServiceCollector(state_dir=tmp_path, certificates=(), calls=CallMetrics(), callbacks=callbacks)
    registry = CollectorRegistry()
    registry.register(LedgerCollector(book.ledger))
    registry.register(own)
    endings = {"counter": "_total", "histogram": "_bucket"}
    exposed = {f"{one.name}{endings.get(one.type, '')}" for one in registry.collect()}
    named = {}
    for path in ("grafana-dashboard.json", "prometheus-alerts.yml"):
        named[path] = set(re.findall(r"flower_unlearning_\w+", (REPOSITORY / "deploy" / path).read_text()))
    page = (
        (REPOSITORY / "docs" / "reference-metrics.md")
        .read_text()
        .partition("| metric (")[2]
        .partition("\n\n")[0]
    )
    cells = [line.split("|")[1] for line in page.splitlines()[2:]]
    named["reference-metrics.md"] = {
        f"flower_unlearning_{name}" for cell in cells for name in re.findall(r"`(\w+)", cell)
    }
    assert [(path, names - exposed) for path, names in named.items() if names - exposed] == []
    assert exposed == named["reference-metrics.md"]


def test_the_dashboard_and_the_alerts_can_be_read():
    """JSON with a query in each panel, and YAML with what Prometheus asks of a rule."""
    board = json.loads((REPOSITORY / "deploy" / "grafana-dashboard.json").read_text())
    assert all(target["expr"] for panel in board["panels"] for target in panel["targets"])
    rules = yaml.safe_load((REPOSITORY / "deploy" / "prometheus-alerts.yml").read_text())
    alerts = [rule for group in rules["groups"] for rule in group["rules"]]
    assert {frozenset(rule) for rule in alerts} == {
        frozenset(("alert", "expr", "for", "labels", "annotations"))
    }
    assert len({rule["alert"] for rule in alerts}) == len(alerts)


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool comes with Prometheus, which is not here")
def test_prometheus_loads_the_alerts():
    """By its own tool, which parses each expression."""
    rules = REPOSITORY / "deploy" / "prometheus-alerts.yml"
    done = subprocess.run(["promtool", "check", "rules", rules], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_service_says_its_version_its_certificate_and_its_newest_backup(book, tmp_path):
    """What is not there has no value, which an alert can see."""
    registry = CollectorRegistry()
    pem = Authority(tmp_path).certify("server").certificate
    files = (pem, tmp_path / "gone.pem")
    registry.register(
        ServiceCollector(state_dir=tmp_path, certificates=files, calls=CallMetrics(), callbacks=None)
    )

    def read(name, **labels):
        return registry.get_sample_value(f"flower_unlearning_{name}", labels)

    ends = x509.load_pem_x509_certificate(pem.read_bytes()).not_valid_after_utc.timestamp()
    assert read("certificate_expires_timestamp_seconds", file=pem.name) == ends
    assert read("certificate_expires_timestamp_seconds", file="gone.pem") is None
    assert read("build_info", version=version("flower-unlearning"), protocol="1", flower=version("flwr")) == 1
    assert read("last_backup_timestamp_seconds") is None
    (tmp_path / LAST_BACKUP).write_text(START.isoformat())
    assert read("last_backup_timestamp_seconds") == START.timestamp()


def test_a_site_was_seen_when_the_ledger_says(book, value):
    """One that is forgotten is not watched any more."""
    seen = [ClientRecord(name, last_seen=START) for name in ("1", "2")]
    live_at(book.ledger, book.token, START).register_clients(seen)
    request_id = book.submit("1")
    for status in (Status.SCHEDULED, Status.UNLEARNING, Status.RECOVERING, Status.VERIFYING):
        book.move(request_id, status, 1)
    assert value("client_last_seen_timestamp_seconds", client="2") == START.timestamp()
    assert value("client_last_seen_timestamp_seconds", client="1") is None


def test_a_ledger_that_is_away_is_said_and_not_fatal(book, server, monkeypatch):
    """503 for what restarts services, ledger_up 0 for Prometheus, and both recover."""
    assert get(server, "/healthz")[0] == 200
    with monkeypatch.context() as patch:

        def gone(self: Database) -> None:
            raise LedgerUnavailable("gone: postgresql://user@host/db")

        patch.setattr(Database, "reading", gone)
        status, text = get(server, "/healthz")
        assert status == 503
        assert "host" not in text  # no address of a database
        assert "flower_unlearning_ledger_up 0.0" in get(server, "/metrics")[1]
    assert json.loads(get(server, "/healthz")[1]) == {"status": "ok", "last_event": 1}
    assert "flower_unlearning_ledger_up 1.0" in get(server, "/metrics")[1]


def test_there_is_nothing_else_to_read(server):
    """No file of the machine can be asked for."""
    assert get(server, "/../../etc/passwd")[0] == 404


@pytest.mark.parametrize("address", ["9105", "127.0.0.1:", "127.0.0.1:x", "192.0.2.1:9105"])
def test_an_address_that_cannot_be_used_is_a_wrong_setting(book, address):
    """With the address in the message."""
    with pytest.raises(ConfigurationError) as caught:
        serve_metrics(book.ledger, address)
    (problem,) = caught.value.problems
    assert address in problem


def test_a_json_line_says_who_when_what_and_what_was_given():
    """One object on one line, whatever the message holds."""
    record = logging.makeLogRecord(
        {"name": "server.x", "levelname": "WARNING", "msg": 'lost %s\n"x"', "args": ("ü",), "created": 0.5}
    )
    record.round = 7
    line = JsonLines().format(record)
    assert "\n" not in line
    fields = json.loads(line)
    assert fields["time"] == "1970-01-01T00:00:00.500+00:00"
    assert (fields["level"], fields["logger"]) == ("warning", "server.x")
    assert fields["message"] == 'lost ü\n"x"'
    assert fields["round"] == 7
    assert "exception" not in fields


def test_a_json_line_carries_the_exception():
    """On the same line."""
    try:
        raise ValueError("why")
    except ValueError as exc:
        record = logging.makeLogRecord({"msg": "x", "exc_info": (type(exc), exc, exc.__traceback__)})
    assert "ValueError: why" in json.loads(JsonLines().format(record))["exception"]


def test_the_environment_decides_the_format(monkeypatch):
    """One variable for the ServerApp, the service and the supervisor; a typing error is said."""
    monkeypatch.delenv(FORMAT_VARIABLE, raising=False)
    assert not is_json_wanted()
    monkeypatch.setenv(FORMAT_VARIABLE, "json")
    assert is_json_wanted()
    monkeypatch.setenv(FORMAT_VARIABLE, "jsonl")
    with pytest.raises(ConfigurationError):
        is_json_wanted()


def test_metrics_say_for_whom_the_run_waits_and_how_long(book, value):
    """Nothing where it waits for no client."""
    writer = live_at(book.ledger, book.token, START)
    writer.set_facts({WAITING: {"text": "", "clients": ["st-mary"], "since": START.isoformat()}})
    book.now += timedelta(seconds=90)
    assert value("waiting_seconds", client="st-mary") == 90.0
    writer.set_facts({WAITING: {}})
    assert value("waiting_seconds", client="st-mary") is None
