"""Which method ends nearer to retraining over data sets: mean places, and whether they tell methods apart.

Cases of one data set are no evidence apart from each other: their places are averaged first.

Source: Demšar, Statistical Comparisons of Classifiers over Multiple Data Sets, JMLR 7, 2006, section 3.2.2: the
Friedman test in Iman and Davenport's form, and Nemenyi's critical difference of mean places at 5 %.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import f as f_distribution
from scipy.stats import rankdata, studentized_range

from server.requests.comparisons import Comparison

ERROR = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The places of k methods, 1 is the nearest to retraining, in N data sets: `values` has the shape (N, k)."""

    methods: tuple[str, ...]
    data_sets: tuple[str, ...]
    values: NDArray[np.float64]

    @property
    def p_value(self) -> float:
        """How often places would differ by as much between methods that do not."""
        return friedman(self.values.mean(axis=0), len(self.data_sets))

    @property
    def critical_difference(self) -> float:
        """By how much the mean places of two methods must differ."""
        return nemenyi(len(self.methods), len(self.data_sets))


def places(comparisons: Sequence[Comparison]) -> Places:
    """Return the places of the methods that are in all comparisons and failed in none; titles tell the data sets."""
    common = sorted(set.intersection(*({*_sound(item)} for item in comparisons)))
    by_data_set: dict[str, list[NDArray[np.float64]]] = {}
    for item in comparisons:
        ranks = rankdata([item.methods[name].distance for name in common])
        by_data_set.setdefault(item.title.partition(",")[0], []).append(ranks)
    values = np.array([np.mean(ranks, axis=0) for ranks in by_data_set.values()])
    return Places(methods=tuple(common), data_sets=tuple(by_data_set), values=values)


def friedman(mean_places: NDArray[np.float64], num_data_sets: int) -> float:
    """Return the p-value of the hypothesis that all methods have the same place; mean_places has the shape (k,)."""
    k, n = len(mean_places), num_data_sets
    chi = 12 * n / (k * (k + 1)) * (float(np.sum(mean_places**2)) - k * (k + 1) ** 2 / 4)
    rest = n * (k - 1) - chi
    return float(f_distribution.sf((n - 1) * chi / rest, k - 1, (k - 1) * (n - 1))) if rest > 0 else 0.0


def nemenyi(num_methods: int, num_data_sets: int) -> float:
    """Return the critical difference q · √(k(k + 1) / 6N), q the quantile of the studentised range over √2."""
    quantile = float(studentized_range.ppf(1 - ERROR, num_methods, np.inf)) / np.sqrt(2)
    return float(quantile * np.sqrt(num_methods * (num_methods + 1) / (6 * num_data_sets)))


def _sound(item: Comparison) -> Mapping[str, object]:
    return {name: one for name, one in item.methods.items() if not one.failed}
