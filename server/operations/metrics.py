"""What the ledger says about the federation, as Prometheus metrics, and the health of the service, over HTTP.

The ledger is where everything meets, so its facts need no wiring in the ServerApp, and a ServerApp that has
died is seen by a round that does not come. Each scrape reads only what is new since the last one.

The server is that of `prometheus_client`: a thread per connection, no TLS and no limit on connections. It belongs on
loopback, or behind a proxy (docs/how-to-watch-with-metrics.md).
"""

import json
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from logging import getLogger
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import ThreadingWSGIServer, make_wsgi_app
from prometheus_client.registry import Collector

from server.ledger import (
    PRIVATE_TRAINING,
    SAMPLE_PRIVACY,
    WAITING,
    ClientRecord,
    Ledger,
    LedgerUnavailable,
    RoundRecord,
)
from server.ledger.records import RECHECK, RECHECKED
from server.service.call_metrics import PREFIX
from strategies.addresses import address_of, listening_place
from unlearning.errors import ConfigurationError
from unlearning.requests import OPEN_STATUSES, Outcome, Status

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

_log = getLogger(__name__)
_SILENT_S = 10.0
"""How long a connection may send nothing before its thread ends."""

_SUMS: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], float]]] = {
    "round_seconds": ("seconds spent in exchanges of rounds", lambda of: float(of.get("seconds") or 0)),
    "bytes_sent": ("payload bytes sent to clients in rounds", lambda of: int(of.get("bytes_sent") or 0)),
    "bytes_received": (
        "payload bytes received from clients in rounds",
        lambda of: int(of.get("bytes_received") or 0),
    ),
    "client_failures": (
        "clients that gave no usable answer to a round, summed over rounds",
        lambda of: len(of.get("failed") or ()),
    ),
    "updates_refused": ("updates refused, summed over rounds", lambda of: len(of.get("refused") or ())),
    "rounds_not_committed": (
        "rounds whose model the gate rejected",
        lambda of: bool(of.get("not_committed")),
    ),
}
"""Counters over all rounds, each with its sentence and what a round's record adds."""


class LedgerCollector(Collector):
    """A reader of the ledger at each scrape; `now` gives the time in UTC. Safe for several scrapes at once."""

    def __init__(self, ledger: Ledger, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._ledger = ledger
        self._now = now
        self._turn = threading.Lock()
        self._last_round: RoundRecord | None = None
        self._by_kind: Counter[str] = Counter()
        self._looked_until = 0
        self._rechecked: dict[str, str] = {}
        self._sums: dict[str, float] = dict.fromkeys(_SUMS, 0.0)

    def collect(self) -> Iterable[Metric]:
        """Return all metrics; where the ledger cannot be read, only that it cannot."""
        try:
            with self._turn:
                metrics = [
                    *self._clients(),
                    self._waiting(),
                    *self._privacy(),
                    *self._round_metrics(),
                    *self._request_metrics(),
                    self._recheck_metric(),
                ]
            is_up = 1
        except LedgerUnavailable as exc:
            _log.warning("The ledger cannot be read for metrics: %s", exc)
            metrics, is_up = [], 0
        return [gauge("ledger_up", "1 if the ledger can be read", is_up), *metrics]

    def _clients(self) -> Iterator[Metric]:
        found = labelled_gauge("clients", "clients ever seen, by what they are now", "state")
        seen = labelled_gauge(
            "client_last_seen_timestamp_seconds",
            "when a client that is not forgotten was seen last",
            "client",
        )
        gone, clients = self._ledger.forgotten_clients(), self._ledger.clients()
        counts = Counter(_state_of(client, gone) for client in clients)
        for state in ("online", "offline", "forgotten"):
            found.add_metric([state], counts[state])
        for client in clients:
            if client.last_seen is not None and client.client_id not in gone:
                seen.add_metric([client.client_id], client.last_seen.timestamp())
        yield from (found, seen)

    def _waiting(self) -> Metric:
        text = "seconds for which the run has waited for a client's answer, from 20 on"
        found = labelled_gauge("waiting_seconds", text, "client")
        waiting = dict(self._ledger.facts().get(WAITING) or {})
        for client in waiting.get("clients", ()):
            since = datetime.fromisoformat(waiting["since"])
            found.add_metric([client], max(0.0, (self._now() - since).total_seconds()))
        return found

    def _privacy(self) -> Iterator[Metric]:
        if found := self._ledger.facts().get(PRIVATE_TRAINING):
            used = math.inf if found["epsilon"] is None else found["epsilon"]
            yield gauge("privacy_epsilon", "epsilon of private training so far, for one client", used)
            yield gauge("privacy_delta", "delta at which epsilon is counted", found["delta"])
            yield gauge(
                "privacy_budget", "the largest epsilon of private training, 0 for none", found["budget"]
            )
        if said := self._ledger.facts().get(SAMPLE_PRIVACY):
            text = "epsilon for one sample of a client's private training, by its own account"
            family = labelled_gauge("sample_privacy_epsilon", text, "client")
            for client, one in sorted(said["clients"].items()):
                family.add_metric([client], math.inf if one["epsilon"] is None else one["epsilon"])
            yield family

    def _round_metrics(self) -> Iterator[Metric]:
        for record in self._ledger.all_rounds(after=self._last_round.sequence if self._last_round else 0):
            self._last_round = record
            self._by_kind[record.kind] += 1
            for name, (_, added) in _SUMS.items():
                self._sums[name] += added(record.metrics)
        by_kind = _counter(
            "rounds", "rounds done, by kind; one done again after a crash counts again", "kind"
        )
        for kind in ("training", "unlearning", "recovery"):
            by_kind.add_metric([kind], self._by_kind[kind])
        yield by_kind
        for name, (text, _) in _SUMS.items():
            metric = _counter(name, text)
            metric.add_metric([], self._sums[name])
            yield metric
        if last := self._last_round:
            yield gauge("round", "number of the last round", last.round)
            ended = last.at.timestamp()
            yield gauge("last_round_timestamp_seconds", "when the last round ended, Unix time", ended)
            for name, text in (
                ("participants", "clients in the last round"),
                ("failed", "clients that failed in the last round"),
                ("refused", "updates refused in the last round"),
            ):
                yield gauge(f"round_{name}", text, len(last.metrics.get(name, ())))

    def _recheck_metric(self) -> Metric:
        newest = self._ledger.events.last_sequence()
        for event in self._ledger.events.of_kind(RECHECKED, after=self._looked_until):
            self._rechecked[event.request_id] = str(event.detail[RECHECK].get("now") or "not measured")
        self._looked_until = newest
        text = "completed requests whose last recheck reopened nothing, by what the attacks said"
        found = labelled_gauge("rechecks", text, "effect")
        counts = Counter({"reduced": 0, "not shown": 0, "not measured": 0})
        counts.update(self._rechecked.values())
        for effect, number in sorted(counts.items()):
            found.add_metric([effect], number)
        return found

    def _request_metrics(self) -> list[Metric]:
        counts, since = self._ledger.requests.status_counts(), self._ledger.requests.oldest_open()
        count = labelled_gauge("requests", "deletion requests, by state", "state")
        oldest = labelled_gauge("oldest_request_seconds", "age of the oldest request in this state", "state")
        now = self._now()
        for status in Status:
            count.add_metric([status], counts.get(status, 0))
            if status in OPEN_STATUSES:
                oldest.add_metric([status], max(0.0, (now - since.get(status, now)).total_seconds()))
        shown = labelled_gauge(
            "deletions", "completed requests, by what was shown of the deletion", "outcome"
        )
        outcomes = self._ledger.requests.outcome_counts()
        for outcome in Outcome:
            shown.add_metric([outcome], outcomes.get(outcome, 0))
        overdue, soon = self._ledger.requests.deadlines(now.date())
        return [
            count,
            oldest,
            shown,
            gauge("requests_overdue", "requests without an answer past their deadline", overdue),
            gauge(
                "requests_due_within_7_days", "requests without an answer that are due within a week", soon
            ),
        ]


def _state_of(client: ClientRecord, gone: Set[str]) -> str:
    if client.client_id in gone:
        return "forgotten"
    return "online" if client.online else "offline"


def gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    """Return a gauge of one value."""
    return GaugeMetricFamily(f"{PREFIX}_{name}", text[0].upper() + text[1:] + ".", value=value)


def labelled_gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    """Return a gauge with labels and no value yet."""
    return GaugeMetricFamily(f"{PREFIX}_{name}", text[0].upper() + text[1:] + ".", labels=labels)


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"{PREFIX}_{name}", text[0].upper() + text[1:] + ".", labels=labels)


@dataclass(frozen=True, slots=True)
class MetricsServer:
    """A server of /metrics and /healthz in a thread of its own, until `stop`."""

    server: ThreadingWSGIServer

    @property
    def address(self) -> str:
        """Where it listens, HOST:PORT."""
        return address_of(self.server.socket)

    def stop(self) -> None:
        """Stop listening; returns when that is so."""
        self.server.shutdown()
        self.server.server_close()


class _Handler(WSGIRequestHandler):
    timeout = _SILENT_S

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        _log.debug(format, *args)


def serve_metrics(ledger: Ledger, address: str, *others: Collector) -> MetricsServer:
    """Start answering at `address` (port 0 takes a free one), with the metrics of the `others` too, and return.

    Raises:
        ConfigurationError: the address cannot be used.
    """
    host, port, family = listening_place("metrics", address)

    class Server(ThreadingWSGIServer):
        address_family = family

    try:
        server = make_server(host, port, _application(ledger, others), Server, _Handler)
    except OSError as exc:
        raise ConfigurationError([f"metrics: cannot listen at {address}: {exc}."]) from exc
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return MetricsServer(server)


def _application(ledger: Ledger, others: Iterable[Collector]) -> "WSGIApplication":
    registry = CollectorRegistry()
    for collector in (LedgerCollector(ledger), *others):
        registry.register(collector)
    ProcessCollector(registry=registry)
    metrics = make_wsgi_app(registry)

    def answer(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/metrics":
            return metrics(environ, start_response)  # type: ignore[no-any-return]  # prometheus_client does not type it
        if environ["PATH_INFO"] != "/healthz":
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            return [b"Here are /metrics and /healthz.\n"]
        try:
            status, found = "200 OK", {"status": "ok", "last_event": ledger.events.last_sequence()}
        except LedgerUnavailable as exc:
            _log.warning("Not healthy: %s", exc)
            status, found = "503 Service Unavailable", {"status": "the ledger cannot be read"}
        start_response(status, [("Content-Type", "application/json")])
        return [json.dumps(found).encode()]

    return answer
