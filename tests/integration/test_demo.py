"""`flower-unlearn demo` tells the whole story, honestly, and leaves nothing behind but the report."""

import json
import os
import re
import signal
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import httpx
import numpy as np
import pytest
from rich.console import Console

from benchmarks.demo import exit_on_signals
from benchmarks.demo.scenario import SETTINGS, make_scenario
from benchmarks.demo.view import interpret, outcome_table
from server.operations.starting import write_app
from strategies.installation import program
from strategies.settings.run_config import RunSettings
from tests.integration.conftest import REPOSITORY
from tests.programs import run_program
from tests.waiting import HANGS_S, WAIT_S
from unlearning.errors import ConfigurationError, UnknownMethod
from unlearning.tasks import load_site

DEAD_PROXY = "http://127.0.0.1:9"  # many networks have one, and its variables in every shell
TERMINATED = 128 + signal.SIGTERM


@dataclass(frozen=True)
class Told:
    """A demo that has ended."""

    status: int
    output: str
    directory: Path
    left: list[str]

    @property
    def report(self) -> dict:
        return json.loads((self.directory / "report.json").read_text())


def living(directory: Path) -> list[str]:
    """The processes whose Flower home is in `directory`, wherever they have gone to."""
    mark = f"FLWR_HOME={directory}{os.sep}".encode()
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and mark in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue  # it has ended, or is somebody else's
    return found


@contextmanager
def demo(directory: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A running demo; it is ended at the latest when this is left."""
    process = subprocess.Popen(
        [program("flower-unlearn"), "demo", "--directory", str(directory), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "COLUMNS": "100", "http_proxy": DEAD_PROXY, "https_proxy": DEAD_PROXY},
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=HANGS_S)


@pytest.fixture(scope="module")
def told(tmp_path_factory) -> Told:
    """A demo from beginning to end. With processes `make demo` tells the same story, and CI runs that too."""
    directory = tmp_path_factory.mktemp("a demo") / "new"
    with demo(directory, "--simulation") as process:
        output, _ = process.communicate(timeout=HANGS_S)
    return Told(process.returncode, output, directory, living(directory))


@pytest.mark.slow
class TestTheWholeStory:
    """One run, looked at from several sides."""

    def test_it_ends_well_and_leaves_the_report_only(self, told):
        """No process of the demo survives it; logs, ledger and checkpoints, which held what was forgotten, are gone."""
        assert told.status == 0, told.output
        assert told.left == []
        assert sorted(path.name for path in told.directory.iterdir()) == [
            *("certificate-signing.pub", "certificate.json", "report.html", "report.json")
        ]

    def test_its_certificate_is_signed_and_holds(self, told):
        """As the demo says, and as `verify` says when it is asked again."""
        assert [
            line.split(":")[1].split(".")[0].strip() for line in told.output.splitlines() if line[:2] == "  "
        ][-3:] == ["holds"] * 3
        files = [
            str(told.directory / name)
            for name in ("certificate.json", "certificate-signing.pub", "report.json")
        ]
        status, said = run_program(
            "flower-unlearn", "verify", files[0], "--public-key", files[1], "--report", files[2]
        )
        assert status == 0, said
        assert "The certificate holds" in said

    def test_rounds_go_on_without_the_one_who_left(self, told):
        """Before the request and after its completion; it takes part up to the unlearning round and never after it."""
        rounds = [line for line in told.output.splitlines() if " round " in line[:14]]
        kinds = [line.split()[3] for line in rounds]
        assert kinds == [*["training"] * 3, "unlearning", "recovery", "recovery", "training"], told.output
        target = told.report["request"]["client_id"]
        clients = [line.split("client", 1)[1].split("test")[0] for line in rounds]
        assert [target in names for names in clients] == [True] * 4 + [False] * 3

    def test_the_table_shows_the_reports_figures(self, told):
        """Accuracy on the forgotten data at the three stages, as in report.json."""
        (row,) = [line for line in told.output.splitlines() if "accuracy on the forgotten data" in line]
        stages = {item["stage"]: item["forgotten"]["score"] for item in told.report["measurements"]}
        shown = [f"{100 * stages[stage]:.1f}" for stage in ("before", "unlearned", "recovery")]
        assert [cell.split()[0] for cell in row.split("│")[2:5]] == shown

    def test_the_forgetting_shows(self, told):
        """The model knew the client's pictures, and does no longer after the deletion."""
        scores = [item["forgotten"]["score"] for item in told.report["measurements"]]
        assert scores[0] > 0.8
        assert max(scores[1:]) < 0.3


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("options", [(), ("--simulation",)], ids=["processes", "simulation"])
def test_sigterm_in_the_middle_leaves_nothing(tmp_path, options):
    """After a SIGTERM between two rounds nothing lives, and the logs are named.

    In the gate: how a demo takes SIGTERM, below, and after Ctrl-C no process of a deployment lives
    (test_local_deployment.py).
    """
    with demo(tmp_path, "--clients", "2", *options) as process:
        for line in process.stdout:
            if " round 1 " in line:
                break
        assert len(living(tmp_path)) >= 4, "a SuperLink, a SuperExec, a ServerApp and clients"
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=HANGS_S)
    assert process.returncode == TERMINATED
    assert living(tmp_path) == []
    assert f"The logs are in {tmp_path}" in rest


@pytest.mark.slow
@pytest.mark.long
def test_it_stays_with_its_console_until_ctrl_c(tmp_path):
    """The story's deletion is in its register meanwhile; then nothing lives, and its files are there."""
    with demo(tmp_path / "new", "--clients", "2", "--keep-running") as process:
        said = {}
        for line in process.stdout:
            said |= dict(re.findall(r"(SERVER=|http:)(\S+)", line))
            if "Ctrl-C ends the console" in line:
                break
        status, listed = run_program("flower-unlearn", "--server", said["SERVER="], "list")
        assert (status, "completed" in listed) == (0, True)
        page = httpx.get(f"http:{said['http:']}", timeout=WAIT_S)
        assert page.is_redirect, page.status_code  # the link lets its bearer in
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=HANGS_S)
    assert process.returncode == 0
    assert living(tmp_path) == []
    assert (tmp_path / "new" / "server" / "state").is_dir()


def test_a_simulation_does_not_stay(tmp_path):
    """It ends with its run: refused before anything starts."""
    options = ("--directory", str(tmp_path / "new"), "--simulation", "--keep-running")
    status, output = run_program("flower-unlearn", "demo", *options)
    assert (status, "--keep-running" in output) == (2, True)
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
@pytest.mark.long
def test_a_failure_says_what_and_where_the_logs_are(tmp_path):
    """Flower cannot take a path with a quote: the message names the setting, and nothing lives on."""
    directory = tmp_path / 'a"quote'
    with demo(directory, "--simulation") as process:
        output, _ = process.communicate(timeout=HANGS_S)
    assert process.returncode == 1
    assert "use a value without double quotes" in output
    assert f"The logs are in {directory}" in output
    assert living(directory) == []


def test_a_used_directory_is_left_alone(tmp_path):
    """The demo neither mixes its files with others nor deletes them."""
    (tmp_path / "mine").mkdir()
    status, output = run_program("flower-unlearn", "demo", "--directory", str(tmp_path))
    assert status == 2
    assert "holds something already" in output
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_the_submitted_app_is_the_projects(tmp_path):
    """The thin app names the same components and settings as the project's pyproject.toml."""
    written = tomllib.loads((write_app(tmp_path) / "pyproject.toml").read_text())
    own = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    assert written["tool"]["flwr"] == own["tool"]["flwr"]
    assert written["project"]["name"] == own["project"]["name"]


@pytest.mark.parametrize("num_clients", [2, 3, 5])
def test_who_leaves_holds_the_named_digits_nearly_alone(num_clients):
    """Of each named digit the others have less than a tenth of all pictures; of the rest, a tenth or more."""
    scenario = make_scenario(num_clients, "puf-special")
    settings = RunSettings.from_run_config({**SETTINGS, "num-clients": num_clients}).task()
    labels = [load_site(settings, client).train.targets.numpy() for client in range(num_clients)]
    own = np.bincount(labels[int(scenario.target.client_id)], minlength=10)
    every = np.bincount(np.concatenate(labels), minlength=10)
    assert scenario.alone
    assert [digit for digit in range(10) if every[digit] - own[digit] < 0.1 * every[digit]] == list(
        scenario.alone
    )
    assert (scenario.num_examples, scenario.num_examples_all) == (own.sum(), every.sum())


def test_one_client_is_too_few():
    """Somebody must stay."""
    with pytest.raises(ConfigurationError):
        make_scenario(1, "puf-special")


def test_sums_over_clients_take_four_of_them():
    """One leaves, and no sum is over fewer than three."""
    with pytest.raises(ConfigurationError):
        make_scenario(3, "puf-regular", secure_aggregation=True)
    assert make_scenario(4, "puf-regular", secure_aggregation=True).run_config["secure-aggregation"]


def test_an_unknown_method_is_refused_before_anything_starts():
    """The scenario checks it."""
    with pytest.raises(UnknownMethod):
        make_scenario(3, "wishful-thinking")


def measured(stage: str, score: float, **attacks: float) -> dict:
    return {
        "stage": stage,
        **{name: {"score": score} for name in ("test", "retained", "forgotten")},
        "attacks": attacks,
    }


def text_of(renderable) -> str:
    written = StringIO()
    Console(width=100, file=written).print(renderable)
    return written.getvalue()


def test_the_table_takes_the_last_recovery_round():
    """Three columns in order of time; what was not measured is said so."""
    report = {
        "measurements": [
            measured("before", 0.9, yeom=0.8),
            measured("unlearned", 0.1, yeom=0.2),
            measured("recovery", 0.3, yeom=0.4),
            measured("recovery", 0.5, yeom=0.6),
        ]
    }
    lines = text_of(outcome_table(report)).splitlines()
    (accuracy,) = [line for line in lines if "test data" in line]
    assert [cell.strip() for cell in accuracy.split("│")[2:5]] == [
        "90.0\u202f%",
        "10.0\u202f%",
        "50.0\u202f%",
    ]
    (attack,) = [line for line in lines if "Yeom" in line]
    assert [cell.strip() for cell in attack.split("│")[2:5]] == ["80.0\u202f%", "20.0\u202f%", "60.0\u202f%"]
    (other,) = [line for line in lines if "confidence attack" in line]
    assert other.count("not measured") == 3


@pytest.mark.parametrize(("power", "is_weak"), [(0.54, True), (0.7, False)])
def test_the_words_say_what_an_attack_is_worth(power, is_weak):
    """An attack without power proves nothing, and the reader is told."""
    report = {
        "measurements": [
            measured("before", 0.9),
            measured("unlearned", 0.1, confidence_balanced_accuracy=power),
        ],
        "recovery": {"rounds": 0, "stop_reason": "none was asked for"},
    }
    words = " ".join(interpret(report, make_scenario(3, "puf-special")))
    assert f"{100 * power:.1f}\u202f%" in words
    assert ("worth little" in words) == is_weak
    assert "not that nothing is left" in words


def test_a_signal_ends_once_and_for_all():
    """SIGTERM becomes SystemExit(143); another one does not interrupt the cleaning up; then all is as before."""
    before = signal.getsignal(signal.SIGTERM)
    cleaned = []

    def be_ended_twice() -> None:
        with exit_on_signals():
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                signal.raise_signal(signal.SIGTERM)
                cleaned.append(True)

    with pytest.raises(SystemExit) as ended:
        be_ended_twice()
    assert ended.value.code == TERMINATED
    assert cleaned
    assert signal.getsignal(signal.SIGTERM) is before
