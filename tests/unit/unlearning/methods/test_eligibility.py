"""Which requests a federation can serve, and what the refusal of the others says."""

from dataclasses import replace

import pytest

from tests.raising import raises
from unlearning.errors import InvalidRequest, UnsupportedRequest
from unlearning.methods.eligibility import FederationProfile, check_eligible
from unlearning.methods.registry import METHODS, preparations
from unlearning.requests import Granularity, Target
from unlearning.tasks import make_task
from unlearning.tasks.ensemble import shard_task
from unlearning.tasks.settings import TaskSettings

CLIENT = Target(Granularity.CLIENT, "1")
SHARDS = {"prepare": "sisa", "prepared_since": {"sisa": 0}}


def federation(**changes) -> FederationProfile:
    return replace(FederationProfile.of(make_task(TaskSettings())), **changes)


def check(method: str, target: Target, known: FederationProfile) -> None:
    check_eligible(METHODS[method], target, known, preparations(known.prepare))


def test_the_task_decides_what_is_known_of_it():
    """Ten digits, logistic regression: 64 · 10 + 10 parameters of 4 bytes and a linear head."""
    known = federation()
    assert (known.num_classes, known.num_parameters, known.bytes_per_parameter) == (10, 650, 4)
    assert known.has_classifier_head


@pytest.mark.parametrize(
    ("method", "known"),
    [
        ("puf-special", {}),
        # for a method that needs the last round only it is no hindrance to be switched on late
        ("pga", {"prepare": "pga", "prepared_since": {"pga": 7}}),
        ("sisa", SHARDS),
    ],
)
def test_a_federation_that_has_what_a_method_needs_is_served(method, known):
    """PUF needs nothing beforehand."""
    check(method, CLIENT, federation(**known))


@pytest.mark.parametrize(
    ("method", "known", "code"),
    [
        ("pga", {}, "not-prepared"),
        ("pga", {"prepare": "pga"}, "not-prepared"),  # what was kept is gone
        ("federaser", {"prepare": "federaser", "prepared_since": {"federaser": 4}}, "prepared-too-late"),
        ("fedau", {"num_head_parameters": 0}, "no-classifier-head"),
        ("noisy-fine-tuning", {"has_statistics": True}, "has-statistics"),
        ("noisy-fine-tuning", {"keeps_optimizer": True}, "keeps-optimizer"),
        # another method would change shard models that the kept ones know nothing of
        ("natural", SHARDS, "other-preparation"),
        ("fedau", SHARDS, "other-preparation"),
        (
            "fedau-learning",
            {"prepare": "fedau-learning clients=3", "prepared_since": {"fedau-learning": 0}},
            "not-prepared-for-target",
        ),
    ],
)
def test_a_federation_that_lacks_it_refuses_with_what_to_do(method, known, code):
    """The cause decides what the message advises: a setting, or the method to choose."""
    with raises(UnsupportedRequest, code):
        check(method, CLIENT, federation(**known))


@pytest.mark.parametrize("label", [10, 99])
def test_a_class_that_does_not_exist_is_refused(label):
    """There are ten."""
    with pytest.raises(InvalidRequest):
        check("puf-special", Target(Granularity.CLASS, class_label=label), federation())


def test_a_segmentation_has_no_classes_to_forget():
    """An image belongs to no one class there."""
    with raises(UnsupportedRequest, "no-classes"):
        check("puf-special", Target(Granularity.CLASS, class_label=1), federation(score_name="Dice"))


def test_an_ensemble_has_no_classifier_head():
    """The last linear layer is that of the last shard."""
    assert not FederationProfile.of(shard_task(make_task(TaskSettings()), 2)).has_classifier_head


@pytest.mark.parametrize("method", ["fedau", "noisy-fine-tuning", "dp-covered", "puf-special"])
def test_the_one_method_that_can_undo_a_federation_is_named_whatever_else_is_missing(method):
    """Else the next choice would be refused as well."""
    shards = federation(**SHARDS, num_head_parameters=0, has_statistics=True)
    with raises(UnsupportedRequest, "other-preparation"):
        check(method, CLIENT, shards)
