"""`federation.toml` is read by every command on the server host; what is wrong with it is said by the key."""

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from server.certificate.keys import make_key_pair
from server.cli import app
from server.operations.federation_file import read_federation_file
from server.operations.starting import Submission, app_directory
from server.processes.flower_control import FlowerControl
from tests.programs import run_program
from unlearning.errors import ConfigurationError, DeploymentError


def write(directory: Path, text: str) -> Path:
    path = directory / "federation.toml"
    path.write_text(f'state-dir = "{directory / "state"}"\n{text}')
    return path


class Flower:
    """The `flwr` command of a SuperLink with two registered clients."""

    def __init__(self, status: str = "finished:stopped") -> None:
        self.status, self.submitted = status, ""

    def __call__(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        match command[1:3]:
            case ["supernode", _]:
                nodes = [{"status": status} for status in ("registered", "offline", "unregistered")]
                answer = {"success": True, "nodes": nodes}
            case ["list", _]:
                row = {"run-id": "3", "fab-id": "flower-unlearning/flower-unlearning", "status": self.status}
                row |= {"status-details": "", "elapsed": 1.0, "finished-at": "N/A"}
                answer = {"success": True, "runs": [row]}
            case _:
                self.submitted = command[command.index("--run-config") + 1]
                answer = {"success": True, "run-id": "4"}
        return subprocess.CompletedProcess(list(command), 0, json.dumps(answer), "")


def submission(path: Path, flower: Flower) -> Submission:
    file = read_federation_file(path)
    return Submission(file, FlowerControl(app_directory(file), "here", run_command=flower))


def test_the_run_is_what_the_file_says(tmp_path):
    """The name, the state directory and the table `run`; all registered clients are waited for."""
    flower = Flower()
    path = write(tmp_path, 'name = "hearts"\n[run]\nrounds = 0\nlearning-rate = 0.5\n')
    assert submission(path, flower).start() == 4
    expected = ['federation="hearts"', f'state-dir="{tmp_path / "state"}"', "rounds=0", "learning-rate=0.5"]
    assert flower.submitted == " ".join([*expected, "start-clients=2"])


@pytest.mark.parametrize("line", ["start-clients = 7", "num-clients = 7"])
def test_who_says_how_many_clients_is_taken_at_their_word(tmp_path, line):
    """Then the registered ones are not counted in."""
    flower = Flower()
    submission(write(tmp_path, f"[run]\n{line}\n"), flower).start()
    assert flower.submitted.endswith(line.replace(" ", ""))


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
    ],
)
def test_what_is_wrong_is_said_by_its_key(tmp_path, text, sentence):
    """With the key that may be meant."""
    with pytest.raises(ConfigurationError, match=sentence):
        read_federation_file(write(tmp_path, text))


def test_a_value_that_no_run_can_have_is_refused(tmp_path):
    """A list has no spelling on Flower's command line."""
    with pytest.raises(ConfigurationError, match=r"run\.rounds: give true or false"):
        read_federation_file(write(tmp_path, "[run]\nrounds = [1]\n")).run_settings()


def test_a_run_is_not_started_twice(tmp_path):
    """The one under way is named."""
    with pytest.raises(DeploymentError, match="Run 3 is running"):
        submission(write(tmp_path, ""), Flower("running")).start()


def test_wrong_settings_are_refused_before_anything_is_sent(tmp_path):
    """As the ServerApp would refuse them."""
    flower = Flower()
    with pytest.raises(ConfigurationError, match="rounds"):
        submission(write(tmp_path, "[run]\nrounds = -1\n"), flower).start()
    assert not flower.submitted


def test_a_secret_is_refused(tmp_path):
    """It would be sent to every client."""
    with pytest.raises(ConfigurationError, match="ledger: it holds a password"):
        submission(write(tmp_path, '[run]\nledger = "postgresql://ada:pw@db/ledger"\n'), Flower())


def test_what_is_missing_is_listed(tmp_path):
    """No key, no state directory, a run under way; and nothing once all is there."""
    found = submission(write(tmp_path, ""), Flower("running")).missing()
    assert [sentence.partition(":")[0] for sentence in found] == [
        "certificate-key",
        "state-dir",
        "Run 3 is running; `flwr stop 3` ends it.",
    ]
    private, _, _ = make_key_pair(tmp_path / "key")
    (tmp_path / "state").mkdir()
    assert submission(write(tmp_path, f'certificate-key = "{private}"\n'), Flower()).missing() == []


def test_the_service_takes_its_options_from_the_file(tmp_path):
    """An option that does not exist is refused with the one that is near."""
    path = write(tmp_path, '[service]\naddres = "127.0.0.1:0"\n')
    status, said = run_program("flower-unlearn", "--federation-file", str(path), "serve")
    assert status == 2
    assert "service.addres: there is no such key; address is one" in " ".join(said.split())


def test_check_looks_where_the_file_says(tmp_path, monkeypatch):
    """Named by the environment, so that nobody types it."""
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


def test_the_http_api_is_switched_on_in_the_file(tmp_path):
    """As docs/integrations.md has it, a list of addresses included; a file of tokens that is not there is named."""
    table = f'[service]\naddress = "127.0.0.1:0"\nhttp = "127.0.0.1:0"\nhttp-tokens = "{tmp_path / "none"}"\n'
    path = write(tmp_path, f'{table}http-callback-url = ["https://tool.example.org/erasures/"]\n')
    status, said = run_program("flower-unlearn", "--federation-file", str(path), "serve")
    assert status == 2
    assert f"http-tokens: {tmp_path / 'none'} cannot be read" in " ".join(said.split())
