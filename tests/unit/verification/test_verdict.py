"""The verdict's rule, case by case."""

import pytest

from unlearning.verification.attack_figures import AttackFigure
from unlearning.verification.discrimination import Estimate
from unlearning.verification.verdict import Finding, verdict


def auc(low: float, high: float) -> dict[str, AttackFigure]:
    return {"yeom": AttackFigure(auc=Estimate((low + high) / 2, low, high))}


def called(low: float, high: float) -> dict[str, AttackFigure]:
    return {"confidence": AttackFigure(called=Estimate((low + high) / 2, low, high))}


@pytest.mark.parametrize(
    ("before", "after", "finding"),
    [
        (auc(0.7, 0.8), auc(0.5, 0.6), Finding.REDUCED),
        (auc(0.7, 0.8), auc(0.6, 0.72), Finding.NOT_SHOWN),
        (auc(0.5, 0.6), auc(0.7, 0.8), Finding.NOT_SHOWN),
        (auc(0.6, 0.7), auc(0.0, 0.1), Finding.NOT_SHOWN),
        (called(0.7, 0.8), called(0.1, 0.2), Finding.REDUCED),
        (called(0.1, 0.2), called(0.7, 0.8), Finding.NOT_SHOWN),
        ({**auc(0.7, 0.8), **called(0.1, 0.2)}, {**auc(0.5, 0.6), **called(0.7, 0.8)}, Finding.NOT_SHOWN),
        (auc(0.7, 0.8), called(0.1, 0.2), Finding.NOT_SHOWN),
        ({}, auc(0.5, 0.6), Finding.NOT_SHOWN),
        (None, auc(0.5, 0.6), Finding.NOT_SHOWN),
        (auc(0.7, 0.8), None, Finding.NOT_SHOWN),
    ],
    ids=[
        "fell",
        "fell-within-the-interval",
        "rose",
        "fell-so-far-that-the-forgotten-stand-out",
        "share-fell",
        "share-rose",
        "one-fell-and-one-rose",
        "other-attacks-before-and-after",
        "none-before",
        "not-measured-before",
        "not-measured-after",
    ],
)
def test_without_a_retrained_model_the_verdict_is_reduced_or_not_shown(before, after, finding):
    """Only a fall beyond both intervals counts, and only where nothing rose."""
    result = verdict(before, after)
    assert result.finding is finding
    assert result.reasons


@pytest.mark.parametrize(
    ("after", "retrained", "finding"),
    [
        (auc(0.45, 0.55), auc(0.46, 0.58), Finding.INDISTINGUISHABLE),
        (auc(0.45, 0.55), auc(0.55, 0.65), Finding.REDUCED),
        (auc(0.3, 0.7), auc(0.4, 0.42), Finding.REDUCED),
        (called(0.4, 0.5), called(0.4, 0.5), Finding.NOT_SHOWN),
        ({**auc(0.45, 0.55), **called(0.1, 0.2)}, auc(0.45, 0.55), Finding.REDUCED),
    ],
    ids=["alike", "apart", "one-interval-misses-the-other's-figure", "no-auc", "an-attack-is-missing"],
)
def test_only_a_retrained_model_makes_it_indistinguishable(after, retrained, finding):
    """Every attack has to agree both ways, and one of them has to rank examples."""
    assert verdict(auc(0.8, 0.9), after, retrained).finding is finding


def test_no_finding_says_forgotten():
    """The word is not ours to say."""
    assert not any("forgotten" in finding for finding in Finding)
    assert {str(finding) for finding in Finding} == {
        "indistinguishable from retraining by these attacks",
        "reduced",
        "not shown",
    }
