"""MIA-U's classifiers on what clients observed: what is compared with what."""

import numpy as np
import pytest
from scipy.special import expit

from unlearning.errors import DataError
from unlearning.verification.figures import LEARNT_MIA_U
from unlearning.verification.observations import Details, Observations, Outputs
from unlearning.verification.optional_attacks import learnt_mia_u


def observed(logits, handles, labels=None, posteriors=None) -> Observations:
    """Of examples whose true class's confidence has these logits."""
    count = len(logits)
    labels = np.zeros(count, dtype=np.int64) if labels is None else np.asarray(labels)
    posteriors = np.full((count, 2), 0.5) if posteriors is None else posteriors
    details = Details(labels, np.ones(count), np.zeros(count), np.zeros(count))
    outputs = Outputs(np.asarray(handles, dtype=np.float64), posteriors.astype(np.float32))
    margins = np.asarray(logits, dtype=np.float64)
    return Observations(count, 1.0, 0.0, np.ones(count), expit(margins), details, outputs, margins)


def posteriors(generator, count, sharpness):
    first = expit(sharpness * generator.normal(size=count))
    return np.stack([first, 1 - first], axis=1)


def pairs(forgotten, test, *, labels=(None, None)):
    """Observations after, and outputs before, of posteriors (before, after) of both sides."""
    present, before = {}, {}
    for name, (older, newer), classes in (("forgotten", forgotten, labels[0]), ("test", test, labels[1])):
        handles = np.arange(len(older), dtype=np.float64)
        present[name] = observed(np.zeros(len(older)), handles, classes, newer)
        before[name] = Outputs(handles, older.astype(np.float32))
    return present, before


def test_every_construction_finds_a_change_that_is_there():
    """Forgotten posteriors lose their certainty, test posteriors stay: nearly every pair is told apart."""
    generator = np.random.default_rng(0)
    sure, unsure = posteriors(generator, 120, 8.0), posteriors(generator, 120, 0.3)
    same = posteriors(generator, 120, 1.0)
    figures = learnt_mia_u(*pairs((sure, unsure), (same, same)), seed=0)
    assert set(figures) == set(LEARNT_MIA_U.values())
    for figure in figures.values():
        assert figure.auc.low > 0.8
        assert figure.num_forgotten == 60  # the other half was learnt from


def test_no_construction_finds_a_change_that_is_the_same_on_both_sides():
    """Two draws of one distribution: every interval reaches one half."""
    generator = np.random.default_rng(1)
    sides = [(posteriors(generator, 200, 2.0), posteriors(generator, 200, 1.0)) for _ in range(2)]
    for figure in learnt_mia_u(*pairs(*sides), seed=0).values():
        assert figure.auc.low < 0.5 < figure.auc.high


def test_classes_alone_do_not_give_the_forgotten_away():
    """They are mostly of class 1, test examples mostly of class 0, and posteriors say the class and no more.

    Unweighted, the classifier would learn the class and find seven of ten: an AUC of 0.7.
    """
    generator = np.random.default_rng(2)
    labels = [(generator.random(800) < share).astype(np.int64) for share in (0.7, 0.3)]
    sides = []
    for classes in labels:
        first = np.where(classes == 0, 0.9, 0.1) + 0.05 * generator.normal(size=800)
        both = np.stack([first, 1 - first], axis=1)
        sides.append((both, both))
    for figure in learnt_mia_u(*pairs(*sides, labels=labels), seed=0).values():
        assert abs(figure.auc.value - 0.5) < 0.06  # 1.5 standard errors of 400 weighted examples a side


def test_before_the_deletion_there_is_no_change_to_learn():
    """And without posteriors of it the attack says what it lacks."""
    present, before = pairs(*[(np.full((5, 2), 0.5),) * 2] * 2)
    assert learnt_mia_u(present, None, seed=0) == {}
    with pytest.raises(DataError):
        learnt_mia_u(present, {"forgotten": before["forgotten"]}, seed=0)
