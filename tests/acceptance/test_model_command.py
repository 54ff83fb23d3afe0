"""`flower-unlearn model` hands out the federation's model."""

import torch
from typer.testing import CliRunner

from server.cli import app
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
