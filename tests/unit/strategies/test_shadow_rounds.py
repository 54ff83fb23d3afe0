"""What may enter a shadow model, and what travels of it."""

import numpy as np
import pytest
from flwr.app import RecordDict

from strategies.fedavg import FedAvg
from strategies.messages import arrays_content
from strategies.settings.run_config import RunSettings
from strategies.shadow_rounds import (
    average_shadows,
    collect_fits,
    shadow_arrays,
    shadow_models,
    shadow_record,
)
from tests.raising import raises
from unlearning.errors import UpdateRefused
from unlearning.tasks import TaskSettings, make_task

BEFORE = [np.zeros(3), np.ones(3)]


def reply(*trained, counts=None) -> RecordDict:
    """A client's answer: (number, examples, model) of each shadow model that it trained."""
    arrays = shadow_arrays({number: (count, model) for number, count, model in trained}, len(BEFORE))
    return arrays_content(arrays | ({} if counts is None else {"counts": counts}), {})


def fedavg(**settings) -> FedAvg:
    return FedAvg(make_task(TaskSettings()), RunSettings.from_run_config(settings))


GOOD = reply((0, 1, np.full(3, 4.0)), (1, 2, np.full(3, 3.0)))


def test_each_shadow_model_is_the_mean_by_numbers_of_examples():
    """Model 0: (1·4 + 3·8)/4 = 7; model 1: (2·3 + 1·6 of the server)/3 = 4. Client b had nobody for 1."""
    replies = {"a": GOOD, "b": reply((0, 3, np.full(3, 8.0)))}
    models, participants, _ = average_shadows(BEFORE, replies, [{1: (1, np.full(3, 6.0))}], fedavg())
    np.testing.assert_allclose(models[0], 7.0)
    np.testing.assert_allclose(models[1], 4.0)
    assert participants == ["a", "b"]


def test_a_shadow_model_that_nobody_trained_stays_as_it_is():
    """Where everybody's half was empty."""
    models, _, _ = average_shadows(BEFORE, {"b": reply((0, 3, np.full(3, 8.0)))}, [], fedavg())
    np.testing.assert_array_equal(models[1], BEFORE[1])


@pytest.mark.parametrize(
    "bad",
    [
        reply((0, 1, np.full(3, np.nan))),
        reply((0, 1, np.zeros(4))),
        reply((0, 1, np.zeros(3, dtype=np.float32))),
        reply((0, 1, np.zeros(3)), counts=np.array([1, 1])),
        reply((0, 1, np.zeros(3)), counts=np.array([1.0, np.inf])),
        reply((0, 1, np.zeros(3)), counts=np.array([-1, 0])),
        reply((0, 1, np.zeros(3)), counts=np.array([1, 0, 0])),
        arrays_content({}, {}),
    ],
    ids=["nan", "length", "dtype", "missing", "infinite", "negative", "more", "empty"],
)
def test_a_bad_answer_is_left_out_whole(bad):
    """The others' mean is what it would be without it."""
    models, participants, refused = average_shadows(BEFORE, {"a": GOOD, "b": bad}, [], fedavg())
    assert participants == ["a"]
    assert list(refused) == ["b"]
    np.testing.assert_allclose(models[0], 4.0)
    np.testing.assert_allclose(models[1], 3.0)


def test_the_bounds_on_updates_hold_for_shadow_models_too():
    """A norm over max-update-norm or too many examples refuse the answer; far over the median, it is left out."""
    far = reply((0, 1, np.full(3, 400.0)))
    near = {"a": GOOD, "b": reply((0, 1, np.full(3, 4.0)))}
    _, participants, _ = average_shadows(BEFORE, {**near, "c": far}, [], fedavg(**{"max-update-norm": 50.0}))
    assert participants == ["a", "b"]
    _, participants, _ = average_shadows(BEFORE, near, [], fedavg(**{"max-client-examples": 1}))
    assert participants == ["b"]
    models, _, _ = average_shadows(BEFORE, {**near, "c": far}, [], fedavg(**{"max-norm-factor": 3.0}))
    np.testing.assert_allclose(models[0], 4.0)


def test_shadow_models_travel_by_number():
    """There and back; a gap in the numbers is refused, for a model would be trained on another's half."""
    models = shadow_models(
        RecordDict({"arrays": shadow_record([np.full(2, number) for number in range(11)])})
    )
    assert [int(model[0]) for model in models] == list(range(11))
    with raises(UpdateRefused, "shadow-numbers"):
        shadow_models(arrays_content({"shadow.0": np.zeros(2), "shadow.2": np.zeros(2)}, {}))
    with raises(UpdateRefused, "shadow-numbers"):
        shadow_models(arrays_content({}, {}))


def test_a_malformed_answer_about_examples_is_left_out():
    """An array is missing: there is nothing to use, and no error."""
    bad = {"a": arrays_content({"forgotten.handles": np.zeros(3)}, {})}
    fits, refused = collect_fits(bad, "forgotten", {"a"})
    assert fits is None
    assert "lacks the array" in refused["a"]


def test_a_preparation_that_leaves_the_model_as_it_is_goes_with_shadow_federations():
    """HF-online carries vectors through the training and changes no bit of the model."""
    settings = RunSettings.from_run_config({"shadow-federations": 8, "prepare": "hf-online"})
    assert settings.shadow_federations == 8
