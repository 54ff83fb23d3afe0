"""The partitions: every example has one owner, every owner an example, on every machine the same."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unlearning.errors import DataError
from unlearning.tasks import partitions
from unlearning.tasks.partitions import Indices

SEEDS = st.integers(0, 2**31 - 1)


@st.composite
def labelled(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    """Labels of 1 to 200 examples and no more clients than examples."""
    labels = draw(st.lists(st.integers(0, 5), min_size=1, max_size=200))
    return np.asarray(labels), draw(st.integers(1, len(labels)))


def is_partition(parts: list[Indices], num_examples: int, num_clients: int) -> bool:
    everything = np.sort(np.concatenate(parts))
    return (
        len(parts) == num_clients
        and np.array_equal(everything, np.arange(num_examples))
        and all(len(part) and np.array_equal(part, np.sort(part)) for part in parts)
    )


@given(case=labelled(), seed=SEEDS)
def test_iid_is_a_partition_into_equal_parts(case: tuple[np.ndarray, int], seed: int) -> None:
    """Disjoint, complete, none empty, sizes that differ by at most one."""
    labels, num_clients = case
    parts = partitions.iid(len(labels), num_clients, seed)
    sizes = [len(part) for part in parts]
    assert is_partition(parts, len(labels), num_clients)
    assert max(sizes) - min(sizes) <= 1


@given(case=labelled(), alpha=st.floats(1e-6, 1e4), seed=SEEDS)
def test_dirichlet_is_a_partition_whatever_alpha(
    case: tuple[np.ndarray, int], alpha: float, seed: int
) -> None:
    """Disjoint, complete, none empty, also where alpha is so small that every draw is 0."""
    labels, num_clients = case
    parts = partitions.dirichlet(labels, num_clients, alpha, seed)
    assert is_partition(parts, len(labels), num_clients)


@pytest.mark.parametrize(
    "share_out", [partial(partitions.iid, 100, 5), partial(partitions.dirichlet, np.arange(100) % 10, 5, 0.5)]
)
@given(seed=SEEDS)
def test_the_seed_alone_decides_the_partition(share_out: Callable[[int], list[Indices]], seed: int) -> None:
    """Each machine computes it for itself; another seed gives another one."""
    first, again, other = (
        [part.tolist() for part in share_out(each)] for each in (seed, seed, (seed + 1) % 2**31)
    )
    assert first == again != other


def test_the_partition_of_a_seed_never_changes() -> None:
    """A new release that dealt data out differently would mix up who owns what."""
    labels = np.arange(12) % 3
    assert [part.tolist() for part in partitions.iid(6, 2, 0)] == [[1, 2, 5], [0, 3, 4]]
    assert [part.tolist() for part in partitions.dirichlet(labels, 2, 0.5, 0)] == [
        [3, 4, 6, 7, 8, 9, 10],
        [0, 1, 2, 5, 11],
    ]


def test_a_small_alpha_skews_labels_and_a_large_one_does_not() -> None:
    """The mean share of a client's most frequent class: 1/10 is no skew, 1 is one class a client."""
    labels = np.arange(10_000) % 10

    def top_share(alpha: float) -> float:
        parts = partitions.dirichlet(labels, 10, alpha, 0)
        return float(np.mean([np.bincount(labels[part]).max() / len(part) for part in parts]))

    assert top_share(1000) < 0.13
    assert 0.2 < top_share(0.5) < 0.6
    assert top_share(0.01) > 0.7


def test_dirichlet_shares_are_distributed_as_their_name_says() -> None:
    """Each share of Dirichlet(a, ..., a) over k clients has mean 1/k and variance (k-1)/(k²(ka+1))."""
    alpha, k, size = 0.5, 4, 1000
    labels = np.zeros(size, dtype=int)
    sizes = [[len(p) for p in partitions.dirichlet(labels, k, alpha, seed)] for seed in range(400)]
    shares = np.asarray(sizes) / size
    assert shares.mean(axis=0) == pytest.approx(1 / k, abs=0.05)
    assert shares.var() == pytest.approx((k - 1) / (k**2 * (k * alpha + 1)), rel=0.1)


@given(groups=st.lists(st.integers(0, 9), min_size=1, max_size=100), seed=SEEDS)
def test_groups_stay_together(groups: list[int], seed: int) -> None:
    """Tiles of one picture never lie with two clients."""
    names = np.asarray(groups)
    num_clients = min(3, len(set(groups)))
    parts = partitions.iid_groups(names, num_clients, seed)
    owned = [set(names[part].tolist()) for part in parts]
    assert is_partition(parts, len(names), num_clients)
    assert sum(len(group) for group in owned) == len(set(groups))


def test_natural_clients_own_their_sites() -> None:
    parts = partitions.natural(np.asarray([1, 0, 1, 2]), 3)
    assert [part.tolist() for part in parts] == [[1], [0, 2], [3]]


def test_a_site_without_examples_is_refused() -> None:
    """The message names the client and the sites that there are."""
    with pytest.raises(DataError):
        partitions.natural(np.asarray([0, 2]), 2)


@pytest.mark.parametrize(
    "share_out",
    [
        lambda: partitions.iid(3, 4, 0),
        lambda: partitions.dirichlet(np.zeros(3), 4, 0.5, 0),
        lambda: partitions.iid_groups(np.asarray([1, 1, 2, 2, 3]), 4, 0),
    ],
)
def test_more_clients_than_examples_are_refused(share_out: Callable[[], list[Indices]]) -> None:
    with pytest.raises(DataError):
        share_out()


@given(groups=st.lists(st.integers(0, 9), min_size=1, max_size=100), seed=SEEDS)
def test_hold_out_takes_whole_groups_and_leaves_some(groups: list[int], seed: int) -> None:
    """No group is on both sides; both sides have one unless there is only one."""
    names = np.asarray(groups)
    held_out = partitions.hold_out(names, 0.2, seed)
    tested, trained = set(names[held_out].tolist()), set(names[~held_out].tolist())
    assert not tested & trained
    assert trained
    assert bool(tested) is (len(set(groups)) > 1)


def test_hold_out_takes_its_share_by_the_seed() -> None:
    groups = np.arange(100)
    held_out = partitions.hold_out(groups, 0.2, 7)
    assert held_out.sum() == 20
    assert np.array_equal(held_out, partitions.hold_out(groups, 0.2, 7))
    assert not np.array_equal(held_out, partitions.hold_out(groups, 0.2, 8))


def test_a_subset_is_random_sorted_and_of_the_size_asked_for():
    """The same for the same seed; everything where nothing or too much is asked for."""
    some = partitions.subset(100, 30, seed=1)
    assert len(set(some.tolist())) == 30
    assert some.tolist() == sorted(some.tolist()) != list(range(30))
    assert some.tolist() == partitions.subset(100, 30, seed=1).tolist()
    assert len(partitions.subset(100, 0, seed=1)) == len(partitions.subset(100, 500, seed=1)) == 100
