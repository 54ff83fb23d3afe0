"""Which client owns which examples: pure functions from labels to lists of index arrays.

Every partition is disjoint, complete, sorted within a client, reproducible from its seed, and leaves
no client empty. The maintained partitioners (flwr-datasets) install the client of a data-set hub with
everything that it needs; these three are written out instead.

Machines compute the partition each for itself, so all must get the same one: `RandomState` is used
because NumPy freezes its stream permanently, which it does not for the newer generators (NEP 19).
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unlearning.errors import DataError

Indices: TypeAlias = NDArray[np.intp]

PARTITIONS = ("iid", "dirichlet", "natural")


def subset(num_examples: int, most: int, seed: int) -> Indices:
    """Return at most `most` of the positions 0 to `num_examples` - 1, at random, sorted; all if `most` is 0."""
    if most == 0 or most >= num_examples:
        return np.arange(num_examples)
    return np.sort(np.random.RandomState(seed).choice(num_examples, size=most, replace=False))


def iid(num_examples: int, num_clients: int, seed: int) -> list[Indices]:
    """Return a random split into parts whose sizes differ by at most one.

    Raises:
        DataError: there are fewer examples than clients.
    """
    _check_enough(num_examples, num_clients)
    order = np.random.RandomState(seed).permutation(num_examples)
    return [np.sort(part) for part in np.array_split(order, num_clients)]


def iid_groups(groups: NDArray[Any], num_clients: int, seed: int) -> list[Indices]:
    """Return a random split in which examples of one group, such as the tiles of one picture, stay together.

    Raises:
        DataError: there are fewer groups than clients.
    """
    names, group_of = np.unique(groups, return_inverse=True)
    return [np.flatnonzero(np.isin(group_of, part)) for part in iid(len(names), num_clients, seed)]


def dirichlet(labels: NDArray[Any], num_clients: int, alpha: float, seed: int) -> list[Indices]:
    """Label skew: each class is dealt out in shares drawn from Dirichlet(alpha, ..., alpha).

    Small alpha: few clients hold a class. Large alpha: nearly IID. A client that draws nothing gets one
    example of the client that has most.

    Source: Yurochkin et al., Bayesian Nonparametric Federated Learning of Neural Networks, section 4.

    Raises:
        DataError: there are fewer examples than clients.
    """
    _check_enough(len(labels), num_clients)
    random = np.random.RandomState(seed)
    owned: list[list[Indices]] = [[] for _ in range(num_clients)]
    for label in np.unique(labels):
        members = random.permutation(np.flatnonzero(labels == label))
        shares = _shares(random, num_clients, alpha)
        cuts = np.round(np.cumsum(shares)[:-1] * len(members)).astype(np.intp)
        for client, part in enumerate(np.split(members, cuts)):
            owned[client].append(part)
    return [np.sort(part) for part in _without_empty([np.concatenate(parts) for parts in owned])]


def natural(sites: NDArray[Any], num_clients: int) -> list[Indices]:
    """Return the examples of site i for client i; sites of num_clients or more take no part.

    Raises:
        DataError: a client's site has no example.
    """
    parts = [np.flatnonzero(sites == client) for client in range(num_clients)]
    empty = [client for client, part in enumerate(parts) if not len(part)]
    if empty:
        raise DataError(
            f"The natural partition has no example for client(s) {', '.join(map(str, empty))}; "
            f"the data has the sites {', '.join(map(str, np.unique(sites)))}. Lower num-clients."
        )
    return parts


def hold_out(groups: NDArray[Any], share: float, seed: int) -> NDArray[np.bool_]:
    """Return which examples a site keeps for testing, shape (n,): about `share` of its groups, whole groups.

    At least one group is held out and at least one is left; a site of one group holds out nothing.
    """
    names = np.unique(groups)
    count = min(max(round(share * len(names)), 1), len(names) - 1)
    held_out = np.random.RandomState(seed).permutation(names)[:count]
    return np.isin(groups, held_out)


def _check_enough(num_examples: int, num_clients: int) -> None:
    if num_examples < num_clients:
        raise DataError(
            f"{num_clients} clients cannot share {num_examples} examples; every client needs at least "
            "one. Lower num-clients."
        )


def _shares(random: np.random.RandomState, num_clients: int, alpha: float) -> NDArray[np.float64]:
    """Return one draw from Dirichlet(alpha, ..., alpha), shape (num_clients,), summing to 1."""
    gammas = random.standard_gamma(alpha, num_clients)
    if not gammas.sum():
        # Tiny alpha: every draw fell below the smallest float. The limit is one client with everything.
        gammas[random.randint(num_clients)] = 1.0
    shares: NDArray[np.float64] = gammas / gammas.sum()
    return shares


def _without_empty(parts: Sequence[Indices]) -> list[Indices]:
    """Return the same parts, where each empty one got an example of the largest one of that moment."""
    filled = list(parts)
    for client, part in enumerate(parts):
        if not len(part):
            largest = int(np.argmax([len(other) for other in filled]))
            filled[client], filled[largest] = filled[largest][-1:], filled[largest][:-1]
    return filled
