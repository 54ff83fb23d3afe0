"""What methods cannot go on without, each by its own, and whether trying again may help."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from torch import nn

from strategies import built_in
from tests.raising import raises
from unlearning.errors import ConfigurationError, InvalidRequest, MethodFailed
from unlearning.local import problem_of
from unlearning.methods.method import AsksNobody, Need
from unlearning.methods.registry import METHODS, validated_parameters
from unlearning.requests import Granularity, Target
from unlearning.tasks import TaskSettings, make_task
from unlearning.testing.convex import DATA, TASK, TRAINING
from unlearning.testing.deletions import Deletion

LEAVES = Target(Granularity.CLIENT, "u")
THETA = np.zeros(6)


@pytest.mark.parametrize("name", [name for name in METHODS if not isinstance(METHODS[name], AsksNobody)])
def test_an_exchange_that_nobody_or_all_but_the_target_answer_can_be_tried_again(name: str):
    """At any point of the deletion; without the target's answer, where it was asked, nothing would be unlearned."""
    deletion = Deletion(METHODS[name], Granularity.CLIENT)
    problem, run = deletion.recorded_problem, deletion.recorded
    (target,) = problem.targets
    for state, replies in zip(run.states, run.replies, strict=False):
        with pytest.raises(MethodFailed) as caught:
            METHODS[name].aggregate(problem, state, {})
        assert caught.value.retryable
        if target in replies:
            others = {client: reply for client, reply in replies.items() if client != target}
            with raises(MethodFailed, "no-answer", clients=(target,)) as caught:
                METHODS[name].aggregate(problem, state, others)
            assert caught.value.retryable


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("given", [True, False])
def test_true_and_false_are_no_numbers(name: str, given: bool):
    """Of a parameter, or of what a method is prepared with: JSON has them, and a rate of `true` was one of 1."""
    method = METHODS[name]
    kinds = [method.Parameters, *([one] if (one := method.info.preparation) else [])]
    for kind in kinds:
        for field in [key for key, one in kind.model_fields.items() if one.annotation is not bool]:
            with pytest.raises(ValidationError) as caught:
                kind.model_validate({kind.model_fields[field].alias or field: given})
            assert len(caught.value.errors()) == 1


@pytest.mark.parametrize("name", ["neggrad-plus", "fedosd"])
def test_a_method_with_two_sides_cannot_do_without_those_who_keep_something(name: str):
    """Neither side alone is the method; it can be tried again."""
    deletion = Deletion(METHODS[name], Granularity.CLIENT)
    replies = {client: deletion.recorded.replies[0][client] for client in deletion.recorded_problem.targets}
    with raises(MethodFailed, "no-answer") as caught:
        METHODS[name].aggregate(deletion.problem(), deletion.recorded.states[0], replies)
    assert caught.value.retryable


@pytest.mark.parametrize(
    "name", [name for name in METHODS if Need.REQUESTER_ONLINE in METHODS[name].info.needs]
)
def test_a_target_without_an_example_is_nothing_to_forget(name: str):
    """It says so, and the deletion fails for good: no model is passed off as unlearned."""
    deletion = Deletion(METHODS[name], Granularity.CLIENT)
    empty = deletion.sites["a"].select(np.array([], dtype=np.intp))
    with raises(MethodFailed, "nothing-to-forget") as caught:
        deletion.run(sites={**deletion.sites, "a": empty})
    assert not caught.value.retryable


@pytest.mark.parametrize("name", ["neggrad-plus", "fedosd", "mode", "pga"])
def test_a_federation_with_nobody_left_is_refused_for_good(name: str):
    """There is nobody to descend by, to learn from or to compare with."""
    alone = problem_of(METHODS[name], TASK, [LEAVES], {"u": DATA["u"]}, TRAINING)
    with raises(MethodFailed, "no-client-stays") as caught:
        METHODS[name].begin(alone, THETA)
    assert not caught.value.retryable


@pytest.mark.parametrize("name", ["neggrad-plus", "fedosd", "mode"])
def test_clients_that_are_away_can_be_waited_for(name: str):
    """The target is not one of them."""
    alone = problem_of(METHODS[name], TASK, [LEAVES], {"u": DATA["u"]}, TRAINING)
    with raises(MethodFailed, "no-client-online") as caught:
        METHODS[name].begin(replace(alone, num_examples={"u": 4, "b": 3, "a": 3}), THETA)
    assert caught.value.retryable
    assert str(caught.value).endswith(": a, b.")


@pytest.mark.parametrize(
    ("name", "code"),
    [
        *((name, "no-classifier-head") for name in ("fedau", "fedau-learning")),
        *((name, "no-classification") for name in ("fedosd", "fedquit", "mode")),
    ],
)
def test_a_task_without_class_labels_is_refused(name: str, code: str):
    """Segmentation has no true class an example, and no classifier's head."""
    masks = make_task(TaskSettings(dataset="npz", model="res-unet", num_classes=2, input_shape="3x16x16"))
    with raises(MethodFailed, code) as caught:
        METHODS[name].begin(problem_of(METHODS[name], masks, [LEAVES], DATA, TRAINING), THETA)
    assert not caught.value.retryable


@pytest.mark.parametrize("name", ["exact-ridge", "fedau-learning", "federaser", "hf-online", "sisa"])
def test_an_unprepared_federation_is_told_what_to_configure(name: str):
    """Should a request be admitted all the same: the setting, and until when it has to be given."""
    info = METHODS[name].info
    assert info.preparation is not None
    when = "the first round" if info.preparation.from_the_start else "training"
    words = f'{re.escape(info.title)} works .* prepare = "{name}" before {when}\\. Choose another'
    with pytest.raises(MethodFailed, match=words) as caught:
        METHODS[name].begin(problem_of(METHODS[name], TASK, [LEAVES], DATA, TRAINING), THETA)
    assert not caught.value.retryable


PUF = ("puf-special", "puf-regular")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        *((name, {"unlearning_rate": rate}) for name in PUF for rate in (0, -2, float("inf"), "fast")),
        *((name, {"eta": 2}) for name in PUF),
        ("puf-special", {"retained_rate": 1.0}),  # one of PUF-Regular's
        ("neggrad-plus", {"balance": 1.1}),
        ("hf-online", {"epsilon": 1.0}),
    ],
)
def test_a_bad_parameter_is_refused_by_name(name: str, values: dict[str, Any]):
    """The message lists those there are."""
    with pytest.raises(InvalidRequest, match="It takes: ") as caught:
        validated_parameters(METHODS[name], values)
    assert next(iter(values)) in str(caught.value)


SEGMENTATION = {"dataset": "npz", "model": "res-unet", "num-classes": 2, "input-shape": "3x16x16"}


def normalised(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """A model of a user's own with batch statistics."""
    return nn.Sequential(nn.Linear(input_shape[0], 4), nn.BatchNorm1d(4), nn.Linear(4, num_classes))


BATCH_STATISTICS = {
    "dataset": "npz",
    "input-shape": "4",
    "num-classes": 3,
    "model": f"{__name__}:{normalised.__name__}",
}


@pytest.mark.parametrize(
    ("prepare", "settings"),
    [
        ("pga; pga", {}),
        ("natural", {}),
        ("sisa; federaser", {}),
        ("sisa; fedau-learning", {}),
        ("sisa shards=4", {"num-clients": 3}),
        ("sisa shards=0", {}),
        ("sisa vote=loudest", {}),
        ("fedau-learning class=10", {}),
        ("fedau-learning colour=red", {}),
        ("fedau-learning", SEGMENTATION),
        ("hf-online", {"optimizer": "adam"}),
        ("hf-online max_gib=0.00001", {}),
        ("hf-online", BATCH_STATISTICS),
        ("hf-online sigma=1", {}),
        ("hf-online sensitivity=1", {}),
        ("hf-online sigma=0", {}),
    ],
)
def test_a_preparation_that_cannot_work_is_refused(prepare: str, settings: dict[str, Any]):
    """Before anything is trained; it is the only setting that is wrong."""
    with pytest.raises(ConfigurationError) as caught:
        built_in.SOURCE.prepared({"prepare": prepare, **settings})
    (problem,) = caught.value.problems
    assert problem.startswith("prepare: ")
