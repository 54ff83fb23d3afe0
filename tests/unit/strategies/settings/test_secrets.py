"""A secret in a run's configuration is refused wherever settings come in, with its right place, and never repeated."""

from pathlib import Path

import pytest

from server.operations.federation_toml import FederationFile
from server.operations.flower_control import FlowerControl, flower_environment
from server.operations.starting import Submission
from server.state_directory.ledger_address import FILE_VARIABLE, VARIABLE, ledger_of_run, ledger_url
from strategies.settings.groups import secrets_in
from strategies.settings.run_config import RunSettings
from tests.programs import run_program
from tests.raising import refuses
from unlearning.errors import ConfigurationError

CANARY = "canary-4711"
SECRETS = [
    {"ledger": f"postgresql+psycopg://ada:{CANARY}@db.example.org/ledger"},
    {"ledger": f"postgresql://ada:{CANARY}/with/slash@db/ledger"},
    {"ledger": f"postgresql://:{CANARY}@db/ledger"},
    {"ledger": f"postgresql:ada:{CANARY}@db/ledger"},
    {"ledger": f"postgresql://ada@db/ledger?password={CANARY}"},
    {"ledger": f"postgresql://ada@db/ledger?sslpassword={CANARY}"},
    {"certificate-key": f"-----BEGIN PRIVATE KEY-----\n{CANARY}"},
    {"session-tls-key": f"-----BEGIN EC PRIVATE KEY-----\n{CANARY}"},
    {"pretrained": f"https://ada:{CANARY}@models.example.org/mit-b0"},
    {"data-dir": f"https://data.example.org/?token={CANARY}"},
]
HARMLESS = [
    {"ledger": "postgresql+psycopg://ada@db.example.org:5432/ledger"},
    {"ledger": "postgresql+psycopg:///ledger?host=/run/postgresql"},
    {"ledger": "sqlite:////var/lib/flower-unlearning/state/ledger.db"},
    {"session-address": "federation.example.org:9101"},
    {"certificate-key": "/etc/flower-unlearning/certificate-key/certificate-signing.key"},
    {"requests": "at=3 client=2; at=5 client=1 samples=17,21 method=puf-regular"},
    {"prepare": "federaser every=2; pga"},
]


@pytest.mark.parametrize("values", SECRETS)
def test_a_secret_among_a_runs_settings_is_refused_and_not_repeated(values):
    """On the server; the message says which setting it is."""
    with pytest.raises(ConfigurationError) as caught:
        RunSettings.from_run_config(values)
    (name,) = values
    (problem,) = caught.value.problems
    assert problem.startswith(f"{name}: it holds ")
    assert "mode 600" in problem
    assert CANARY not in str(caught.value)


def test_a_ledgers_password_is_shown_its_place():
    """The two variables, and whose environment."""
    (problem,) = secrets_in({"ledger": f"postgresql://ada:{CANARY}@db/ledger"})
    for word in (VARIABLE, FILE_VARIABLE, "flower-superexec", "change it"):
        assert word in problem


@pytest.mark.parametrize("values", HARMLESS)
def test_what_is_no_secret_passes(values):
    """Addresses without a password, paths, requests."""
    assert secrets_in(values) == []


def test_no_default_is_taken_for_a_secret():
    """All settings as they come."""
    assert secrets_in(RunSettings().to_run_config()) == []


def app_with(directory: Path, config: str) -> Path:
    (directory / "pyproject.toml").write_text(
        f'[project]\nname = "app"\n[tool.flwr.app]\npublisher = "us"\n[tool.flwr.app.config]\n{config}\n'
    )
    return directory


def never(command):
    raise AssertionError(f"sent: {command}")


def test_a_secret_is_not_submitted(tmp_path):
    """Nothing is sent to the SuperLink, which would store it."""
    control = FlowerControl(app_with(tmp_path, ""), "federation", run_command=never)
    for values in SECRETS:
        with refuses(*values):
            control.submit_run(values)


def test_a_secret_in_the_apps_own_settings_is_not_submitted(tmp_path):
    """They travel in the bundle."""
    app = app_with(tmp_path, f'ledger = "postgresql://ada:{CANARY}@db/ledger"')
    with refuses("ledger"):
        FlowerControl(app, "federation", run_command=never).submit_run({})


def test_a_supervisor_does_not_begin_with_a_secret(tmp_path):
    """It would try again for ever."""
    control = FlowerControl(app_with(tmp_path, ""), "federation", run_command=never)
    with refuses("ledger"):
        Submission(FederationFile(state_dir=tmp_path, run=SECRETS[0]), control)


@pytest.fixture
def no_ledger_named(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv(FILE_VARIABLE, raising=False)
    return monkeypatch


def test_a_run_takes_its_ledger_from_the_environment(no_ledger_named, tmp_path):
    """The variable goes before the default; the setting may say the same."""
    assert ledger_of_run("", tmp_path) == ledger_url(tmp_path)
    no_ledger_named.setenv(VARIABLE, "sqlite:////elsewhere.db")
    assert ledger_of_run("", tmp_path) == ledger_of_run("sqlite:////elsewhere.db", tmp_path)
    with refuses("ledger"):
        ledger_of_run("sqlite:////other.db", tmp_path)


def test_a_run_gets_the_whole_path_of_a_ledger(no_ledger_named, tmp_path):
    """It works in a directory of Flower's, where a relative path is another file than the deletion service's."""
    for url in ("sqlite:///ledger.db", "sqlite+pysqlite:///./ledger.db", "sqlite:///~ledger.db"):
        with refuses("ledger"):
            ledger_of_run(url, tmp_path)
    assert ledger_of_run("sqlite:///~/ledger.db", tmp_path) == "sqlite:///~/ledger.db"


@pytest.mark.parametrize("name", ["what?", "my%20federation"])
def test_a_state_directory_is_refused_whose_path_a_url_reads_otherwise(no_ledger_named, tmp_path, name):
    """The ledger would be outside of it: in `what`, as that of `what?else`, or in `my federation`."""
    with refuses("state-dir"):
        ledger_of_run("", tmp_path / name)
    assert ledger_of_run("sqlite:////elsewhere.db", tmp_path / name) == "sqlite:////elsewhere.db"


def test_a_ledgers_url_can_be_in_a_file_of_its_owner(no_ledger_named, tmp_path):
    """One line; a file that others can read is refused."""
    file = tmp_path / "ledger"
    file.write_text("postgresql://ada:secret@db/ledger\n")
    file.chmod(0o600)
    no_ledger_named.setenv(FILE_VARIABLE, str(file))
    assert ledger_of_run("", tmp_path) == "postgresql://ada:secret@db/ledger"
    file.chmod(0o640)
    with refuses("ledger"):
        ledger_of_run("", tmp_path)


@pytest.mark.parametrize("content", [None, "", "\n", "\udcff"])
def test_a_ledgers_file_that_says_nothing_is_refused(no_ledger_named, tmp_path, content):
    """Missing, empty, or no text: never the default ledger instead of the one that was meant."""
    file = tmp_path / "ledger"
    if content is not None:
        file.write_bytes(content.encode(errors="surrogateescape"))
        file.chmod(0o600)
    no_ledger_named.setenv(FILE_VARIABLE, str(file))
    with refuses("ledger"):
        ledger_of_run("", tmp_path)


@pytest.mark.parametrize("name", ["LEGDER", "LEDGER_URL", "LEDGERFILE", "LEDGER_FIEL"])
def test_a_misspelt_variable_is_no_default_ledger(no_ledger_named, tmp_path, name):
    """The project's other variables are none of these."""
    for other in (
        "DATA",
        "DEBUG",
        "DOWNLOAD",
        "FILE",
        "LOG_FORMAT",
        "SERVER",
        "TLS_CA",
        "TLS_CERT",
        "TLS_KEY",
    ):
        no_ledger_named.setenv(f"FLOWER_UNLEARNING_{other}", "x")
    assert ledger_of_run("", tmp_path) == ledger_url(tmp_path)
    no_ledger_named.setenv(f"FLOWER_UNLEARNING_{name}", "postgresql://ada:secret@db/ledger")
    with refuses("ledger"):
        ledger_of_run("", tmp_path)


def test_two_variables_at_once_are_refused(no_ledger_named, tmp_path):
    """Nobody guesses which one was meant."""
    no_ledger_named.setenv(VARIABLE, "sqlite:////a.db")
    no_ledger_named.setenv(FILE_VARIABLE, str(tmp_path))
    with refuses("ledger"):
        ledger_of_run("", tmp_path)


def test_flowers_programs_do_not_learn_the_ledger(no_ledger_named):
    """SuperNodes and `flwr` commands that this program starts have no use for it."""
    no_ledger_named.setenv(VARIABLE, "sqlite:////a.db")
    no_ledger_named.setenv(FILE_VARIABLE, "/file")
    assert {VARIABLE, FILE_VARIABLE} & set(flower_environment()) == set()


@pytest.mark.parametrize(
    "command",
    [
        ("backup", "DIRECTORY", "--state-dir", "DIRECTORY"),
        ("restore", "DIRECTORY", "--state-dir", "DIRECTORY"),
        ("erase-residue", "--state-dir", "DIRECTORY"),
        ("check", "--state-dir", "DIRECTORY"),
        ("serve", "--state-dir", "DIRECTORY"),
        ("verify", "DIRECTORY/certificate.json"),
    ],
    ids=lambda command: command[0],
)
def test_a_ledgers_password_on_the_command_line_is_refused_and_not_repeated(
    no_ledger_named, tmp_path, command
):
    """Every account of the machine reads it there; from the environment the same URL goes on."""
    url = "postgresql+psycopg://ada:hunter2@127.0.0.1:1/ledger"
    words = [word.replace("DIRECTORY", str(tmp_path / "here")) for word in command]
    status, said = run_program("flower-unlearn", *words, "--ledger", url)
    assert (status, "every account of this machine" in said, "hunter2" in said) == (2, True, False), said
    if command[0] == "backup":
        no_ledger_named.setenv(VARIABLE, url)
        _, said = run_program("flower-unlearn", *words)
        assert "every account" not in said
        assert "hunter2" not in said
