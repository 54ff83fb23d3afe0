"""Which requests a federation can serve, and what the refusal of the others says."""

from dataclasses import replace

import pytest

from unlearning.errors import InvalidRequest, UnsupportedRequest
from unlearning.methods.eligibility import FederationProfile, check_eligible
from unlearning.methods.registry import METHODS, preparations
from unlearning.requests import Granularity, Target
from unlearning.runtime.json_codec import from_plain, to_plain
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


def test_it_survives_json():
    """The ledger keeps it as JSON."""
    known = federation(prepare="pga", prepared_since={"pga": 2})
    assert from_plain(FederationProfile, to_plain(known)) == known


def test_what_a_newer_program_wrote_is_passed_over():
    """A ledger may have been written by a newer version."""
    assert from_plain(FederationProfile, {**to_plain(federation()), "mood": "good"}) == federation()


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
    ("method", "known", "words"),
    [
        ("pga", {}, 'prepare = "pga"'),
        ("pga", {"prepare": "pga"}, "no longer prepared"),  # what was kept is gone
        ("federaser", {"prepare": "federaser", "prepared_since": {"federaser": 4}}, "after 4 training round"),
        ("fedau", {"num_head_parameters": 0}, "last layer is linear"),
        # another method would change shard models that the kept ones know nothing of
        ("natural", SHARDS, "Choose sisa"),
        ("puf-special", SHARDS, "Choose sisa"),
        ("fedau", SHARDS, "Choose sisa"),
        (
            "fedau-learning",
            {"prepare": "fedau-learning clients=3", "prepared_since": {"fedau-learning": 0}},
            "cannot forget client 1: it was prepared for client",
        ),
    ],
)
def test_a_federation_that_lacks_it_refuses_with_what_to_do(method, known, words):
    """The setting, the reason, or the method to choose."""
    with pytest.raises(UnsupportedRequest, match=words):
        check(method, CLIENT, federation(**known))


@pytest.mark.parametrize("label", [10, 99])
def test_a_class_that_does_not_exist_is_refused(label):
    """The message says which there are."""
    with pytest.raises(InvalidRequest, match="0 to 9"):
        check("puf-special", Target(Granularity.CLASS, class_label=label), federation())


def test_a_segmentation_has_no_classes_to_forget():
    """An image belongs to no one class there."""
    with pytest.raises(UnsupportedRequest, match="Name a client or samples"):
        check("puf-special", Target(Granularity.CLASS, class_label=1), federation(score_name="Dice"))


def test_an_ensemble_has_no_classifier_head():
    """The last linear layer is that of the last shard."""
    assert not FederationProfile.of(shard_task(make_task(TaskSettings()), 2)).has_classifier_head
