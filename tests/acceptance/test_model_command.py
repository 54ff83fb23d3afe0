"""`flower-unlearn model` hands out the federation's model."""

import json

import pytest
import torch
from typer.testing import CliRunner

from server.cli import app
from server.state_directory.files import SETTINGS_FILE
from strategies.settings.task_source import MADE_BY
from tests.tasks import initial_model
from unlearning.parameters import content_hash, flatten
from unlearning.tasks import make_task


def test_the_model_comes_out_as_a_state_dictionary(federation, tmp_path):
    """It loads into the task's model and is the checkpoint's, bit for bit."""
    one = federation()
    state = one.run()
    output = tmp_path / "model.pt"
    done = CliRunner().invoke(app, ["model", "--state-dir", str(one.directory), "--output", str(output)])
    assert done.exit_code == 0, done.output
    model = initial_model(make_task(one.settings.task()), seed=99)
    model.load_state_dict(torch.load(output))
    assert content_hash(flatten(model)) == content_hash(state.parameters)
    assert content_hash(state.parameters) in done.output.replace("\n", "")


@pytest.mark.parametrize("content", ["[]", "3", '"x"', '{"rounds": 2', ""])
def test_settings_that_are_damaged_are_said_to_be(federation, tmp_path, content):
    """Every one of the file's kinds of damage ends in a sentence that names it."""
    one = federation()
    one.run()
    path = one.directory / SETTINGS_FILE
    path.write_text(content)
    done = run("model", "--state-dir", str(one.directory), "--output", str(tmp_path / "model.pt"))
    assert (done.exit_code, str(path) in done.stderr.replace("\n", "")) == (2, True), done.output
    assert not list(tmp_path.glob("model*"))


@pytest.mark.parametrize("output", ["/", "a-folder", "file/model.pt"])
def test_a_model_that_cannot_be_written_is_an_error_of_the_system(federation, tmp_path, monkeypatch, output):
    """What is in the way stays."""
    one = federation()
    one.run()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a-folder").mkdir()
    (tmp_path / "file").write_text("mine")
    done = run("model", "--state-dir", str(one.directory), "--output", output)
    assert (done.exit_code, done.stdout) == (1, "")
    assert (tmp_path / "file").read_text() == "mine"


def test_an_app_whose_module_does_not_run_is_named(federation, tmp_path):
    """With what it raised."""
    one = federation()
    one.run()
    (tmp_path / "broken_app.py").write_text("raise RuntimeError('no data here')")
    path = one.directory / SETTINGS_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | {MADE_BY: "broken_app:make_task"}))
    arguments = ("--app", str(tmp_path), "--output", str(tmp_path / "model.pt"))
    done = run("model", "--state-dir", str(one.directory), *arguments)
    assert done.exit_code == 2
    assert "no data here" in done.stderr


def run(*arguments):
    """What the command ends with: an exit code, and no unexpected error."""
    done = CliRunner().invoke(app, arguments)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done
