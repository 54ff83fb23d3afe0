"""What happens in a demo, in order: start, train, a request while training goes on, and its outcome.

What is told is read from the ledger, which is the same in both cases. With real processes the request
goes through the deletion service over gRPC; in a simulation the run's own configuration files it.
"""

import json
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import mkdtemp

from rich.console import Console

from benchmarks.demo.scenario import CALM, LIVE, ROUNDS_AFTER, ROUNDS_BEFORE, Scenario, make_scenario
from benchmarks.demo.simulation import LocalSimulation
from benchmarks.demo.view import interpret, introduce, outcome_table
from benchmarks.deployment import LocalDeployment
from server.certificate.document import decode
from server.certificate.file_checks import check_report, check_signature
from server.certificate.keys import PUBLIC_KEY, load_public_key, make_key_pair
from server.certificate.ledger_check import LedgerView, check_ledger
from server.cli.connection import user_name
from server.cli.service_commands import load_console
from server.ledger import Event, Ledger, RoundRecord
from server.operations.flower_control import FLEET_SPEAKS_HTTP, ConfigValue
from server.operations.starting import write_app
from server.operations.superlink_residue import erase_residue
from server.service.client import DeletionClient
from server.service.narrator import GOING_ON, Narrator
from server.state_directory.files import REPORTS
from server.state_directory.ledger_address import ledger_url
from unlearning.errors import ConfigurationError, DeploymentError, FlowerUnlearningError
from unlearning.requests import OPEN_STATUSES, Status
from unlearning.runtime.durable_files import make_private

REPORT_PAGE, REPORT_JSON, CERTIFICATE = "report.html", "report.json", "certificate.json"

_LIMIT_S = 600.0
_POLL_S = 0.3
_ASK_EVERY_S = 10.0  # asking the SuperLink starts a process


def tell(
    console: Console,
    *,
    simulation: bool,
    num_clients: int,
    method: str,
    directory: Path | None,
    keep: bool,
    keep_running: bool = False,
    secure_aggregation: bool = False,
) -> None:
    """Play the story and print its outcome; everything that was started has ended when this returns.

    keep_running: then serve the console, while the federation goes on, until Ctrl-C.

    Raises:
        ConfigurationError: too few clients, the directory holds something already, or the console is not installed.
        RequestError: no such method, or it cannot forget a client.
        DeploymentError: something failed on the way; the message says what and where the logs are.
    """
    if keep_running and simulation:
        raise ConfigurationError(["--keep-running: a simulation ends with its run; leave --simulation out."])
    if keep_running:
        load_console()
    scenario = make_scenario(num_clients, method, secure_aggregation=secure_aggregation)
    directory = _new_directory(directory)
    introduce(console, scenario)

    def stay(report: Path, address: str) -> None:
        _finish(console, scenario, directory, report, keep=True)
        _serve_console(console, scenario, address, directory)

    try:
        narrator = Narrator(console, since_start=True)
        report = _play(narrator, scenario, directory, simulation, stay if keep_running else None)
    except FlowerUnlearningError as exc:
        raise DeploymentError(f"{exc}\nEverything was stopped. The logs are in {directory}.") from exc
    except (SystemExit, KeyboardInterrupt):
        console.print(f"Ended early. Everything was stopped. The logs are in {directory}.", soft_wrap=True)
        raise
    if not keep_running:
        _finish(console, scenario, directory, report, keep)


def _finish(console: Console, scenario: Scenario, directory: Path, report: Path, keep: bool) -> None:
    """Copy the deletion's report into the demo's directory, and print the outcome."""
    for path in (
        *(report / name for name in (REPORT_PAGE, REPORT_JSON, CERTIFICATE)),
        _keys(directory) / PUBLIC_KEY,
    ):
        shutil.copyfile(path, directory / path.name)
    checks = _check_certificate(directory)
    if not keep:
        for path in directory.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
    _conclude(console, scenario, directory, keep)
    for line in checks:
        console.print(line, soft_wrap=True)


def _serve_console(console: Console, scenario: Scenario, address: str, directory: Path) -> None:
    """Say how to talk to the federation, which goes on, and serve its console until Ctrl-C."""
    settings, run_console = load_console()
    other = 0 if scenario.target.client_id != "0" else 1
    for line in (
        "",
        "The federation goes on, with its console, until Ctrl-C. In another terminal:",
        f"  export FLOWER_UNLEARNING_SERVER={address}",
        "  flower-unlearn list",
        f"  flower-unlearn plan --client {other}",
        f"  flower-unlearn request --client {other} --wait",
    ):
        console.print(line, soft_wrap=True)
    mine = settings(
        address=address,
        tls=None,
        name=user_name(),
        opens_browser=False,
        public_key=directory / PUBLIC_KEY,
    )
    with suppress(SystemExit, KeyboardInterrupt):  # how it is meant to end
        run_console(mine, lambda line: console.print(line, soft_wrap=True))


def _keys(directory: Path) -> Path:
    """Return where the key pair is that signs the demo's certificate."""
    return directory / "server" / "certificate-key"


def _check_certificate(directory: Path) -> list[str]:
    """Return what `flower-unlearn verify` says of the certificate, and how to ask it again."""
    content = (directory / CERTIFICATE).read_bytes()
    file = decode(content)
    with closing(Ledger.open_existing(ledger_url(directory / "server" / "state"))) as ledger:
        checks = [
            check_signature(file, load_public_key(directory / PUBLIC_KEY)),
            check_report(file.certificate, (directory / REPORT_JSON).read_bytes()),
            check_ledger(file.certificate, content, LedgerView.of_ledger(ledger)),
        ]
    command = f"flower-unlearn verify {CERTIFICATE} --public-key {PUBLIC_KEY} --report {REPORT_JSON}"
    return [
        f"Its certificate: {directory / CERTIFICATE}, signed.",
        *(f"  {check.of}: {check.outcome}. {check.sentence}" for check in checks),
        f"Check it again, there: {command}",
    ]


def _conclude(console: Console, scenario: Scenario, directory: Path, keep: bool) -> None:
    """Print what was measured, how to read it, and where the report is."""
    report = json.loads((directory / REPORT_JSON).read_text(encoding="utf-8"))
    console.print()
    console.print(outcome_table(report))
    console.print()
    for sentence in interpret(report, scenario):
        console.print(sentence)
    console.print()
    console.print(f"The report: {directory / REPORT_PAGE} (and {REPORT_JSON} beside it)", soft_wrap=True)
    if keep:
        console.print(f"Logs, ledger and checkpoints: {directory}", soft_wrap=True)


def _new_directory(directory: Path | None) -> Path:
    if directory is None:  # one of its own, also where another demo begins in the same second
        Path("runs").mkdir(exist_ok=True)
        return Path(mkdtemp(prefix=f"demo-{datetime.now(UTC).astimezone():%Y%m%d-%H%M%S}-", dir="runs"))
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigurationError([f"--directory {directory} holds something already; name a new one."])
    make_private(directory)
    return directory


def _play(
    narrator: Narrator,
    scenario: Scenario,
    directory: Path,
    simulation: bool,
    stay: Callable[[Path, str], None] | None = None,
) -> Path:
    """Play the story and return the directory of the deletion's report.

    stay: called with it and the deletion service's address, while the federation goes on.
    """
    app = write_app(directory / "app")
    with ExitStack() as running:
        with narrator.show_progress():
            federation = _make_federation(
                narrator, scenario, directory, app, simulation, LIVE if stay is None else {**LIVE, **CALM}
            )
            layout, protocol = federation.layout, "HTTP" if FLEET_SPEAKS_HTTP else "gRPC"
            running.enter_context(federation)
            ledger = running.enter_context(closing(Ledger.open(layout.ledger_url)))
            narrator.say(
                "started a SuperLink and its SuperExec"
                if simulation
                else f"started: SuperLink (fleet: {protocol} on {layout.fleet_address}), SuperExec, "
                f"{scenario.num_clients} SuperNodes, deletion service (gRPC on {layout.deletion_address})"
            )
            run = RunFollower(federation, ledger, narrator)
            run.begin()
            if not simulation:
                run.wait_until(run.has_trained, "the federation has trained for some rounds")
                with DeletionClient(layout.deletion_address) as service:
                    service.submit(
                        scenario.target, method=scenario.method, submitted_by="demo", idempotency_key="demo"
                    )
            run.wait_until(lambda: run.is_over, "the deletion is over")
            run.check_completed()
            if not simulation:
                erase_residue(layout.superlink_database)
                narrator.say("erased what the SuperLink kept of the messages")
            run.wait_until(run.is_training_again, "training has gone on")
        report = layout.state_dir / REPORTS / run.request_id
        if stay is not None:
            stay(report, layout.deletion_address)
        with narrator.show_progress():
            narrator.now("stopping everything")
            running.close()
    narrator.say("everything that was started has been stopped")
    return report


def _make_federation(
    narrator: Narrator,
    scenario: Scenario,
    directory: Path,
    app: Path,
    simulation: bool,
    live: Mapping[str, ConfigValue],
) -> LocalDeployment:
    signing_key, _, _ = make_key_pair(_keys(directory))
    num, settings = (
        scenario.num_clients,
        {**scenario.run_config, "certificate-key": str(signing_key.absolute())},
    )
    if simulation:
        narrator.now("starting a SuperLink for simulations")
        settings |= {"requests": scenario.scripted_request}
        return LocalSimulation(directory, num_clients=num, app_dir=app, run_config=settings)
    narrator.now(f"starting a SuperLink, {num} SuperNodes and the deletion service")
    return LocalDeployment(
        directory,
        num_clients=num,
        app_dir=app,
        run_config={**settings, **live},
        with_deletion_service=True,
        with_sessions=True,
        secure_aggregation=scenario.secure_aggregation,
    )


RAY_GAVE_UP = "The current node timed out during startup"
"""What Ray says when its own processes have not found each other in 30 s. The wait is fixed in Ray's code, no variable
of its environment changes it (2.55), so more time is given by starting it again."""
MAX_STARTS = 4


class RunFollower:
    """Follows one run through the ledger and has what happens told."""

    def __init__(self, federation: LocalDeployment, ledger: Ledger, narrator: Narrator) -> None:
        self._federation, self._ledger, self._narrator = federation, ledger, narrator
        self._run_id, self._starts = 0, 1
        self._events_seen = self._rounds_seen = 0
        self._training: list[RoundRecord] = []
        self._status: Status | None = None
        self._asked_at = 0.0
        self.request_id = ""

    @property
    def is_over(self) -> bool:
        """Return whether the request has come to an end, in whatever way."""
        return self._status is not None and self._status not in OPEN_STATUSES

    def is_training_again(self) -> bool:
        """Return whether training has gone on after the deletion."""
        return len(self._training) >= ROUNDS_BEFORE + ROUNDS_AFTER

    def has_trained(self) -> bool:
        """Return whether the rounds before the request are over."""
        return len(self._training) >= ROUNDS_BEFORE

    def begin(self) -> None:
        """Submit the run.

        Raises:
            DeploymentError: the SuperLink did not take it.
        """
        self._narrator.now("submitting the run with `flwr run`")
        self._run_id = self._federation.submit_run()
        self._asked_at = time.monotonic()
        self._narrator.say(f"run {self._run_id} submitted")
        self._narrator.now("the server's process starts, the clients join, the first round")

    def wait_until(self, predicate: Callable[[], bool], what: str) -> None:
        """Tell what happens until `predicate` holds.

        Raises:
            DeploymentError: the run or a program has ended before, or it takes unreasonably long.
        """

        def is_so() -> bool:
            ended = self._how_the_run_ended()
            self._tell_news()
            if not predicate() and ended and not self._has_begun_again():
                log = "\n".join(self._federation.control.log(self._run_id).splitlines()[-15:])
                raise DeploymentError(f"The run ended before {what}: {ended}.\n{log}")
            return predicate()

        self._federation.wait_until(is_so, _LIMIT_S, what, poll_s=_POLL_S)

    def check_completed(self) -> None:
        """Check that the request was completed.

        Raises:
            DeploymentError: it was not; says why.
        """
        if self._status is not Status.COMPLETED:
            request = self._ledger.requests.get(self.request_id)
            raise DeploymentError(f"Request {request.id} is {request.status}: {request.reason}")

    def _tell_news(self) -> None:
        """Tell what is new in the ledger, in order of time."""
        news: list[Event | RoundRecord] = [*self._ledger.events.page(after=self._events_seen)]
        news += self._ledger.rounds(after=self._rounds_seen)
        for item in sorted(news, key=lambda item: item.at):
            if isinstance(item, Event):
                self._events_seen = item.sequence
                if not item.request_id:
                    continue  # of the federation
                self.request_id = item.request_id
                self._status = item.to_status or self._status
            else:
                self._rounds_seen = item.sequence
                self._training += [item] if item.kind == "training" else []
            self._narrator.tell(item)
            if not self.is_training_again():
                training = f"training, round {len(self._training) + 1}"
                self._narrator.now(GOING_ON.get(self._status or Status.RECEIVED, training))

    def _how_the_run_ended(self) -> str:
        """Return the run's status if it has ended; ask only while no process of it can be seen."""
        if self._federation.server_app_pid() is not None or time.monotonic() < self._asked_at + _ASK_EVERY_S:
            return ""
        self._asked_at = time.monotonic()
        run = self._federation.control.run(self._run_id)
        return f"{run.status} ({run.details or 'no details'})" if run.is_finished else ""

    def _has_begun_again(self) -> bool:
        """Submit the run once more where Ray gave up waiting for itself; return whether that was so.

        Raises:
            DeploymentError: it was so too often.
        """
        if RAY_GAVE_UP not in self._federation.control.log(self._run_id):
            return False
        self._starts += 1
        if self._starts > MAX_STARTS:
            raise DeploymentError(
                f"Ray did not start within its 30 seconds, {MAX_STARTS} times: this machine is busy. "
                "Try again when it is not, or without Ray: `flower-unlearn demo` without --simulation."
            )
        self._narrator.say("Ray did not start within its 30 seconds on this busy machine; trying again")
        self.begin()
        return True
