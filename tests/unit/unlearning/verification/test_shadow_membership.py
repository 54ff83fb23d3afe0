"""Who is trained on what: the coin that clients and server throw alike."""

import numpy as np

from unlearning.verification.shadow_models import MOST, shadow_membership, shadow_seed

IDS = np.array([f"example-{number}" for number in range(4000)])


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
