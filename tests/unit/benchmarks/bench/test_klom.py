"""KLoM by hand, at its floor between two sets of oracles, and far from it where models differ."""

import numpy as np
import pytest

from benchmarks.bench.klom import klom, summary
from unlearning.errors import DataError


def column(*values: float) -> np.ndarray:
    return np.array(values)[:, np.newaxis]


def test_it_is_the_divergence_of_the_two_histograms():
    """By hand: bins of width 1 from 0 to 20; p = (1/2, 1/2) in bins 0 and 19, q = (1/4, 3/4) there."""
    (found,) = klom(column(0, 0, 20, 20), column(0, 20, 20, 20))
    assert found == pytest.approx(0.5 * np.log(2) + 0.5 * np.log(0.5 / 0.75))


def test_an_empty_bin_of_the_oracles_counts_a_hundred_thousandth():
    """No bin in common is log 1e5; margins that are all the same are at 0."""
    assert klom(column(0, 0.1), column(20, 20))[0] == pytest.approx(np.log(1e5))
    assert klom(column(3, 3), column(3, 3, 3))[0] == 0


def test_it_is_the_unlearned_models_divergence_from_the_oracles():
    """A bin that only the oracles have costs less than one that only the unlearned models have."""
    one, two = column(0, 0, 0, 0), column(0, 0, 0, 20)
    assert klom(one, two)[0] == pytest.approx(np.log(4 / 3))
    assert klom(two, one)[0] == pytest.approx(0.75 * np.log(0.75) + 0.25 * np.log(0.25 / 1e-5))


def test_margins_beyond_a_hundred_are_alike():
    """A model that knows an example surely is no further off for knowing it even more surely."""
    assert klom(column(0, 500), column(0, 100))[0] == 0


def test_each_example_has_its_own_bins():
    """Columns do not touch each other."""
    generator = np.random.default_rng(0)
    ours, theirs = generator.normal(size=(2, 30, 5))
    together = klom(ours, theirs)
    assert together == pytest.approx([klom(ours[:, [i]], theirs[:, [i]])[0] for i in range(5)])
    assert summary(np.arange(101.0)).p95 == 95
    assert summary(np.arange(101.0)).mean == 50


def test_oracles_are_at_the_floor_and_a_shifted_model_is_not():
    """Two sets of one distribution differ by little, which falls with their number; three deviations are far."""
    generator = np.random.default_rng(1)
    floors = [klom(*generator.normal(size=(2, models, 200))).mean() for models in (20, 100, 400)]
    assert floors[0] > floors[1] > floors[2]
    moved = klom(generator.normal(3, 1, size=(100, 200)), generator.normal(size=(100, 200))).mean()
    assert moved > 5 * floors[1]


@pytest.mark.parametrize(
    ("ours", "theirs"), [(np.zeros((2, 3)), np.zeros((2, 4))), (np.zeros((0, 3)), np.zeros((2, 3)))]
)
def test_what_does_not_fit_is_refused(ours, theirs):
    """The shapes are named."""
    with pytest.raises(DataError):
        klom(ours, theirs)


def test_a_model_that_blew_up_is_refused():
    """NaN would become a bin."""
    with pytest.raises(DataError):
        klom(column(np.nan, 1), column(0, 1))
