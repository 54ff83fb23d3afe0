"""The benchmark of private training: its vectorised clients train as the library's do."""

import numpy as np
from torch import nn

from benchmarks.certified.private_training import RATE, STEPS, local_updates, stacked
from tests.tasks import tiny_classification
from unlearning.testing.deletions import sites
from unlearning.training import TrainingSettings, initial_parameters, train


def test_many_clients_at_once_train_as_one_by_one():
    """Gradient steps on all examples of each."""
    clients = sites()
    inputs, targets = stacked(clients)
    task = tiny_classification(lambda: nn.Linear(2, 3), num_classes=3)
    start = initial_parameters(task, 0)
    found = local_updates(start, inputs, targets)
    settings = TrainingSettings(epochs=STEPS, batch_size=inputs.shape[1], learning_rate=RATE)
    for row, examples in enumerate(clients.values()):
        own = train(task, start, examples.select(np.arange(inputs.shape[1])), settings).parameters - start
        np.testing.assert_allclose(found[row], own, atol=1e-6)
