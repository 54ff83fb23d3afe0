"""Which requests a federation can serve, and what the refusal of the others says."""

from dataclasses import replace

import pytest

from unlearning.errors import InvalidRequest, UnsupportedRequest
from unlearning.methods.eligibility import FederationProfile, check_eligible
from unlearning.methods.registry import METHODS, preparations
from unlearning.plain import from_plain, to_plain
from unlearning.requests import Granularity, Target
from unlearning.tasks import make_task
from unlearning.tasks.ensemble import shard_task
from unlearning.tasks.settings import TaskSettings

CLIENT = Target(Granularity.CLIENT, "1")


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


def test_a_method_without_needs_is_served():
    """PUF needs nothing beforehand."""
    check("puf-special", CLIENT, federation())


def test_an_unprepared_federation_refuses_with_the_setting():
    """The refusal names what to configure."""
    with pytest.raises(UnsupportedRequest, match='prepare = "pga"'):
        check("pga", CLIENT, federation())


def test_a_prepared_federation_serves():
    """Switched on later is no hindrance for a method that needs the last round only."""
    check("pga", CLIENT, federation(prepare="pga", prepared_since={"pga": 7}))


def test_a_preparation_that_was_lost_is_no_preparation():
    """The setting alone does not help when what was kept is gone."""
    with pytest.raises(UnsupportedRequest, match="no longer prepared"):
        check("pga", CLIENT, federation(prepare="pga"))


def test_a_history_that_begins_late_is_refused():
    """FedEraser replays from the first round."""
    late = federation(prepare="federaser", prepared_since={"federaser": 4})
    with pytest.raises(UnsupportedRequest, match="after 4 training round"):
        check("federaser", CLIENT, late)


def test_a_model_without_a_linear_head_is_refused():
    """FedAU works on the classifier's head."""
    with pytest.raises(UnsupportedRequest, match="last layer is linear"):
        check("fedau", CLIENT, federation(num_head_parameters=0))


@pytest.mark.parametrize("label", [10, 99])
def test_a_class_that_does_not_exist_is_refused(label):
    """The message says which there are."""
    with pytest.raises(InvalidRequest, match="0 to 9"):
        check("puf-special", Target(Granularity.CLASS, class_label=label), federation())


def test_a_segmentation_has_no_classes_to_forget():
    """An image belongs to no one class there."""
    with pytest.raises(UnsupportedRequest, match="Name a client or samples"):
        check("puf-special", Target(Granularity.CLASS, class_label=1), federation(score_name="Dice"))


@pytest.mark.parametrize("method", ["natural", "puf-special", "fedau"])
def test_a_federation_of_shards_is_served_by_sisa_alone(method):
    """Another method would change shard models that the kept ones know nothing of."""
    known = federation(prepare="sisa", prepared_since={"sisa": 0})
    check("sisa", CLIENT, known)
    with pytest.raises(UnsupportedRequest, match="Choose sisa"):
        check(method, CLIENT, known)


def test_what_a_preparation_cannot_forget_is_refused_with_its_reason():
    """FedAU's auxiliary heads were trained for client 3 only."""
    known = federation(prepare="fedau-learning clients=3", prepared_since={"fedau-learning": 0})
    with pytest.raises(UnsupportedRequest, match="cannot forget client 1: it was prepared for client"):
        check("fedau-learning", CLIENT, known)


def test_an_ensemble_has_no_classifier_head():
    """The last linear layer is that of the last shard."""
    assert not FederationProfile.of(shard_task(make_task(TaskSettings()), 2)).has_classifier_head
