"""Steps repeated from a recording; the recording itself needs an accelerator."""

import numpy as np
import pytest
import torch

from unlearning import training
from unlearning.tasks import TaskSettings, load_site, make_task
from unlearning.training import TrainingSettings, initial_parameters, train
from unlearning.training_step import RecordedStep, where_steps_can_be_recorded

DIGITS = TaskSettings(num_clients=5, model="mlp")


def test_smaller_batches_and_the_first_ones_are_done_step_by_step():
    """Two full batches and one smaller: each is done once, in order, with the targets that were given."""
    done: list[list[int]] = []
    step = RecordedStep(lambda _, targets: done.append(targets.tolist()), 2)
    with where_steps_can_be_recorded(torch.device("cpu")):
        for batch in ([3, 1], [0], [2, 4]):
            step(torch.zeros(len(batch)), torch.tensor(batch))
    assert done == [[3, 1], [0], [2, 4]]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a recording needs an accelerator")
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_recorded_step_goes_the_way_of_the_same_step_without_recording(monkeypatch, momentum):
    """Two epochs with a smaller batch at each end, clipped gradients: the same model to rounding."""
    task, examples = make_task(DIGITS), load_site(DIGITS, 0).train
    settings = TrainingSettings(
        epochs=2,
        batch_size=16,
        learning_rate=0.01,
        momentum=momentum,
        clip_norm=1.0,
        weight_decay=1e-3,
        seed=3,
    )
    start = initial_parameters(task, 0)
    recorded = train(task, start, examples, settings)
    monkeypatch.setattr(training, "RecordedStep", lambda step, _: step)
    told = train(task, start, examples, settings)
    moved = np.linalg.norm(told.parameters - start)
    assert np.linalg.norm(recorded.parameters - told.parameters) < 1e-4 * moved
    assert recorded.loss == pytest.approx(told.loss, rel=1e-5)
