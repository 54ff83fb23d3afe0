"""Many models trained at once go where each goes alone."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.bench.batched_training import suits, train_federations, train_many
from unlearning.errors import DataError
from unlearning.parameters import weighted_mean
from unlearning.tasks import TaskSettings, load_site, make_task
from unlearning.training import TrainingSettings, initial_parameters, local_seed, train

DIGITS = TaskSettings(num_clients=3, max_examples=120, dtype="float64")
TRAINING = TrainingSettings(epochs=2, batch_size=16, learning_rate=0.1, momentum=0.5, weight_decay=0.01)


@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_each_model_is_trained_as_it_is_alone(model):
    """Its own start and its own order of examples, with momentum and decay and a smaller last batch."""
    task = make_task(replace(DIGITS, model=model))
    examples = load_site(DIGITS, 0).train
    starts = np.stack([initial_parameters(task, seed) for seed in range(3)])
    settings = [replace(TRAINING, seed=seed) for seed in (5, 6, 7)]
    kept = starts.copy()
    together = train_many(task, starts, examples, settings)
    alone = [train(task, *pair).parameters for pair in ((starts[i], examples, settings[i]) for i in range(3))]
    assert together == pytest.approx(np.stack(alone), abs=1e-12)
    assert np.array_equal(starts, kept)


def test_federations_are_the_rounds_of_each_seed():
    """Two rounds of federated averaging with a client that has left; the learning rate is the round's."""
    task = make_task(DIGITS)
    data = {str(number): load_site(DIGITS, number).train for number in range(3)}
    data["1"] = data["1"].select(np.zeros(len(data["1"]), dtype=np.bool_))

    def schedule(number):
        return replace(TRAINING, learning_rate=0.1 / number)

    found = train_federations(task, data, schedule, rounds=2, seeds=[8, 9])
    for row, seed in zip(found, (8, 9), strict=True):
        model = initial_parameters(task, seed)
        for number in (1, 2):
            models = {}
            for client in ("0", "2"):
                own = replace(schedule(number), seed=local_seed(seed, client, number))
                models[client] = (len(data[client]), train(task, model, data[client], own).parameters)
            model = weighted_mean(models)
        assert row == pytest.approx(model, abs=1e-12)


@pytest.mark.parametrize(
    ("model", "changes", "expected"),
    [
        ("logistic", {}, True),
        ("mlp-head", {}, True),
        ("cnn", {}, False),
        ("mlp", {"optimizer": "adam"}, False),
        ("mlp", {"augment": True}, False),
    ],
)
def test_it_is_for_heads_and_plain_sgd(model, changes, expected):
    """Everything else is trained one by one."""
    assert suits(make_task(TaskSettings(model=model)), replace(TRAINING, **changes)) is expected


def test_without_examples_nothing_is_trained():
    """As alone."""
    task, examples = make_task(DIGITS), load_site(DIGITS, 0).train
    none = examples.select(np.zeros(len(examples), dtype=np.bool_))
    with pytest.raises(DataError):
        train_many(task, initial_parameters(task, 0)[np.newaxis], none, [TRAINING])
