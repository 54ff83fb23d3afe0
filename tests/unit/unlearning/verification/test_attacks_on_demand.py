"""LiRA and MIA-U's classifiers on what clients observed: what is compared with what."""

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import norm

from unlearning.errors import DataError
from unlearning.verification.discrimination import auc
from unlearning.verification.lira import Gaussians
from unlearning.verification.measurement import measure
from unlearning.verification.observations import Details, Observations, Outputs
from unlearning.verification.optional_attacks import (
    LEARNT_MIA_U,
    LIRA_OFFLINE,
    LIRA_ONLINE,
    learnt_mia_u,
    lira_figures,
)
from unlearning.verification.shadow_models import ShadowFits


def observed(logits, handles, labels=None, posteriors=None) -> Observations:
    """Of examples whose true class's confidence has these logits."""
    count = len(logits)
    labels = np.zeros(count, dtype=np.int64) if labels is None else np.asarray(labels)
    posteriors = np.full((count, 2), 0.5) if posteriors is None else posteriors
    details = Details(labels, np.ones(count), np.zeros(count), np.zeros(count))
    outputs = Outputs(np.asarray(handles, dtype=np.float64), posteriors.astype(np.float32))
    margins = np.asarray(logits, dtype=np.float64)
    return Observations(count, 1.0, 0.0, np.ones(count), expit(margins), details, outputs, margins)


def fitted(handles, means_in, means_out, counts=4.0, variances_out=1.0) -> ShadowFits:
    """With variance 1 where nothing else is said."""
    ones = np.ones(len(handles))
    inside, outside = (
        Gaussians(np.asarray(means, dtype=np.float64), variances * ones, counts * ones)
        for means, variances in ((means_in, 1.0), (means_out, variances_out))
    )
    return ShadowFits(np.asarray(handles, dtype=np.float64), inside, outside)


# Forgotten: handle 1 is like a model with it (2 against 0), handle 2 is as one without. Test: 5 and 6 as without.
FITS = {
    "forgotten": fitted([9, 1, 2], [0, 2, 2], [0, 0, 0]),
    "test": fitted([5, 6], [2, 2], [0, 0]),
}
SETS = {
    "forgotten": observed([0.0, 2.0, 7.0], [2, 1, 77]),
    "test": observed([0.5, -1.0], [6, 5]),
}


def test_lira_pairs_examples_by_handle_and_compares_by_hand():
    """Λ is 2φ − 2: 2 and −2 of the forgotten against −1 and −4 of the test examples: 3 of 4 pairs.

    Handles 9 and 77 were met on one side only and do not count.
    """
    figures = lira_figures(SETS, FITS, seed=0)
    for name in (LIRA_ONLINE, LIRA_OFFLINE):
        assert figures[name].auc.value == 0.75
        assert (figures[name].num_forgotten, figures[name].num_test) == (2, 2)


def test_few_shadow_models_share_one_variance_and_many_do_not():
    """Test example 5 has variance 100 outside: of its own that makes −1 likelier than 0.5 at variance 1.

    Shared, the offline score is monotone in φ − μ; of its own, Φ(−1/10) > Φ(0/1)/… decides the order.
    """
    few, many = (
        {
            "forgotten": fitted([9, 1, 2], [0, 2, 2], [0, 0, 0], counts),
            "test": fitted([5, 6], [2, 2], [0, 0], counts, np.array([100.0, 1.0])),
        }
        for counts in (4, 32)
    )
    sets = {"forgotten": observed([-0.5, 2.0], [1, 2]), "test": SETS["test"]}
    # of its own: Φ(−0.5), Φ(2) against Φ(−0.1), Φ(0.5); shared: −0.5, 2 against −1, 0.5 in order
    own = auc(norm.logcdf(np.array([-0.5, 2.0])), norm.logcdf(np.array([-0.1, 0.5])))
    assert own == 0.5
    assert lira_figures(sets, many, seed=0)[LIRA_OFFLINE].auc.value == own
    assert lira_figures(sets, few, seed=0)[LIRA_OFFLINE].auc.value == 0.75


def test_lira_weighs_test_examples_by_the_forgotten_classes():
    """The test example of another class (Λ = −4, easily beaten) takes no part: 1 of 2 pairs are left."""
    sets = {**SETS, "test": observed([0.5, -1.0], [6, 5], labels=[0, 1])}
    assert lira_figures(sets, FITS, seed=0)[LIRA_ONLINE].auc.value == 0.5


def test_lira_names_the_set_that_shadow_models_were_not_asked_about():
    """As when the only client with forgotten examples was offline; the other attacks go on."""
    with pytest.raises(DataError):
        lira_figures(SETS, {"test": FITS["test"]}, seed=0)
    measurement = measure(
        stage="before",
        round=1,
        test=SETS["test"],
        retained=SETS["test"],
        forgotten=SETS["forgotten"],
        seed=0,
        shadow_fits={},
        shadow_notes=["client 1: it is not online"],
    )
    assert "yeom" in measurement.figures
    notes = [note for note in measurement.not_measured if note.startswith("LiRA: ")]
    assert [note.partition("LiRA: ")[2] for note in notes][1] == "client 1: it is not online"
    assert len(notes) == 2


def test_lira_tells_sure_examples_apart():
    """Margins 30 and 45, of examples whose models without them have 30 and 31: the confidences are all 1."""
    fits = {"forgotten": fitted([1, 2], [45, 45], [30, 30]), "test": fitted([5, 6], [45, 45], [30, 30])}
    sets = {"forgotten": observed([45.0, 44.0], [1, 2]), "test": observed([30.0, 31.0], [5, 6])}
    assert lira_figures(sets, fits, seed=0)[LIRA_ONLINE].auc.value == 1.0


def test_lira_refuses_a_single_shadow_model_on_a_side():
    """One value has no variance; the figure is left out with that reason."""
    fits = {
        name: fitted(part.handles, part.inside.means, part.outside.means, 1) for name, part in FITS.items()
    }
    with pytest.raises(DataError):
        lira_figures(SETS, fits, seed=0)


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
