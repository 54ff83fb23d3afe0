"""Whether the seeds tell methods apart: paired intervals, places, and tests over data sets, against cases by hand."""

from collections.abc import Mapping

import numpy as np
import pytest

from benchmarks.bench.comparing import Compared, comparison, is_nearer, nearer_than
from benchmarks.choosing.over_data_sets import friedman, nemenyi, places
from server.requests.comparisons import NOTHING, Comparison, Figures
from unlearning.requests import Granularity


@pytest.mark.parametrize(
    ("differences", "confidence", "clear"),
    [
        ((1, 2, 3), 0.95, False),  # mean 2, s 1, t(2) 4.303: 2 ± 2.484 contains 0
        ((2, 3, 4), 0.95, True),  # 3 ± 2.484
        ((2, 3, 4), 0.99, False),  # t(2) 9.925: 3 ± 5.730
        ((1, 2, 3, 1, 3), 0.95, True),  # mean 2, s 1, t(4) 2.776: 2 ± 1.242
        ((-2, -3, -4), 0.95, False),  # further, not nearer
        ((5,), 0.95, False),  # one seed says nothing of chance
        ((0, 0, 0), 0.95, False),
    ],
)
def test_a_method_is_nearer_where_the_interval_of_paired_differences_leaves_out_0(
    differences: tuple[float, ...], confidence: float, clear: bool
) -> None:
    """The spread of either method alone does not matter: the first is 0, 10, 20, … off."""
    first = {seed: 10.0 * seed for seed in range(len(differences))}
    second = {seed: first[seed] + difference for seed, difference in enumerate(differences)}
    assert is_nearer(first, second, confidence) is clear


def test_the_more_methods_are_compared_the_more_a_difference_must_be() -> None:
    """2, 3, 4 points are clear of two methods (95 %), of three no longer (97.5 %: t(2) 6.205, 3 ± 3.583)."""
    two = {"a": {0: 1.0, 1: 1.0, 2: 1.0}, "b": {0: 3.0, 1: 4.0, 2: 5.0}}
    assert nearer_than(two) == {"a": ("b",), "b": ()}
    assert nearer_than({**two, "c": two["a"]})["a"] == ()


def row(method: str, seed: int, forget: float, **more: object) -> dict[str, object]:
    scores = {"test": 0.9, "retained": 0.9, "forget": forget}
    return {"method": method, "seed": seed, **scores, "bytes": 10, "seconds": 1, "storage": 400, **more}


ABOUT = Compared(title="Made", page="", granularity=Granularity.CLIENT, input_dimensions=1)


def of(forgets: Mapping[str, tuple[float, float, float]], **more: object) -> Comparison:
    rows = [
        row(name, seed, forget, made={"date": f"2026-11-2{seed}"}, **more)
        for name, scores in forgets.items()
        for seed, forget in enumerate(scores)
    ]
    return comparison(rows, ABOUT)


EXACT = {"original": (0.9, 0.9, 0.9), "retrain": (0.5, 0.5, 0.5), "exact-ridge": (0.2, 0.2, 0.2)}


def test_a_learner_of_its_own_is_compared_with_its_own_retraining_or_left_out() -> None:
    """From the ordinary Retrain it would be 30 points off; from its own kind it is 0."""
    made = of({**EXACT, "retrain, by exact-ridge": (0.2, 0.2, 0.2)})
    assert made.methods["exact-ridge"].text == "0.0 ± 0.0"
    assert made.is_nearer("exact-ridge", NOTHING)
    assert dict(of(EXACT).methods) == {}


def test_a_comparison_says_how_many_seeds_and_when() -> None:
    """Of own runs the source has the days; a method that failed once is told apart from none."""
    made = of({**EXACT, "natural": (0.55, 0.55, 0.55)})
    assert made.source == "your own runs of 2026-11-20 to 2026-11-22, 3 seeds"
    assert made.methods["natural"].nearer_than == (NOTHING,)
    failed = [row(name, seed, 0.5) for name in ("original", "retrain", "natural") for seed in range(3)]
    failed.append(row("natural", 3, 0.5, failed="it blew up"))
    assert comparison(failed, ABOUT).methods["natural"].nearer_than == ()


def test_friedman_and_nemenyi_are_those_of_the_published_example() -> None:
    """Demšar 2006, section 3.2.2: 14 data sets, 4 classifiers, F 3.69 (p 0.0199), critical difference 1.25."""
    assert friedman(np.array([3.143, 2.000, 2.893, 1.964]), 14) == pytest.approx(0.0199, abs=3e-4)
    assert nemenyi(4, 14) == pytest.approx(1.25, abs=5e-3)


def test_the_cases_of_one_data_set_count_once() -> None:
    """Places 1 and 2 in two settings of one data set are 1.5; what failed in a seed is left out."""

    def made(title: str, **distances: float) -> Comparison:
        figures = {name: Figures(distance=one, bytes=1, seconds=1) for name, one in distances.items()}
        figures["mode"] = Figures(distance=0, bytes=1, seconds=1, failed=1)
        return Comparison(
            title=title, page="", granularity=Granularity.CLIENT, num_parameters=1,
            nothing=Figures(distance=9, bytes=1, seconds=1), retrain=Figures(distance=0, bytes=1, seconds=1),
            methods=figures,
        )  # fmt: skip

    found = places(
        [made("digits, IID", a=1, b=2), made("digits, skew", a=2, b=1), made("text, one", a=1, b=1.5)]
    )
    assert (found.methods, found.data_sets) == (("a", "b"), ("digits", "text"))
    assert found.values.tolist() == [[1.5, 1.5], [1, 2]]
