"""What a peer computes on its own examples: so many steps of SGD and no more, and what it can forget."""

from dataclasses import replace

import numpy as np
import pytest

from client.peer.learner import SiteLearner
from tests.unit.unlearning.certified.problems import LOGISTIC, blobs
from unlearning.curvature.gradients import gradient
from unlearning.decentralised.corrections import CorrectionSettings
from unlearning.decentralised.dpsgd import local_move
from unlearning.errors import InvalidRequest
from unlearning.requests import Forget
from unlearning.training import TrainingSettings

EXAMPLES = blobs(12, seed=1)
WHOLE = TrainingSettings(epochs=50, batch_size=12, learning_rate=0.1, weight_decay=0.01, seed=0)


@pytest.mark.parametrize("num_steps", [1, 2, 5])
def test_it_is_that_many_steps_down_the_gradient(num_steps: int):
    """With all examples in a batch: −γ Σ_t ∇F(x_t), the rate scaled."""
    start = np.random.default_rng(0).standard_normal(15)
    at = start.copy()
    for _ in range(num_steps):
        at = at - 0.5 * 0.1 * gradient(LOGISTIC, at, EXAMPLES, l2=0.01)
    move = local_move(LOGISTIC, start, EXAMPLES, WHOLE, num_steps=num_steps, scale=0.5)
    np.testing.assert_allclose(move, at - start, atol=1e-12)


def test_without_a_number_of_steps_it_is_the_epochs():
    start = np.zeros(15)
    settings = TrainingSettings(epochs=2, batch_size=5, learning_rate=0.1, seed=3)
    whole = local_move(LOGISTIC, start, EXAMPLES, settings)
    np.testing.assert_array_equal(whole, local_move(LOGISTIC, start, EXAMPLES, settings, num_steps=6))
    assert not np.array_equal(whole, local_move(LOGISTIC, start, EXAMPLES, settings, num_steps=5))


def test_a_peer_is_asked_to_forget_only_what_it_has():
    """The first five ids are named, and how many more there are."""
    learner = SiteLearner(
        peer="a",
        task=LOGISTIC,
        examples=EXAMPLES,
        training=WHOLE,
        corrections=CorrectionSettings(l2=0.01),
    )
    own = EXAMPLES.ids.tolist()
    learner.check(Forget(sample_ids=frozenset(own[:3])))
    with pytest.raises(InvalidRequest, match="'x0'"):
        learner.check(Forget(sample_ids=frozenset([*own, "x0"])))
    with pytest.raises(InvalidRequest, match="2 more"):
        learner.check(Forget(sample_ids=frozenset(f"x{number}" for number in range(7))))
    moved = replace(learner, moved="number 7 is another one")
    with pytest.raises(InvalidRequest, match="number 7"):
        moved.check(Forget(sample_ids=frozenset(own[:3])))
    moved.check(Forget(everything=True))
    some, gone = (Forget(sample_ids=frozenset(own[:count])) for count in (5, 2))
    assert (learner.count(some, outside=gone), learner.count(gone, outside=some)) == (3, 0)
