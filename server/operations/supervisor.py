"""Keep the federation's run alive: submit it, and again when it ended in failure, and only then.

A ServerApp that is killed is not restarted by Flower; its run becomes `finished:failed` within a
minute. The run that is submitted in its place goes on from the newest checkpoint.

What to do is decided from the SuperLink's list of runs alone (`decide`), so a supervisor that is
itself restarted decides the same.
"""

import logging
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import takewhile
from pathlib import Path

from server.ledger import Ledger, LedgerUnavailable
from server.operations.checklist.applied import APPLY
from server.operations.federation_toml import read_federation_file
from server.operations.flower_control import FlowerControl, Run
from server.operations.logs import log_to_stderr
from server.operations.starting import Submission
from server.operations.superlink_residue import erase_after_deletions
from server.operations.work_process import WorkProcess
from server.state_directory.files import SETTINGS_FILE
from server.state_directory.ledger_address import asked_ledger
from unlearning.errors import ConfigurationError, DeploymentError
from unlearning.runtime.growing_pause import GrowingPause

_log = logging.getLogger(__name__)

# A run that lived so long before it failed starts the count of failures in a row again.
_HEALTHY_S = 300.0
# A ServerApp that has run so long has written down what it was started with.
_BEGUN_S = 60.0
DEFAULT_PAUSE = GrowingPause(first_s=5.0, longest_s=300.0)
DEFAULT_POLL_S = 20.0
"""Each look starts a `flwr` command, a second of processor time; Flower itself gives a run up after a minute."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done, and why: the run is submitted in `after_s` seconds, 0 is now; None: nothing."""

    after_s: float | None
    reason: str


def decide(runs: Sequence[Run], *, now: datetime, pause: GrowingPause) -> Decision:
    """Say what `runs`, newest first, ask for.

    Never two at once: while any run is pending, starting or running, it is left alone. A run that
    completed or that an operator stopped has ended.
    """
    for run in runs:
        if not run.is_finished:
            return Decision(None, f"run {run.run_id} is {run.status}")
    if not runs:
        return Decision(0.0, "no run was submitted yet")
    newest = runs[0]
    if not newest.has_failed:
        return Decision(None, f"run {newest.run_id} is {newest.status}")
    num_failures = _failures_in_a_row(runs)
    # abs: where the clock was put back, waiting until it is there again could take years.
    age_s = abs((now - newest.finished_at).total_seconds()) if newest.finished_at else 0.0
    reason = f"run {newest.run_id} is {newest.status} ({newest.details}); failure {num_failures} in a row"
    return Decision(max(0.0, pause.after(num_failures) - age_s), reason)


def _failures_in_a_row(runs: Iterable[Run]) -> int:
    newest, *older = runs
    if newest.lived_s >= _HEALTHY_S:
        return 1
    return 1 + sum(1 for _ in takewhile(lambda run: run.has_failed and run.lived_s < _HEALTHY_S, older))


class Supervisor:
    """A watch over the runs of one app on one SuperLink; see `decide`.

    A SuperLink that does not answer is not a failure of the run: the supervisor waits for it.
    `erase_residue` erases what the SuperLink keeps of messages when a deletion is completed. `unapplied` says which
    settings differ from those of a run that has begun; a run is never restarted for them.
    `now` gives the time in UTC; it must agree with the SuperLink's to a few seconds.
    """

    def __init__(
        self,
        submission: Submission,
        *,
        pause: GrowingPause = DEFAULT_PAUSE,
        poll_s: float = DEFAULT_POLL_S,
        erase_residue: Callable[[], object] = lambda: None,
        unapplied: Callable[[], Sequence[str]] = tuple,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._submission = submission
        self._pause = pause
        self._poll_s = poll_s
        self._erase = erase_residue
        self._unapplied = unapplied
        self._now = now
        self._said = self._said_unapplied = ""

    def step(self) -> float:
        """Look once and do what is to be done; return the seconds until the next look."""
        try:
            runs = self._submission.runs()
            decision = decide(runs, now=self._now(), pause=self._pause)
        except DeploymentError as exc:
            self._say(logging.WARNING, f"The SuperLink cannot be asked; waiting for it: {exc}")
            return self._poll_s
        if decision.after_s is None:
            self._say(logging.INFO, f"Nothing to do: {decision.reason}.")
            if any(run.status == "running" and run.lived_s >= _BEGUN_S for run in runs):
                self._say_unapplied()
            return self._poll_s
        if decision.after_s > 0:
            self._say(logging.WARNING, f"Will submit the run: {decision.reason}.")
            return min(decision.after_s, self._poll_s)
        try:
            run_id = self._submission.submit()
        except DeploymentError as exc:
            # It may have been taken nevertheless; the next look shows it.
            self._say(logging.ERROR, f"The run could not be submitted; looking again: {exc}")
        else:
            self._say(logging.WARNING, f"Submitted run {run_id}: {decision.reason}.")
        return self._poll_s

    def run(self, stop: threading.Event) -> None:
        """Go on until `stop` is set. Nothing that a look meets ends this loop."""
        while not stop.is_set():
            try:
                self._erase_residue()
                wait_s = self.step()
            except Exception:  # noqa: BLE001 - see below
                # A surprise, such as a new Flower's JSON, must not end what watches over others.
                _log.exception("A look at the runs failed; looking again in %g s.", self._poll_s)
                wait_s = self._poll_s
            stop.wait(wait_s)

    def _erase_residue(self) -> None:
        """Erase residue now or at a later look; `flower-unlearn check` names it until then."""
        try:
            self._erase()
        except (DeploymentError, LedgerUnavailable) as exc:
            _log.warning("What the SuperLink keeps of a completed deletion is not erased yet: %s", exc)

    def _say_unapplied(self) -> None:
        """Log once, after each change, that a file's settings are not those of the run."""
        try:
            text = "; ".join(self._unapplied())
        except ConfigurationError as exc:
            text = f"the file cannot be used: {exc}"
        if text and text != self._said_unapplied:
            _log.warning(
                "federation.toml is not what the run was started with: %s. To apply it: %s", text, APPLY
            )
        self._said_unapplied = text

    def _say(self, level: int, text: str) -> None:
        """Log what is new; a state that lasts is said once."""
        if text != self._said:
            _log.log(level, text)
            self._said = text


class Unapplied:
    """Says which settings differ between the file at `path` and the newest run; looks again when one has changed."""

    def __init__(self, path: Path, work: WorkProcess) -> None:
        self._path, self._work = path, work
        self._seen: tuple[bytes, ...] = ()
        self._found: Sequence[str] = ()

    def __call__(self) -> Sequence[str]:
        """Return the differences.

        Raises:
            ConfigurationError: the file cannot be used.
        """
        file = read_federation_file(self._path)
        places = (self._path, file.state_dir / SETTINGS_FILE, (file.app or file.state_dir) / "pyproject.toml")
        seen = tuple(path.read_bytes() if path.is_file() else b"" for path in places)
        if seen != self._seen:
            self._seen, self._found = seen, ()  # what cannot be used is said once, too
            self._found = self._work.run("server.operations.checklist.applied:unapplied", file)
        return self._found


def supervise(path: Path, *, pause: GrowingPause, poll_s: float) -> None:
    """Submit the run of the file at `path` and again whenever it ends in failure, until SIGTERM or Ctrl-C.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    file = read_federation_file(path)
    log_to_stderr()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    work = WorkProcess(idle_s=poll_s / 2)
    app_dir = work.run("server.operations.starting:app_directory", file)
    submission = Submission(file, FlowerControl(app_dir, file.superlink))
    with closing(Ledger.open(asked_ledger(str(file.run.get("ledger", "")), file.state_dir))) as ledger:
        erase = partial(erase_after_deletions, file.superlink_database, file.state_dir, ledger)
        Supervisor(
            submission,
            pause=pause,
            poll_s=poll_s,
            erase_residue=erase,
            unapplied=Unapplied(path, work),
        ).run(stop)
    work.close()
