"""How many calls of the deletion service ended in which way, and how long they took: for `/metrics`."""

import asyncio
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from prometheus_client import Counter, Histogram
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from server.service.statuses import STATUS_OF, status_of
from unlearning.errors import FlowerUnlearningError

PREFIX = "flower_unlearning"
_BUCKETS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0)


class CallMetrics(Collector):
    """Counters over the calls of one service, over gRPC and HTTP; safe to use from several threads."""

    def __init__(self) -> None:
        labels = ["call", "code"]
        text = "Calls of the deletion service, by gRPC's name of how they ended."
        self._ended = Counter(f"{PREFIX}_calls", text, labels, registry=None)
        text = "Time from a call's beginning to its end."
        self._seconds = Histogram(f"{PREFIX}_call_seconds", text, ["call"], registry=None, buckets=_BUCKETS)

    @contextmanager
    def measured(self, call: str) -> Iterator[None]:
        """Count the call that the block answers, by the error with which it ends, if any."""
        started, code = time.monotonic(), "OK"
        try:
            yield
        except asyncio.CancelledError:
            code = "CANCELLED"
            raise
        except FlowerUnlearningError as exc:
            code = status_of(exc).name if isinstance(exc, tuple(STATUS_OF)) else "INTERNAL"
            raise
        except Exception:
            code = "INTERNAL"
            raise
        finally:
            self._ended.labels(call, code).inc()
            self._seconds.labels(call).observe(time.monotonic() - started)

    def collect(self) -> Iterable[Metric]:
        """Return both metrics."""
        return [*self._ended.collect(), *self._seconds.collect()]
