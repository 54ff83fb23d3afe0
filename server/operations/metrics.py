"""What the ledger says about the federation, as Prometheus metrics.

The ledger is where everything meets, so its facts need no wiring in the ServerApp, and a ServerApp that has
died is seen by a round that does not come. Each scrape reads only what is new since the last one.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Set
from datetime import UTC, datetime
from logging import getLogger

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from server.ledger import ClientRecord, Event, Ledger, LedgerUnavailable, RoundRecord
from unlearning.requests import OPEN_STATUSES, Status

_log = getLogger(__name__)
PREFIX = "flower_unlearning"


class LedgerCollector(Collector):
    """A reader of the ledger at each scrape; `now` gives the time in UTC. Safe for several scrapes at once."""

    def __init__(self, ledger: Ledger, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._ledger = ledger
        self._now = now
        self._turn = threading.Lock()
        self._rounds = _Rounds()
        self._states = _States()

    def collect(self) -> Iterable[Metric]:
        """Return all metrics; where the ledger cannot be read, only that it cannot."""
        try:
            with self._turn:
                metrics = [*self._clients(), *self._round_metrics(), *self._request_metrics()]
            is_up = 1
        except LedgerUnavailable as exc:
            _log.warning("The ledger cannot be read for metrics: %s", exc)
            metrics, is_up = [], 0
        return [_gauge("ledger_up", "1 if the ledger can be read", is_up), *metrics]

    def _clients(self) -> list[Metric]:
        found = _labelled_gauge("clients", "clients ever seen, by what they are now", "state")
        gone = self._ledger.forgotten_clients()
        counts = Counter(_state_of(client, gone) for client in self._ledger.clients())
        for state in ("online", "offline", "forgotten"):
            found.add_metric([state], counts[state])
        return [found]

    def _round_metrics(self) -> list[Metric]:
        seen = self._rounds
        for record in self._ledger.all_rounds(after=seen.sequence):
            seen.add(record)
        by_kind = _counter(
            "rounds", "rounds done, by kind; one done again after a crash counts again", "kind"
        )
        for kind in ("training", "unlearning", "recovery"):
            by_kind.add_metric([kind], seen.by_kind[kind])
        sums = [
            _counter("round_seconds", "seconds spent in exchanges of rounds"),
            _counter("bytes_sent", "payload bytes sent to clients in rounds"),
            _counter("bytes_received", "payload bytes received from clients in rounds"),
            _counter("client_failures", "clients that gave no usable answer to a round, summed over rounds"),
            _counter("updates_refused", "updates refused, summed over rounds"),
            _counter("rounds_not_committed", "rounds whose model the gate held"),
        ]
        for metric, value in zip(
            sums,
            (seen.seconds, seen.bytes_sent, seen.bytes_received, seen.failed, seen.refused, seen.held),
            strict=True,
        ):
            metric.add_metric([], value)
        last = seen.last
        if last is None:
            return [by_kind, *sums]
        return [
            by_kind,
            *sums,
            _gauge("round", "number of the last round", last.round),
            _gauge(
                "last_round_timestamp_seconds", "when the last round ended, Unix time", last.at.timestamp()
            ),
            _gauge(
                "round_participants", "clients in the last round", len(last.metrics.get("participants", ()))
            ),
            _gauge(
                "round_failed", "clients that failed in the last round", len(last.metrics.get("failed", ()))
            ),
            _gauge(
                "round_refused", "updates refused in the last round", len(last.metrics.get("refused", ()))
            ),
        ]

    def _request_metrics(self) -> list[Metric]:
        seen = self._states
        for event in self._ledger.events.all(after=seen.sequence):
            seen.add(event)
        counts = self._ledger.requests.status_counts()
        count = _labelled_gauge("requests", "deletion requests, by state", "state")
        oldest = _labelled_gauge("oldest_request_seconds", "age of the oldest request in this state", "state")
        spent = _counter(
            "request_state_seconds", "seconds that requests have spent in a state and left", "state"
        )
        now = self._now()
        for status in Status:
            number, since = counts.get(status, (0, now))
            count.add_metric([status], number)
            spent.add_metric([status], seen.seconds[status])
            if status in OPEN_STATUSES:
                oldest.add_metric([status], max(0.0, (now - since).total_seconds()))
        overdue, soon = self._ledger.requests.deadlines(now.date())
        return [
            count,
            oldest,
            spent,
            _gauge("requests_overdue", "requests without an answer past their deadline", overdue),
            _gauge(
                "requests_due_within_7_days", "requests without an answer that are due within a week", soon
            ),
        ]


class _Rounds:
    """Sums over the rounds that were read so far."""

    def __init__(self) -> None:
        self.sequence = 0
        self.last: RoundRecord | None = None
        self.by_kind: Counter[str] = Counter()
        self.seconds = 0.0
        self.bytes_sent = self.bytes_received = self.failed = self.refused = self.held = 0

    def add(self, record: RoundRecord) -> None:
        metrics = record.metrics
        self.sequence, self.last = record.sequence, record
        self.by_kind[record.kind] += 1
        self.seconds += float(metrics.get("seconds") or 0.0)
        self.bytes_sent += int(metrics.get("bytes_sent") or 0)
        self.bytes_received += int(metrics.get("bytes_received") or 0)
        self.failed += len(metrics.get("failed") or ())
        self.refused += len(metrics.get("refused") or ())
        self.held += bool(metrics.get("not_committed"))


class _States:
    """Seconds that requests spent in each state, from the events that were read so far."""

    def __init__(self) -> None:
        self.sequence = 0
        self.seconds: dict[str, float] = defaultdict(float)
        self._since: dict[str, datetime] = {}

    def add(self, event: Event) -> None:
        self.sequence = event.sequence
        if not event.request_id or (event.to_status is None and event.request_id in self._since):
            return  # of the federation, or a note
        before = self._since.get(event.request_id)
        if before is not None and event.from_status is not None:
            # The clock may have been put back in between; a counter must not fall.
            self.seconds[event.from_status] += max(0.0, (event.at - before).total_seconds())
        self._since[event.request_id] = event.at


def _state_of(client: ClientRecord, gone: Set[str]) -> str:
    if client.client_id in gone:
        return "forgotten"
    return "online" if client.online else "offline"


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{PREFIX}_{name}", text[0].upper() + text[1:] + ".", value=value)


def _labelled_gauge(name: str, text: str, label: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{PREFIX}_{name}", text[0].upper() + text[1:] + ".", labels=[label])


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"{PREFIX}_{name}", text[0].upper() + text[1:] + ".", labels=labels)
