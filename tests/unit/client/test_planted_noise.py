"""Noise that a data owner planted: the files, the score by hand, and an owner that watches a federation forget it."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from client.cli import app
from client.planted_noise import PLANTED, SCORES, note_score, read_scores
from tests.federation import client
from unlearning.parameters import content_hash
from unlearning.requests import Status
from unlearning.tasks import TaskSettings, load_site, make_task
from unlearning.training import initial_parameters


def own_file(path, examples):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, inputs=examples.inputs.numpy(), targets=examples.targets.numpy(), ids=examples.ids)
    return path


def read(path):
    with np.load(path) as archive:
        return {name: archive[name] for name in archive.files}


def call(*arguments, code=0):
    done = CliRunner().invoke(app, ["noise", *map(str, arguments)])
    assert done.exit_code == code, (done.output, done.exception)
    return done


def plant(tmp_path, *, examples=None, state="state", **options):
    examples = load_site(TaskSettings(num_clients=6), 0).train if examples is None else examples
    data = own_file(tmp_path / "clean" / "train.npz", examples)
    (tmp_path / state).mkdir(parents=True, exist_ok=True)
    given = {
        "state-dir": tmp_path / state,
        "data": data,
        "output": tmp_path / "noisy",
        "deviation": 0.7,
        "seed": 1,
    }
    given |= options
    call("plant", *(part for name, value in given.items() for part in (f"--{name}", value)))
    return examples


def test_a_tenth_gets_noise_and_the_owner_keeps_it(tmp_path):
    """Clean plus noise is what the file has now; all else, ids and labels, is as it was."""
    examples = plant(tmp_path)
    noisy, kept = read(tmp_path / "noisy" / "train.npz"), read(tmp_path / "state" / PLANTED)
    where = [examples.ids.tolist().index(name) for name in kept["ids"].tolist()]
    assert len(where) == round(0.1 * len(examples))
    assert noisy["inputs"][where] == pytest.approx(kept["inputs"] + kept["noise"])
    others = np.setdiff1d(np.arange(len(examples)), where)
    assert np.array_equal(noisy["inputs"][others], examples.inputs.numpy()[others])
    assert np.array_equal(noisy["ids"], examples.ids)
    assert (tmp_path / "state" / PLANTED).stat().st_mode & 0o077 == 0


def test_what_cannot_be_planted_is_refused(tmp_path):
    """Bytes, and a second planting over the first."""
    plant(tmp_path)
    (tmp_path / "other").mkdir()
    arguments = ["plant", "--state-dir", tmp_path / "state", "--data", tmp_path / "clean" / "train.npz"]
    arguments += ["--output", tmp_path / "noisy", "--deviation", 0.5]
    assert "there already" in call(*arguments, code=1).output
    path = tmp_path / "bytes.npz"
    np.savez(path, inputs=np.zeros((3, 4), np.uint8), targets=np.zeros(3, np.int64))
    arguments[2], arguments[4] = tmp_path / "other", path
    assert "floating-point" in call(*arguments, code=1).output
    assert "No noise was planted" in call("show", "--state-dir", tmp_path / "other", code=2).output


def test_a_model_is_scored_once_and_by_hand(tmp_path):
    """Of one example and a linear model: −⟨Wᵀ(p − e_y), ξ⟩ / (σ ‖·‖), z the same; the same model again adds nothing."""
    task = make_task(TaskSettings(model="logistic"))
    examples = load_site(TaskSettings(num_clients=6), 0).train.select(np.array([4]))
    plant(tmp_path, examples=examples, share=1.0)
    model = initial_parameters(task, 3) + 0.1 * np.random.default_rng(0).normal(size=650).astype(np.float32)
    for number in (5, 6):
        note_score({"state-dir": str(tmp_path / "state")}, task, model, number)
    weight, bias = model[:640].reshape(10, 64).astype(np.float64), model[640:].astype(np.float64)
    pull = torch.softmax(torch.from_numpy(weight @ examples.inputs.numpy().ravel() + bias), 0).numpy()
    pull[int(examples.targets[0])] -= 1
    gradient, noise = weight.T @ pull, read(tmp_path / "state" / PLANTED)["noise"].ravel()
    (found,) = read_scores(tmp_path / "state")
    assert found.z == pytest.approx(-(gradient @ noise) / (0.7 * np.linalg.norm(gradient)), rel=1e-4)
    assert (found.round, found.mean, found.model) == (5, found.z, content_hash(model))


def test_a_damaged_file_costs_the_score_and_not_the_measurement(tmp_path, caplog):
    """The server gets its answer; the log says what happened."""
    (tmp_path / PLANTED).write_bytes(b"no archive")
    task = make_task(TaskSettings(model="logistic"))
    note_score({"state-dir": str(tmp_path)}, task, initial_parameters(task, 0), 1)
    assert "has no score for the model" in caplog.text
    assert not (tmp_path / SCORES).exists()


@pytest.mark.slow  # a whole federation
def test_an_owner_sees_the_federation_forget_its_noise(tmp_path, federation):
    """Learnt by heart z is far above chance (4.75: one of a million); after retraining not; hashes are the report's."""
    one = federation(
        model="mlp", num_clients=3, partition="iid", rounds=2, local_epochs=25, batch_size=16, learning_rate=0.1,
        momentum=0.9, max_examples=300, recovery_max_rounds=0,
        max_influence_factor=0.0,  # among three, planted noise is a pull that is held back
    )  # fmt: skip
    clean = load_site(one.settings.task(), 1).train
    state_dir = one.directory / "clients" / "1"
    plant(tmp_path, examples=clean, state=state_dir, share=0.5)
    one.grid.contexts[one.node("1")].node_config["data-dir"] = str(tmp_path / "noisy")
    one.run()
    assert "No model was measured here yet" in call("show", "--state-dir", state_dir).output
    request = one.file(client("1"), "retrain")
    final = one.run()
    assert one.ledger.requests.get(request.id).status is Status.COMPLETED
    before, *_, after = read_scores(state_dir)
    assert before.z > 4.75
    assert abs(after.z) < 3.5
    assert after.model == content_hash(final.parameters)
    report = json.dumps(one.report(request.id))
    assert before.model in report
    assert after.model in report
    said = call("show", "--state-dir", state_dir).output
    assert f"z was {before.z:.2f} and is {after.z:.2f}" in said
