"""The peer's configuration file, and the command's requests and status."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from client.memory import DirectoryMemory
from client.peer.config import read_config, validate_config
from client.peer.peer_cli import app, main
from client.peer.process import make_peer
from tests.raising import refuses
from unlearning.decentralised.graphs import ring
from unlearning.errors import ConfigurationError, DataError
from unlearning.tasks import make_task


def values(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    return {
        "peer": "a",
        "state-dir": str(tmp_path / "state"),
        "peers": {"a": "127.0.0.1:9301", "b": "127.0.0.1:9302", "c": "127.0.0.1:9303"},
        "training": {"rounds": 5, "weight-decay": 0.01},
        **changes,
    }


def test_yaml_and_toml_say_the_same(tmp_path: Path) -> None:
    """One configuration in both formats."""
    (tmp_path / "peer.yaml").write_text(yaml.safe_dump(values(tmp_path)))
    (tmp_path / "peer.toml").write_text(
        f'peer = "a"\nstate-dir = "{tmp_path / "state"}"\n'
        '[peers]\na = "127.0.0.1:9301"\nb = "127.0.0.1:9302"\nc = "127.0.0.1:9303"\n'
        "[training]\nrounds = 5\nweight-decay = 0.01\n"
    )
    assert read_config(tmp_path / "peer.yaml") == read_config(tmp_path / "peer.toml")


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    """An unknown data set, a graph in pieces, a missing certificate, an epsilon that breaks the published noise."""
    wrong = values(
        tmp_path,
        peers={"a": "10.0.0.1:9301", "b": "127.0.0.1:9302", "c": "127.0.0.1:9303"},
        task={"dataset": "nothing"},
        graph={"kind": "edges", "edges": [["a", "b"]]},
        deletion={"as-published": True, "epsilon": 1.0},
    )
    with pytest.raises(ConfigurationError) as caught:
        validate_config(wrong)
    text = "\n".join(caught.value.problems)
    assert all(part in text for part in ("unknown dataset", "not below 1", "tls:", "deletion.epsilon"))


@pytest.mark.parametrize("name", ["state-dir", "site-dir"])
def test_a_path_does_not_depend_on_where_the_peer_is_started(tmp_path: Path, name: str) -> None:
    """Elsewhere it would have another model, and no record of what was forgotten."""
    with refuses(name):
        validate_config(values(tmp_path, **{name: "state"}))


def test_the_task_has_the_settings_of_every_task(tmp_path: Path) -> None:
    """Those that only some models have are known."""
    task = {"dtype": "float64", "max-examples": 7}
    settings = validate_config(values(tmp_path, task=task)).task_settings()
    assert (settings.dtype, settings.max_examples, settings.num_clients) == ("float64", 7, 3)


@pytest.mark.parametrize(
    ("section", "name"),
    [
        ("training", "momentum"),
        ("deletion", "epsilon"),
        ("limits", "correction-norm"),
        ("", "round-timeout-s"),
    ],
)
def test_true_and_false_are_no_numbers(tmp_path: Path, section: str, name: str) -> None:
    """Neither in a section nor beside them."""
    wrong: dict[str, Any] = {section: {name: False}} if section else {name: True}
    with refuses(f"{section}.{name}".lstrip(".")):
        validate_config(values(tmp_path, **wrong))


def test_the_l2_term_of_training_is_that_of_corrections(tmp_path: Path) -> None:
    """Set once: a correction without it would be far off."""
    assert validate_config(values(tmp_path)).corrections().l2 == 0.01


@pytest.mark.parametrize(("local_steps", "mixes_first"), [(0, True), (1, False), (5, True)])
def test_one_step_is_as_written_and_more_begin_at_the_mixture(
    tmp_path: Path, local_steps: int, mixes_first: bool
) -> None:
    """The configuration decides by the number of local steps."""
    config = validate_config(values(tmp_path, training={"local-steps": local_steps}))
    assert config.rules(make_task(config.task_settings()), np.zeros(2)).mixes_first is mixes_first


def test_the_command_files_a_request_that_waits_for_the_peer(tmp_path: Path) -> None:
    """Durable in the state directory, and shown by status, while no peer runs."""
    path = tmp_path / "peer.yaml"
    path.write_text(yaml.safe_dump(values(tmp_path)))
    filed = CliRunner().invoke(app, ["request", "--config", str(path), "--class", "3"])
    assert filed.exit_code == 0, filed.output
    (waiting,) = DirectoryMemory(tmp_path / "state").outbox()
    assert waiting["target"]["class_label"] == 3
    status = CliRunner().invoke(app, ["status", "--config", str(path)])
    assert json.loads(status.output)["waiting"] == [waiting["key"]]


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "localhost:x", "http://a:9301", "::1:9301", "127.0.0.1:99999", ":1"]
)
def test_an_address_is_a_host_and_a_port(tmp_path: Path, address: str) -> None:
    """Of a peer, and where this one listens."""
    for where in ("b", "listen"):
        peers = {"a": "127.0.0.1:9301", "b": address if where == "b" else "[::1]:9302", "c": "localhost:9303"}
        given = {"listen": address} if where == "listen" else {}
        with pytest.raises(ConfigurationError) as caught:
            validate_config(values(tmp_path, peers=peers, **given))
        assert f"{address!r} is not of the form HOST:PORT" in "\n".join(caught.value.problems)


def test_a_state_directory_has_one_peer(tmp_path: Path) -> None:
    """A configuration that was copied and given another name would send this peer's requests as its own."""
    config = tmp_path / "peer.yaml"
    for name, code in (("a", 0), ("b", 2), ("a", 0)):
        config.write_text(yaml.safe_dump(values(tmp_path, peer=name)))
        done = CliRunner().invoke(app, ["request", "--config", str(config), "--client"])
        assert done.exit_code == code, done.output
        if code:
            with refuses("state-dir"):
                make_peer(read_config(config))
    assert len(DirectoryMemory(tmp_path / "state").outbox()) == 2


def test_an_error_of_the_command_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And exit code 2."""
    monkeypatch.setattr("sys.argv", ["flower-unlearn-peer", "status", "--config", "nowhere.yaml"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "nowhere.yaml" in capsys.readouterr().err


def test_a_joining_peer_names_its_neighbours_in_the_others_graph(tmp_path: Path) -> None:
    """Its file is the others' with itself; their ring stays as it is."""
    peers = {name: f"127.0.0.1:930{at}" for at, name in enumerate("abcd")}
    joining = values(tmp_path, peer="d", peers=peers, graph={"kind": "ring", "neighbours": ["a", "b"]})
    assert validate_config(joining).make_graph() == ring("abc").join("d", "ab")


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"round-timeout": 5}, "round-timeout"),  # a typing error
        ({"task": {"image-side": 64}}, "task: image-side"),
        ({"task": {"num-clients": 2}}, "task.num-clients"),  # a peer deals no data
        ({"task": {"max-test-examples": 2}}, "task.max-test-examples"),  # and has no test set
        ({"graph": {"neighbours": ["unknown"]}}, "graph.neighbours"),
        ({"graph": {"neighbours": ["a"]}}, "graph.neighbours"),
        ({"deletion": {"epsilon": 0.5}}, "limits.correction-norm"),
        ({"peer": "z"}, "peers: this peer"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, changes: dict[str, Any], setting: str) -> None:
    """Before the peer starts."""
    with pytest.raises(ConfigurationError) as caught:
        validate_config(values(tmp_path, **changes))
    [problem] = caught.value.problems
    assert problem.startswith(setting)


def test_bounds_are_on_by_default_and_tighter_with_a_feature_norm(tmp_path: Path) -> None:
    """Three times the untrained model's length, and the method's own bound where the features are bounded."""
    start = np.full(650, 0.1)
    for limits, has_constants in (({}, False), ({"feature-norm": 9.0}, True)):
        config = validate_config(values(tmp_path, limits=limits, task={"dtype": "float64"}))
        found = config.rules(make_task(config.task_settings()), start)
        assert found.correction_norm == pytest.approx(3 * np.linalg.norm(start))
        assert (found.constants is not None) is has_constants


def test_data_beyond_the_feature_norm_keeps_the_peer_from_starting(tmp_path: Path) -> None:
    """The others' bound on its corrections would not hold."""
    small = values(tmp_path, limits={"feature-norm": 1.1})
    with pytest.raises(DataError):
        make_peer(validate_config(small))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("peer.yaml", "started: 2026-13-45"),
        ("peer.yaml", "{a: " * 3000),
        ("peer.toml", "a = " + "[" * 3000),
        ("peer.toml", "a = " + "9" * 5000),
        ("peer.yaml", "\0"),
    ],
)
def test_a_file_that_no_reader_takes_is_refused_with_its_name(tmp_path: Path, name: str, text: str) -> None:
    """Readers raise more than their own errors: of dates that are none, of depth, of numbers of 5,000 digits."""
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        read_config(path)
    assert name in str(caught.value)
