"""Steps repeated from a recording; the recording itself needs an accelerator."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from tests.normalised import TASK as NORMALISED
from tests.normalised import examples, sites
from unlearning import training
from unlearning.local import begin, learn, unlearn
from unlearning.methods.method import Need
from unlearning.methods.registry import METHODS
from unlearning.parameters import flatten
from unlearning.requests import Granularity, Target
from unlearning.tasks import TaskSettings, load_site, make_task
from unlearning.tasks.batches import Shuffled
from unlearning.training import TrainingSettings, initial_parameters, model_with, train
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


def test_a_batch_of_one_example_is_normalised_by_the_running_statistics():
    """17 examples in batches of 16, as after the deletion of a record: as by hand, and the others by their own."""
    some, settings = examples("a", 17), TrainingSettings(batch_size=16, learning_rate=0.1, seed=3)
    start = initial_parameters(NORMALISED, 0)
    model = model_with(NORMALISED, start)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for rows in Shuffled(17, 16, torch.Generator().manual_seed(3)):
        for layer in model:
            layer.train(len(rows) > 1 or not isinstance(layer, nn.BatchNorm1d))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(some.inputs[rows]), some.targets[rows]).backward()
        optimizer.step()

    found = train(NORMALISED, start, some, settings)

    np.testing.assert_allclose(found.parameters, flatten(model), rtol=1e-6)


def test_a_model_that_refuses_its_inputs_for_another_reason_says_so():
    """Its own ValueError, of one example and of several."""

    class Picky(nn.Sequential):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            raise ValueError(f"no rows of {len(inputs)}")

    for kind in (nn.BatchNorm1d(4), nn.ReLU()):
        task = replace(NORMALISED, build_model=lambda kind=kind: Picky(kind, nn.Linear(4, 3)))
        for count in (1, 5):
            with pytest.raises(ValueError, match=f"no rows of {count}"):
                train(task, initial_parameters(task, 0), examples("a", count), TrainingSettings())


ONE = Target(Granularity.SAMPLE, "u", frozenset({"u-3"}))
FOR_SAMPLES = sorted(
    name
    for name, one in METHODS.items()
    if Granularity.SAMPLE in one.info.granularities
    and one.info.preparation is None
    and Need.NO_STATISTICS not in one.info.needs
)


@pytest.mark.parametrize("name", FOR_SAMPLES)
def test_one_record_is_forgotten_of_a_normalised_model(name):
    """By every method that takes such models: also those that train on what is forgotten alone."""
    learnt = learn(NORMALISED, sites(), begin(NORMALISED, TrainingSettings()), rounds=2)
    assert np.isfinite(unlearn(name, NORMALISED, learnt, sites(), [ONE]).parameters).all()
