"""Who is trained on what, what shadow models say of a sample of examples, and how that travels."""

import numpy as np
import pytest
import torch
from torch import nn

from tests.tasks import tiny_classification
from unlearning.errors import DataError
from unlearning.evaluation import predict
from unlearning.tasks.task import Examples
from unlearning.training import initial_parameters
from unlearning.verification.lira import Shadows, fit, margins, offline_scores, online_scores
from unlearning.verification.observations import observe_model
from unlearning.verification.shadow_models import (
    MOST,
    ShadowFits,
    fit_models,
    join_fits,
    shadow_membership,
    shadow_seed,
)

TASK = tiny_classification(lambda: nn.Linear(5, 3), num_classes=3)
MODELS = [initial_parameters(TASK, seed) for seed in range(6)]
EXAMPLES = Examples(
    torch.from_numpy(np.random.default_rng(0).normal(size=(40, 5))),
    torch.from_numpy(np.arange(40) % 3),
    np.arange(40).astype(str),
)
IDS = np.array([f"example-{number}" for number in range(4000)])


def fits_of(examples=EXAMPLES, max_samples=40) -> ShadowFits:
    return fit_models(
        TASK, MODELS, examples, seed=9, max_samples=max_samples, generator=np.random.default_rng(1)
    )


def test_scores_from_fits_are_those_from_the_shadow_models():
    """Whoever has the four numbers an example needs no shadow model any more."""
    observed = observe_model(
        TASK, MODELS[0], EXAMPLES, max_samples=40, generator=np.random.default_rng(1), with_outputs=True
    )
    fits = fits_of()
    order = np.random.default_rng(1).permutation(40)
    sampled = EXAMPLES.select(order)
    shadows = Shadows(
        np.stack([margins(predict(TASK, model, sampled), sampled.targets.numpy()) for model in MODELS]),
        np.stack([shadow_membership(sampled.ids, number, seed=9) for number in range(6)]),
    )
    for is_global in (True, False):
        online = online_scores(observed.margins, fits.inside, fits.outside, global_variance=is_global)
        offline = offline_scores(observed.margins, fits.outside, global_variance=is_global)
        expected = online_scores(observed.margins, *fit(shadows), global_variance=is_global)
        np.testing.assert_allclose(online, expected)
        expected = offline_scores(observed.margins, fit(shadows)[1], global_variance=is_global)
        np.testing.assert_allclose(offline, expected)


def test_the_same_examples_are_fitted_as_are_observed():
    """A sample of 7 of 40: handle for handle."""
    observed = observe_model(
        TASK, MODELS[0], EXAMPLES, max_samples=7, generator=np.random.default_rng(1), with_outputs=True
    )
    np.testing.assert_array_equal(fits_of(max_samples=7).handles, observed.outputs.handles)


def test_fits_survive_their_journey():
    """There and back, and after a selection and a union."""
    fits = fits_of()
    halves = [fits.select(np.arange(20)), fits.select(np.arange(20, 40))]
    for back in (ShadowFits.from_arrays(fits.to_arrays()), join_fits(halves)):
        for name, array in fits.to_arrays().items():
            np.testing.assert_array_equal(back.to_arrays()[name], array)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("with-means", None),
        ("without-variances", np.full(40, -1.0)),
        ("with-counts", np.full(40, np.inf)),
        ("handles", np.zeros(3)),
        ("with-variances", np.full((40, 1), 1.0)),
    ],
    ids=["missing", "negative", "infinite", "too-few", "matrix"],
)
def test_what_is_no_fit_is_refused(name, value):
    """It comes from another machine."""
    arrays = fits_of().to_arrays() | {name: value}
    with pytest.raises(DataError):
        ShadowFits.from_arrays({key: array for key, array in arrays.items() if array is not None})


def test_every_example_is_in_exactly_one_of_a_pair():
    """So it is in exactly half of any even number of shadow models."""
    for number in (0, 6, MOST - 2):
        first, second = (shadow_membership(IDS, number + which, seed=3) for which in (0, 1))
        np.testing.assert_array_equal(first, ~second)


def test_coins_are_fair_and_those_of_different_pairs_independent():
    """4,000 throws: half heads, and half of two pairs' agree, each within four standard deviations."""
    coins = np.stack([shadow_membership(IDS, number, seed=0) for number in range(0, 24, 2)])
    bound = 4 * 0.5 / np.sqrt(len(IDS))
    assert np.all(np.abs(coins.mean(axis=1) - 0.5) < bound)
    agree = (coins[:, None] == coins[None]).mean(axis=2)
    assert np.all(np.abs(agree[~np.eye(len(coins), dtype=bool)] - 0.5) < bound)


def test_a_draw_depends_on_the_id_alone():
    """Not on what other examples a site has, nor on their order: a deletion moves nobody."""
    some = np.array([40, 3, 999])
    np.testing.assert_array_equal(
        shadow_membership(IDS[some], 4, seed=1), shadow_membership(IDS, 4, seed=1)[some]
    )


def test_another_seed_draws_others():
    """About half of the examples change sides."""
    same = shadow_membership(IDS, 0, seed=0) == shadow_membership(IDS, 0, seed=1)
    assert 0.45 < same.mean() < 0.55


def test_the_recipe_stays_as_it_is():
    """Client and server may be of different versions.

    SHA-256 of `7:a`, `7:b`, `7:c` begins 82d9, ec2a, 18ec; the pair j has bit j, lowest of a byte first, and the
    second of a pair the opposite: number 17 is the second of pair 8.
    """
    drawn = [shadow_membership(np.array(["a", "b", "c"]), number, seed=7).tolist() for number in (0, 2, 17)]
    assert drawn == [[False, False, False], [True, False, False], [False, True, True]]


def test_each_shadow_federation_has_a_seed_of_its_own():
    """Of a fixed recipe, so a round that is done again is the same round."""
    seeds = [shadow_seed(5, number) for number in range(8)]
    assert len({5, *seeds}) == 9
    assert seeds == [shadow_seed(5, number) for number in range(8)]
