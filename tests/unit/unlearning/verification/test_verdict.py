"""The verdict's rule, case by case."""

import numpy as np
import pytest

from unlearning.verification.discrimination import discriminate
from unlearning.verification.figures import AttackFigure, Estimate
from unlearning.verification.verdict import Finding, is_enough, least_auc, verdict


def auc(low: float, high: float) -> dict[str, AttackFigure]:
    return {"yeom": AttackFigure(auc=Estimate((low + high) / 2, low, high))}


def called(low: float, high: float) -> dict[str, AttackFigure]:
    return {"confidence": AttackFigure(called=Estimate((low + high) / 2, low, high))}


WITHOUT_RETRAINING = {
    "fell": (auc(0.7, 0.8), auc(0.5, 0.6), Finding.REDUCED),
    "fell-within-the-interval": (auc(0.7, 0.8), auc(0.6, 0.72), Finding.NOT_SHOWN),
    "rose": (auc(0.5, 0.6), auc(0.7, 0.8), Finding.NOT_SHOWN),
    "fell-so-far-that-the-forgotten-stand-out": (auc(0.6, 0.7), auc(0.0, 0.1), Finding.OVER_FORGETTING),
    "as-far-below-one-half-as-it-was-above": (auc(0.87, 0.93), auc(0.08, 0.15), Finding.OVER_FORGETTING),
    "below-one-half-and-nearer": (auc(0.87, 0.93), auc(0.3, 0.4), Finding.REDUCED),
    "nearer-from-below": (auc(0.1, 0.2), auc(0.45, 0.55), Finding.REDUCED),
    "below-one-half-and-no-clearer-than-before": (auc(0.45, 0.55), auc(0.4, 0.48), Finding.NOT_SHOWN),
    "too-far-though-the-share-fell": (
        {**auc(0.87, 0.93), **called(0.7, 0.8)},
        {**auc(0.08, 0.15), **called(0.0, 0.1)},
        Finding.OVER_FORGETTING,
    ),
    "too-few-to-have-fallen": (auc(0.4, 0.9), auc(0.3, 0.8), Finding.TOO_FEW),
    "one-of-two-is-known-well-enough": (
        {**auc(0.4, 0.9), "entropy": auc(0.5, 0.6)["yeom"]},
        {**auc(0.3, 0.8), "entropy": auc(0.5, 0.6)["yeom"]},
        Finding.NOT_SHOWN,
    ),
    "few-and-fell": (auc(0.77, 1.0), auc(0.26, 0.74), Finding.REDUCED),
    "share-fell": (called(0.7, 0.8), called(0.1, 0.2), Finding.REDUCED),
    "share-rose": (called(0.1, 0.2), called(0.7, 0.8), Finding.NOT_SHOWN),
    "one-fell-and-one-rose": (
        {**auc(0.7, 0.8), **called(0.1, 0.2)},
        {**auc(0.5, 0.6), **called(0.7, 0.8)},
        Finding.NOT_SHOWN,
    ),
    "other-attacks-before-and-after": (auc(0.7, 0.8), called(0.1, 0.2), Finding.NOT_SHOWN),
    "none-before": ({}, auc(0.5, 0.6), Finding.NOT_SHOWN),
    "not-measured-before": (None, auc(0.5, 0.6), Finding.NOT_SHOWN),
    "not-measured-after": (auc(0.7, 0.8), None, Finding.NOT_SHOWN),
}


@pytest.mark.parametrize(("before", "after", "finding"), WITHOUT_RETRAINING.values(), ids=WITHOUT_RETRAINING)
def test_without_a_retrained_model_the_verdict_compares_distances_from_one_half(before, after, finding):
    """Only a fall beyond both intervals counts, and only where nothing rose or went too far."""
    result = verdict(before, after)
    assert result.finding is finding
    assert result.reasons


def test_how_many_examples_can_show_a_fall_is_what_the_interval_says():
    """Examples that all rank first, and then in the middle: with three the distances overlap, with four not."""
    assert [least_auc(count) for count in (3, 4, 5, 10)] == [None, 0.99, 0.95, 0.84]
    ranked = {
        count: discriminate(np.full(count, 2.0), np.arange(5000) / 5000, seed=0).auc for count in (3, 4)
    }
    middle = {
        count: discriminate(np.full(count, 0.5), np.arange(5000) / 5000, seed=0).auc for count in (3, 4)
    }
    found = {
        count: verdict({"yeom": AttackFigure(auc=ranked[count])}, {"yeom": AttackFigure(auc=middle[count])})
        for count in (3, 4)
    }
    assert {count: one.finding for count, one in found.items()} == {3: Finding.TOO_FEW, 4: Finding.REDUCED}
    assert next(count for count in range(1, 60) if is_enough(count)) == 31


BESIDE_RETRAINING = {
    "alike": (auc(0.45, 0.55), auc(0.46, 0.58), Finding.INDISTINGUISHABLE),
    "apart": (auc(0.45, 0.55), auc(0.55, 0.65), Finding.REDUCED),
    "one-interval-misses-the-other's-figure": (auc(0.3, 0.7), auc(0.4, 0.42), Finding.REDUCED),
    "no-auc": (called(0.4, 0.5), called(0.4, 0.5), Finding.NOT_SHOWN),
    "too-few": (auc(0.55, 1.0), auc(0.5, 1.0), Finding.TOO_FEW),
    "reduced-and-too-few": (auc(0.45, 0.55), auc(0.38, 0.6), Finding.REDUCED),
    "an-attack-is-missing": ({**auc(0.45, 0.55), **called(0.1, 0.2)}, auc(0.45, 0.55), Finding.REDUCED),
}


@pytest.mark.parametrize(("after", "retrained", "finding"), BESIDE_RETRAINING.values(), ids=BESIDE_RETRAINING)
def test_only_a_retrained_model_makes_it_indistinguishable(after, retrained, finding):
    """Every attack has to agree both ways, and one of them has to rank examples."""
    assert verdict(auc(0.8, 0.9), after, retrained).finding is finding


def test_no_finding_says_forgotten():
    """The word is not ours to say."""
    assert not any("forgotten" in finding for finding in Finding)


def test_over_forgetting_is_said_in_words():
    """Whoever turns the sign has what is left to one: the reader learns it."""
    (reason,) = verdict(auc(0.87, 0.93), auc(0.08, 0.15)).reasons
    assert "known worse than unknown ones" in reason
    assert "turns the sign has 0.885" in reason


def test_an_attack_that_has_grown_does_not_hide_another_that_went_too_far():
    """Both sentences are there, the stronger attack's first."""
    before = {**auc(0.87, 0.93), **called(0.1, 0.2)}
    found = verdict(before, {**auc(0.08, 0.15), **called(0.7, 0.8)})
    assert found.finding is Finding.NOT_SHOWN
    assert ["stand out more" in found.reasons[0], "worse than unknown" in found.reasons[1]] == [True, True]


def test_four_examples_can_never_be_called_alike():
    """Whatever scores four and four have, an interval of their AUC is wider than a likeness may rest on."""
    generator = np.random.default_rng(0)
    for _ in range(100):
        after, retrained = (
            {"yeom": AttackFigure(auc=discriminate(*generator.normal(size=(2, 4)), seed=0).auc)}
            for _ in range(2)
        )
        assert verdict(None, after, retrained).finding is not Finding.INDISTINGUISHABLE
