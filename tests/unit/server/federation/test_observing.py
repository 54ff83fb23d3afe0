"""What the server sees of a model on test examples of its own, by hand: two classes of one number, a line between."""

import numpy as np
import pytest
import torch

from server.federation.observing import ServerTestSet
from strategies.settings.run_config import RunSettings
from tests.small_app import TASK
from unlearning.tasks import Examples

ABOVE = np.zeros(18, dtype=np.float32)
"""A model that says class 1 where the first of eight numbers is above 0."""
ABOVE[8] = 1.0


def examples_of(*first: float, targets: list[int]) -> ServerTestSet:
    inputs = torch.zeros(len(first), 8)
    inputs[:, 0] = torch.tensor(first)
    ids = np.array([str(number) for number in range(len(first))])
    return ServerTestSet(TASK, Examples(inputs, torch.tensor(targets), ids), RunSettings())


def test_a_class_is_recognised_by_its_own_examples():
    """Three of four of class 1 are; of a class without an example nothing is known."""
    own = examples_of(1.0, 2.0, 3.0, -1.0, -1.0, targets=[1, 1, 1, 1, 0])
    figure = own.recognised(ABOVE, 1)
    assert figure is not None
    assert (figure.called.value, figure.num_forgotten) == (0.75, 4)
    assert own.recognised(ABOVE, 2) is None
    assert ServerTestSet(TASK, None, RunSettings()).recognised(ABOVE, 1) is None


@pytest.mark.parametrize(
    ("without", "expected"), [(set(), 0.8), ({1}, 1.0), ({0}, 0.75), ({0, 1}, None), ({2}, 0.8)]
)
def test_the_score_leaves_out_forgotten_classes(without: set[int], expected: float | None):
    """And is none where nothing is left to test on."""
    own = examples_of(1.0, 2.0, 3.0, -1.0, -1.0, targets=[1, 1, 1, 1, 0])
    found = own.score(ABOVE, without=frozenset(without))
    assert found == (expected if expected is None else pytest.approx(expected))
    assert ServerTestSet(TASK, None, RunSettings()).score(ABOVE, without=frozenset(without)) is None
