"""The library between deletions: what is forgotten stays out, rounds keep their settings, shards are not one model."""

from dataclasses import replace

import numpy as np
import pytest
from torch import nn

from tests.contract.test_task_kinds import BUILT_IN, TRAINING, data_of
from tests.raising import raises
from unlearning.errors import AlreadyForgotten, UpdateRefused
from unlearning.evaluation import evaluate, predict
from unlearning.local import begin, learn, retained, unlearn
from unlearning.methods.method import Problem, UnlearningState
from unlearning.methods.retrain import Natural
from unlearning.parameters import Vector
from unlearning.requests import Granularity, Target

DATA = data_of("built-in training")
GONE = [Target(Granularity.CLIENT, "b")]
SOME = [Target(Granularity.SAMPLE, "a", frozenset({"a-1", "a-2"}))]
OF_CLASS = [Target(Granularity.CLASS, class_label=1)]


@pytest.mark.parametrize("targets", [GONE, SOME, OF_CLASS], ids=["client", "samples", "class"])
def test_what_is_forgotten_is_left_out_of_later_rounds(targets: list[Target]) -> None:
    """Also where the data are given as they were, as a client's computer still has them."""
    learnt = unlearn(
        "natural", BUILT_IN, learn(BUILT_IN, DATA, begin(BUILT_IN, TRAINING)), DATA, targets
    ).learnt
    found, expected = (learn(BUILT_IN, sites, learnt) for sites in (DATA, retained(DATA, targets)))
    np.testing.assert_array_equal(found.parameters, expected.parameters)
    assert found.num_examples == {
        client: len(examples) for client, examples in retained(DATA, targets).items()
    }


def test_what_is_forgotten_cannot_be_forgotten_again() -> None:
    """A client is gone, and so is a sample."""
    learnt = learn(BUILT_IN, DATA, begin(BUILT_IN, TRAINING))
    once = unlearn("natural", BUILT_IN, learnt, DATA, [*GONE, *SOME]).learnt
    for sites in (DATA, retained(DATA, [*GONE, *SOME])):
        with raises(AlreadyForgotten, ""):
            unlearn("natural", BUILT_IN, once, sites, GONE)
        with raises(AlreadyForgotten, ""):
            unlearn("natural", BUILT_IN, once, sites, SOME)
        with raises(AlreadyForgotten, "samples"):
            partly = Target(Granularity.SAMPLE, "a", frozenset({"a-2", "a-3"}))
            unlearn("natural", BUILT_IN, once, sites, [partly])


def test_a_class_is_forgotten_once_and_its_samples_with_it() -> None:
    """A sample of the class is named as forgotten, not as unknown."""
    once = unlearn("natural", BUILT_IN, begin(BUILT_IN, TRAINING), DATA, OF_CLASS).learnt
    with raises(AlreadyForgotten, ""):
        unlearn("natural", BUILT_IN, once, DATA, OF_CLASS)
    of_class = str(DATA["a"].ids[DATA["a"].targets.numpy() == 1][0])
    with raises(AlreadyForgotten, "samples"):
        unlearn("natural", BUILT_IN, once, DATA, [Target(Granularity.SAMPLE, "a", frozenset({of_class}))])


class Counting(Natural):
    """Notes how many examples each client counts in a deletion."""

    def begin(self, problem: Problem, parameters: Vector) -> UnlearningState:
        self.counts = dict(problem.num_examples)
        return super().begin(problem, parameters)


@pytest.mark.parametrize("rounds", [1, 0])
def test_a_later_deletion_counts_no_client_that_is_gone(rounds: int) -> None:
    """Of 7, 9 and 12 examples the 9 of client b count in its own deletion, then in none; also of a model that came."""
    learnt, method = begin(BUILT_IN, TRAINING), Counting()
    learnt = learn(BUILT_IN, DATA, learnt) if rounds else learnt
    targets = [GONE, SOME, [Target(Granularity.CLIENT, "c")]]
    expected = [{"a": 7, "b": 9, "c": 12}, {"a": 7, "c": 12}, {"a": 7, "c": 12}]  # as when a last took part
    for wanted, counts in zip(targets, expected, strict=True):
        learnt = unlearn(method, BUILT_IN, learnt, DATA, wanted).learnt
        assert method.counts == counts
    assert dict(learnt.num_examples) == {"a": 7}


@pytest.mark.parametrize("method", ["sisa", "federaser"])
def test_rounds_are_repeated_with_the_training_that_they_had(method: str) -> None:
    """Other settings from now on change nothing of a deletion."""
    learnt = learn(BUILT_IN, DATA, begin(BUILT_IN, TRAINING, method), rounds=2)
    expected = unlearn(method, BUILT_IN, learnt, DATA, GONE).parameters
    changed = replace(learnt, training=replace(TRAINING, learning_rate=0.02, epochs=3, momentum=0.5))
    np.testing.assert_array_equal(unlearn(method, BUILT_IN, changed, DATA, GONE).parameters, expected)


def test_the_shards_of_sisa_are_measured_as_what_they_learn_together() -> None:
    """With the single model's task it is refused in a sentence that says which task to give."""
    learnt = learn(BUILT_IN, DATA, begin(BUILT_IN, TRAINING, "sisa shards=3"), rounds=2)
    for measure in (evaluate, predict):
        with raises(UpdateRefused, "shards"):
            measure(BUILT_IN, learnt.parameters, DATA["c"])
    assert len(evaluate(learnt.learns(BUILT_IN), learnt.parameters, DATA["c"])) == 12
    other = replace(BUILT_IN, build_model=lambda: nn.Linear(2, 3, bias=False))
    with pytest.raises(UpdateRefused):
        evaluate(other, learnt.parameters[:-1], DATA["c"])
