"""Timestamps in the background: each certificate of a completed request gets one from the configured authority.

    STATE_DIR/reports/r-000001/certificate.tsr    beside certificate.json

A certificate without this file waits for it, and nothing else is kept, so a restart or a restore forgets none. A
deletion neither waits for the authority nor fails with it.
"""

import threading
from contextlib import suppress
from dataclasses import dataclass, field
from logging import getLogger
from pathlib import Path

from server.certificate.document import NAME
from server.certificate.timestamp import SUFFIX, TimestampAuthority, read_authority, stamp
from server.ledger import Ledger, LedgerUnavailable
from unlearning.errors import CertificateError, RequestNotFound
from unlearning.requests import Status
from unlearning.runtime.growing_pause import GrowingPause

_log = getLogger(__name__)

PAUSE = GrowingPause(first_s=5.0, longest_s=3600.0)
"""After an authority has not answered; certificates take turns, so one that is away is asked once per pause."""
_POLL_S = 2.0
_STOP_WITHIN_S = 5.0


@dataclass(slots=True)
class TimestampWorker:
    """The timestamps of one service, fetched one after the other by a thread of its own. `pause` is one for tests.

    _waiting: ids of requests, in the order of their turns.
    """

    ledger: Ledger
    reports_dir: Path
    authority: TimestampAuthority
    pause: GrowingPause = PAUSE
    _waiting: dict[str, None] = field(default_factory=dict, init=False)
    _newest_event: int | None = field(default=None, init=False)
    _num_failures: int = field(default=0, init=False)
    _stopping: threading.Event = field(default_factory=threading.Event, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def start(self) -> None:
        """Begin with the certificates that have no timestamp yet.

        Raises:
            CertificateError: the authority's certificate cannot be used.
        """
        read_authority(self.authority.certificate)
        self._thread = threading.Thread(target=self._run, name="timestamps", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Begin nothing further; an authority that is answering just now is waited for a few seconds."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(_STOP_WITHIN_S)

    def _run(self) -> None:
        pause_s = 0.0
        while not self._stopping.wait(pause_s):
            try:
                self._look()
                pause_s = self._stamp_next()
            except LedgerUnavailable as exc:
                _log.warning("Timestamps wait for the ledger: %s", exc)
                pause_s = _POLL_S
            except CertificateError as exc:
                pause_s = self._failed()
                _log.warning("The next attempt at a timestamp is in %.0f s: %s", pause_s, exc)
            except Exception:  # noqa: BLE001  whatever it is, it is logged, and the others get theirs
                _log.exception("A timestamp could not be fetched or kept in %s", self.reports_dir)
                pause_s = self._failed()

    def _look(self) -> None:
        """Find the completed requests whose certificates have no timestamp, where anything has happened since."""
        newest = self.ledger.events.last_sequence()
        if newest == self._newest_event:
            return
        for path in sorted(self.reports_dir.glob(f"*/{NAME}")):
            if path.with_suffix(SUFFIX).exists():
                continue
            with suppress(RequestNotFound):
                # A certificate of a request that is not completed may be written once more.
                if self.ledger.requests.get(path.parent.name).status is Status.COMPLETED:
                    self._waiting.setdefault(path.parent.name)
        self._newest_event = newest

    def _stamp_next(self) -> float:
        """Have the oldest certificate that waits stamped; return the seconds until the next thing is to be done."""
        request_id = next(iter(self._waiting), None)
        if request_id is None:
            return _POLL_S
        path = self.reports_dir / request_id / NAME
        if path.exists() and not path.with_suffix(SUFFIX).exists():
            try:
                stamp(path, self.authority)
            except CertificateError as exc:
                raise CertificateError(
                    f"The certificate of {request_id} has no timestamp yet: {exc}"
                ) from exc
            _log.info("The certificate of %s has a timestamp of %s.", request_id, self.authority.url)
        del self._waiting[request_id]
        self._num_failures = 0
        return 0.0

    def _failed(self) -> float:
        """Count a failure; return how long to pause. What failed goes to the end, so that it stops no other."""
        self._num_failures += 1
        first = next(iter(self._waiting), None)
        if first is not None:
            del self._waiting[first]
            self._waiting[first] = None
        return self.pause.after(self._num_failures)
