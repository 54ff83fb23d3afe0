"""Which earlier releases a model went on from: records and releases make one chain of models, or nothing is proven."""

import pytest

from unlearning.certified.privacy_accountant import AccountedRelease
from unlearning.certified.round_lengths import RoundLengths
from unlearning.certified.sensitivity import Weighting, measured_sensitivity
from unlearning.methods.hf_online_bound import _follow_releases
from unlearning.methods.hf_online_records import KeptRound


def kept(number: int, before: str, after: str) -> KeptRound:
    lengths = RoundLengths(
        number=number, learning_rate=0.1, clients={}, moved=0.0, norm=1.0, vectors={}, premises=None
    )
    return KeptRound(lengths, Weighting.RENORMALISED, before, after)


def released(name: str, number: int, before: str, after: str, delta: float | None = 0.5) -> AccountedRelease:
    sensitivity = None if delta is None else measured_sensitivity(delta, "given")
    return AccountedRelease(
        name=name,
        number=number,
        sigma=1.0,
        sensitivity=sensitivity,
        clients=(name,),
        before=before,
        after=after,
    )


ROUNDS = [kept(1, "a", "b"), kept(3, "c", "d")]
BETWEEN = released("u", 2, "b", "c")


@pytest.mark.parametrize(
    ("earlier", "model", "committed"),
    [
        ([BETWEEN], "d", ["u"]),
        ([BETWEEN, released("v", 4, "d", "e")], "e", ["u", "v"]),
        ([BETWEEN, released("v", 4, "d", "e"), released("w", 5, "e", "f")], "f", ["u", "v", "w"]),
        (
            [released("w", 5, "e", "f"), released("v", 4, "d", "e"), BETWEEN],
            "f",
            ["u", "v", "w"],
        ),  # in any order
        ([BETWEEN, released("v", 4, "d", "e")], "d", ["u"]),  # discarded, the model went on as it was
        ([BETWEEN, released("v", 4, "d", "e"), released("v", 5, "d", "f")], "f", ["u", "v"]),
        ([released("u", 2, "b", "x"), BETWEEN], "d", ["u"]),  # the first try was discarded before a round
    ],
)
def test_the_releases_that_the_model_went_on_from(earlier, model, committed):
    """Not those whose model was discarded, because the attempt failed after it."""
    found, gaps = _follow_releases(ROUNDS, earlier, "a", model)
    assert ([name for one in found for name in one.clients], gaps) == (committed, [])
    assert all(one.sensitivity == 0.5 for one in found)


@pytest.mark.parametrize(
    ("start", "earlier", "model"),
    [
        ("x", [BETWEEN], "d"),  # training began with another model
        ("a", [], "d"),  # nothing says how b became c
        ("a", [BETWEEN], "x"),
        ("a", [BETWEEN, released("v", 4, "x", "e")], "e"),
    ],
)
def test_a_model_that_something_else_moved_leaves_a_gap(start, earlier, model):
    """And then nothing is proven."""
    _, gaps = _follow_releases(ROUNDS, earlier, start, model)
    assert len(gaps) == 1


def test_a_release_of_which_nothing_is_known_adds_nothing():
    """It is named elsewhere as one without a proof."""
    found, gaps = _follow_releases(ROUNDS, [released("u", 2, "b", "c", delta=None)], "a", "d")
    assert ([one.sensitivity for one in found], gaps) == ([0.0], [])
