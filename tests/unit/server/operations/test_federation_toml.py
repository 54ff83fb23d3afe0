"""`federation.toml` is read by every command on the server host; what is wrong with it is said by the key."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from server.certificate.keys import make_key_pair
from server.cli import app
from server.operations.federation_toml import read_federation_file
from server.operations.flower_control import FlowerControl
from server.operations.starting import Submission, app_directory
from tests.fake_flower import FakeFlower, row
from tests.programs import run_program
from tests.raising import raises
from unlearning.errors import ConfigurationError, DeploymentError

APP = "flower-unlearning/flower-unlearning"


def write(directory: Path, text: str) -> Path:
    path = directory / "federation.toml"
    path.write_text(f'state-dir = "{directory / "state"}"\n{text}')
    return path


@pytest.fixture
def flower():
    """A SuperLink with two registered clients, and a run that has finished."""
    return FakeFlower([row("finished:stopped", APP)], nodes=("registered", "offline", "unregistered"))


def settings_sent(flower: FakeFlower) -> str:
    [arguments] = flower.submitted
    return arguments[arguments.index("--run-config") + 1]


def submission(path: Path, flower: FakeFlower) -> Submission:
    file = read_federation_file(path)
    return Submission(file, FlowerControl(app_directory(file), "here", run_command=flower))


def test_the_run_is_what_the_file_says(tmp_path, flower):
    """The name, the state directory and the table `run`; all registered clients are waited for."""
    path = write(tmp_path, 'name = "hearts"\n[run]\nrounds = 0\nlearning-rate = 0.5\n')
    assert submission(path, flower).start() == 77
    expected = ['federation="hearts"', f'state-dir="{tmp_path / "state"}"', "rounds=0", "learning-rate=0.5"]
    assert settings_sent(flower) == " ".join([*expected, "start-clients=2"])


@pytest.mark.parametrize("line", ["start-clients = 7", "num-clients = 7"])
def test_a_number_of_clients_in_the_file_counts(tmp_path, flower, line):
    """Then the registered ones are not counted in."""
    submission(write(tmp_path, f"[run]\n{line}\n"), flower).start()
    assert settings_sent(flower).endswith(line.replace(" ", ""))


def test_settings_of_an_own_app_lie_in_a_table(tmp_path):
    """Flower writes them with a dot."""
    file = read_federation_file(write(tmp_path, "[run.hospital]\ndepth = 3\n"))
    assert file.run_settings()["hospital.depth"] == 3


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('nam = "hearts"\n', "nam: there is no such key; name is one"),
        ('certificate-key = "key.pem"\n', "certificate-key: give the whole path"),
        ('[run]\nstate-dir = "/elsewhere"\n', "run.state-dir belongs above the tables"),
        ("[run\n", "cannot be read"),
        ("name = " + "[" * 3000, "cannot be read"),
        ("name = " + "9" * 5000, "cannot be read"),
        ("[run]\nrounds = [1]\n", "run.rounds: give true or false"),  # a list has no spelling for Flower
    ],
)
def test_what_is_wrong_is_said_by_its_key(tmp_path, text, sentence):
    """With the key that may be meant."""
    with pytest.raises(ConfigurationError) as caught:
        read_federation_file(write(tmp_path, text)).run_settings()
    assert sentence in " ".join(caught.value.problems)


def test_a_run_is_not_started_twice(tmp_path, flower):
    """The one under way is named."""
    flower.runs = [row("running", APP)]
    with raises(DeploymentError, "run-under-way", run_id=11):
        submission(write(tmp_path, ""), flower).start()


def test_wrong_settings_are_refused_before_anything_is_sent(tmp_path, flower):
    """As the ServerApp would refuse them."""
    with pytest.raises(ConfigurationError):
        submission(write(tmp_path, "[run]\nrounds = -1\n"), flower).start()
    assert not flower.submitted


def test_what_is_missing_is_listed(tmp_path, flower):
    """No key, no state directory, a run under way; and nothing once all is there."""
    over, flower.runs = flower.runs, [row("running", APP)]
    found = submission(write(tmp_path, ""), flower).missing()
    assert [sentence.partition(":")[0] for sentence in found] == [
        "certificate-key",
        "state-dir",
        "Run 11 is running; `flwr stop 11` ends it.",
    ]
    flower.runs = over
    private, _, _ = make_key_pair(tmp_path / "key")
    (tmp_path / "state").mkdir()
    assert submission(write(tmp_path, f'certificate-key = "{private}"\n'), flower).missing() == []


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ('addres = "127.0.0.1:0"', "service.addres: there is no such key; address is one"),
        ("address = 9100", "service.address: give a text, got 9100"),
        ("max-calls = true", "service.max-calls: give a whole number, got True"),
        ("calls-per-s = false", "service.calls-per-s: give a number, got False"),
        ('http-callback-url = "https://tool.example.org/"', "service.http-callback-url: give a list in [ ]"),
        (
            'address = "127.0.0.1:0"\nhttp = "127.0.0.1:0"\nhttp-tokens = "/none"\n'
            'http-callback-url = ["https://tool.example.org/erasures/"]',
            "http-tokens: /none cannot be read",
        ),
    ],
)
def test_the_service_takes_its_options_from_the_file(tmp_path, table, sentence):
    """One that does not exist is refused with the one that is near; the HTTP API is switched on there, too.

    No line says that a service listens which does not start.
    """
    path = write(tmp_path, f"[service]\n{table}\n")
    status, said = run_program("flower-unlearn", "--federation-file", str(path), "serve")
    assert status == 2
    assert sentence in " ".join(said.split())
    assert "listens at" not in said


def test_check_looks_where_the_file_says(tmp_path, monkeypatch):
    """Named by the environment, so that it need not be typed."""
    path = write(tmp_path, f'config-dir = "{tmp_path / "none"}"\n')
    monkeypatch.setenv("FLOWER_UNLEARNING_FILE", str(path))
    _, said = run_program("flower-unlearn", "check")
    assert f"There is no key below {tmp_path / 'none'}" in " ".join(said.split())


def test_the_console_checks_signatures_by_the_files_key(tmp_path):
    """The public key beside the signing key; none where there is none."""
    key = make_key_pair(tmp_path / "keys")[0]
    signed = write(tmp_path, f'certificate-key = "{key}"\n')
    assert read_federation_file(signed).options()["console"] == {
        "public_key": str(tmp_path / "keys" / "certificate-signing.pub")
    }
    assert read_federation_file(write(tmp_path, "")).options()["console"] == {}


def test_what_deploy_offers_to_switch_on_is_known(tmp_path):
    """Each line of the example that is a setting behind `#` is an option of the service."""
    text = (Path(__file__).parents[4] / "deploy" / "federation.toml").read_text()
    switched_on = re.sub(r"^#(?=[a-z-]+ = )", "", text, flags=re.MULTILINE)
    path = tmp_path / "federation.toml"
    path.write_text(
        switched_on.replace("/etc/flower-unlearning", str(tmp_path)).replace("/var/lib", str(tmp_path))
    )
    assert {"http", "http_callback_url", "timestamp_authority"} <= read_federation_file(path).options()[
        "serve"
    ].keys()
    answer = CliRunner().invoke(app, ["--federation-file", str(path), "serve", "--help"])
    assert answer.exit_code == 0, answer.output
