"""An optimiser's state goes on from round to round at its site, and never past a deletion."""

from dataclasses import replace

import numpy as np
import pytest
from torch import nn

from tests.tasks import noise, tiny_classification
from unlearning.errors import ConfigurationError
from unlearning.local import begin, learn, unlearn
from unlearning.optimizers import OPTIMIZER, keep_state, kept_state
from unlearning.requests import Granularity, Target
from unlearning.runtime.stores import MemoryStore
from unlearning.training import TrainingSettings, initial_parameters, train

TASK = tiny_classification(lambda: nn.Linear(3, 2))
START = initial_parameters(TASK, seed=0)
WHOLE = noise(6)
"""One batch, so that the order of examples decides nothing but rounding."""

KINDS = [
    TrainingSettings(batch_size=6, momentum=0.9, keep_optimizer=True),
    TrainingSettings(batch_size=6, optimizer="adam", learning_rate=0.01, keep_optimizer=True),
    TrainingSettings(batch_size=6, optimizer="adamw", learning_rate=0.01, keep_optimizer=True),
]


@pytest.mark.parametrize("training", KINDS, ids=lambda one: one.optimizer)
def test_two_rounds_with_what_was_kept_are_one_training_of_two_epochs(training):
    """And without it they are another one."""
    whole = train(TASK, START, WHOLE, replace(training, epochs=2)).parameters
    first = train(TASK, START, WHOLE, training, kept={})
    second = train(TASK, first.parameters, WHOLE, training, kept=first.optimizer)
    anew = train(TASK, first.parameters, WHOLE, training)
    assert np.allclose(second.parameters, whole, rtol=0, atol=1e-14)
    assert not np.allclose(anew.parameters, whole, rtol=0, atol=1e-4)
    assert anew.optimizer == {}


def test_the_state_of_another_model_is_not_gone_on_with():
    """An app's new version may have other layers."""
    training = KINDS[1]
    other = {"0.exp_avg": np.zeros((5, 3)), "0.exp_avg_sq": np.zeros((5, 3)), "0.step": np.ones(())}
    expected = train(TASK, START, WHOLE, training, kept={})
    assert np.array_equal(train(TASK, START, WHOLE, training, kept=other).parameters, expected.parameters)


def test_only_the_round_directly_before_counts():
    """A round that is done again after a crash starts from what it started from."""
    store = MemoryStore()
    keep_state(store, "sgd", 4, {"0.momentum_buffer": np.ones(2)})
    keep_state(store, "sgd", 5, {"0.momentum_buffer": np.zeros(2)})
    assert kept_state(store, "sgd", 5)["0.momentum_buffer"].all()
    assert kept_state(store, "sgd", 7) == {}
    assert kept_state(store, "adam", 6) == {}


def test_nothing_of_it_is_left_or_used_after_a_deletion():
    """The client's own is erased; the next round is as without any, for all clients."""
    data = {"a": WHOLE, "b": noise(5)}
    learnt = learn(TASK, data, begin(TASK, KINDS[0]), rounds=2)
    assert learnt.site_stores["a"][OPTIMIZER].rounds("sgd") == [1, 2]
    gone = [Target(Granularity.SAMPLE, "a", frozenset({WHOLE.ids[0]}))]
    after = unlearn("not", TASK, learnt, data, gone).learnt
    assert "a" not in after.site_stores
    forgetful = replace(after, training=replace(KINDS[0], keep_optimizer=False))
    assert np.array_equal(learn(TASK, data, after).parameters, learn(TASK, data, forgetful).parameters)
    kept, anew = (replace(learnt, training=replace(KINDS[0], keep_optimizer=on)) for on in (True, False))
    assert not np.allclose(learn(TASK, data, kept).parameters, learn(TASK, data, anew).parameters)


@pytest.mark.parametrize("prepare", ["sisa", "hf-online", "exact-ridge", "fedau-learning"])
def test_a_preparation_that_trains_itself_refuses_it(prepare):
    """What it would keep is not what it trains with."""
    with pytest.raises(ConfigurationError, match="keep-optimizer"):
        begin(TASK, KINDS[0], prepare)
