"""What the deletion service says of itself as metrics: its version, calls, callbacks, certificates and backups."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

from cryptography import x509
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from server.operations.metrics import gauge, labelled_gauge
from server.service.call_metrics import CallMetrics
from server.service.callbacks import Callbacks
from server.state_directory.files import LAST_BACKUP
from unlearning.protocol import own_version


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # a registry knows it by its identity
class ServiceCollector(Collector):
    """A reader of one service's facts at each scrape. certificates: the files that the service was started with."""

    state_dir: Path
    certificates: tuple[Path, ...]
    calls: CallMetrics
    callbacks: Callbacks | None

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics; a file that is not there or cannot be read has none."""
        names = ("version", "protocol", "flower")
        built = labelled_gauge("build_info", "1, with the versions of this service in its labels", *names)
        built.add_metric([version("flower-unlearning"), str(own_version()), version("flwr")], 1)
        yield built
        yield from self.calls.collect()
        if self.callbacks is not None:
            waiting, failing = self.callbacks.counts()
            yield gauge("callbacks_waiting", "URLs that wait for the end of a request", waiting)
            yield gauge("callbacks_failing", "of these, URLs whose last call was not taken", failing)
        expires = labelled_gauge(
            "certificate_expires_timestamp_seconds", "when a certificate expires, Unix time", "file"
        )
        for path in self.certificates:
            if (ends := _expiry(path)) is not None:
                expires.add_metric([path.name], ends.timestamp())
        yield expires
        try:
            backup = datetime.fromisoformat((self.state_dir / LAST_BACKUP).read_text(encoding="ascii"))
        except (OSError, ValueError):
            return
        yield gauge(
            "last_backup_timestamp_seconds",
            "when the newest backup of this state was made, Unix time",
            backup.timestamp(),
        )


def _expiry(path: Path) -> datetime | None:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
    except (OSError, ValueError):
        return None
