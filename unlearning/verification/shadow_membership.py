"""Which examples each shadow federation is trained on.

Shadow federations come in pairs. A coin falls for each example and pair; the first of the pair is trained on
heads, the second on tails. So every example is in exactly half of the shadow models, and whoever knows an
example's id and the seed knows in which: no list of members ever travels.

Source: Carlini et al., Membership Inference Attacks From First Principles (S&P 2022): shadow models on
random halves. The coin from a hash instead of a drawn permutation is ours.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

from unlearning.training import local_seed

FEWEST, MOST = 4, 512
"""Two shadow models a side are the fewest that have a variance; a SHA-256 holds coins for 256 pairs."""


def shadow_seed(seed: int, number: int) -> int:
    """Return the seed of the shadow federation `number` of a run: its initial weights and orders of
    examples.
    """
    return local_seed(seed, f"shadow federation {number}", 0)


def shadow_membership(ids: NDArray[np.str_], number: int, *, seed: int) -> NDArray[np.bool_]:
    """Return which of the examples with these ids (n,) the shadow federation `number` (from 0) is trained
    on, (n,).
    """
    pair, is_second = divmod(number, 2)
    byte, bit = divmod(pair, 8)
    heads = [hashlib.sha256(f"{seed}:{name}".encode()).digest()[byte] >> bit & 1 for name in ids.tolist()]
    result: NDArray[np.bool_] = np.array(heads, dtype=np.bool_) ^ bool(is_second)
    return result
