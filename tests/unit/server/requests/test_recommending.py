"""Which method is recommended, and why: by measurements near the federation, by what was seen here, or the safest."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from server.requests import recommending
from server.requests.comparisons import NOTHING, Comparison, Figures
from server.requests.recommending import Recommendation, Shown, compared, near, recommend, shown_here
from unlearning.methods.eligibility import FederationProfile
from unlearning.methods.registry import METHODS
from unlearning.requests import Granularity, Outcome

CNN = FederationProfile(
    task="own", score_name="accuracy", num_classes=10, num_parameters=188_810, bytes_per_parameter=4, input_dimensions=3
)  # fmt: skip
UNPREPARED = {"sisa", "exact-ridge", "hf-online", "federaser", "fedau-learning", "pga", "dp-covered"}
"""What a federation without the settings `prepare` and `privacy` cannot serve."""


def advise(
    granularity: Granularity = Granularity.CLIENT,
    federation: FederationProfile | None = CNN,
    *,
    refused: set[str] = UNPREPARED,
    absent: dict[str, str] | None = None,
    here: dict[str, Shown] | None = None,
    own: Sequence[Comparison] = (),
) -> Recommendation:
    return recommend(
        granularity,
        federation,
        is_admissible=lambda name: name not in refused,
        absent_for=lambda name: (absent or {}).get(name, ""),
        here=here or {},
        own=own,
    )


def like(num_parameters: int, **changes: Any) -> FederationProfile:
    return replace(CNN, num_parameters=num_parameters, **changes)


@pytest.mark.parametrize(
    ("granularity", "num_parameters", "method"),
    [
        (Granularity.CLIENT, 188_810, "puf-special"),
        (Granularity.SAMPLE, 188_810, "puf-special"),
        (Granularity.CLASS, 188_810, "fedau"),
        (Granularity.SAMPLE, 61_706, "hf-kcu-influence"),
        (Granularity.CLASS, 61_706, "retrain"),
        (Granularity.SAMPLE, 55_210, "retrain"),
    ],
)
def test_the_committed_measurements_decide(
    granularity: Granularity, num_parameters: int, method: str
) -> None:
    """What three seeds do not tell from training on is not recommended: FedAU of FashionMNIST's classes."""
    assert advise(granularity, like(num_parameters)).method == method


def test_the_reason_has_the_figures_of_the_nearest_measurements() -> None:
    """Both of CIFAR-10's, and what came as near."""
    why = advise().why
    assert "CIFAR-10, CNN, IID, one client, 3 seeds: 1.4 ± 1.0, doing nothing 12.9 ± 0.3" in why
    assert "α = 0.1, one client, 3 seeds: 5.2 ± 3.5, doing nothing 19.9" in why
    assert "puf-regular came as near and cost more" in why


@pytest.mark.parametrize(
    "federation",
    [like(5_500), like(1_900_000), like(188_810, score_name="dice"), like(188_810, input_dimensions=2), None],
)
def test_where_nothing_measured_is_near_the_safest_is_recommended(
    federation: FederationProfile | None,
) -> None:
    """More than ten times smaller or larger, no classification, inputs of another kind, or not known yet."""
    found = advise(federation=federation)
    assert found.method == "retrain"
    assert found.why.startswith("No measurement is near enough to this federation")


def test_what_an_absent_client_would_hold_up_is_not_recommended_while_something_else_can_serve() -> None:
    """PUF needs the client that leaves; NoT needs nobody, and is clearly nearer than training on."""
    needs_it = dict.fromkeys(("puf-special", "puf-regular", "fedau", "mode", "hf-kcu-influence"), "client 3")
    assert advise(absent=needs_it).method == "not"
    waiting = advise(absent=dict.fromkeys(METHODS, "any client"))
    assert waiting.method == "puf-special"
    assert waiting.why.endswith("It waits for any client to come online.")


def test_a_prepared_exact_method_goes_before_all_measurements() -> None:
    """Its model never saw the data."""
    assert advise(refused=UNPREPARED - {"sisa"}).method == "sisa"


def test_what_was_shown_here_in_most_deletions_goes_before_publications() -> None:
    """Of three at least; one success of one says nothing."""
    assert advise(here={"not": Shown(1, 1)}).method == "puf-special"
    found = advise(here={"not": Shown(2, 3), "fedau": Shown(1, 3)})
    assert found.method == "not"
    assert "of 3 deletions of this kind by it here, 2 were shown" in found.why
    assert "of 4 deletions of this kind by it here, 0 were" in advise(here={"puf-special": Shown(0, 4)}).why


def test_only_deletions_that_tests_judge_speak_for_a_method_here() -> None:
    """Not those of too few records, nor those whose result needs no test."""
    counts = {
        ("not", Outcome.REDUCED): 2,
        ("not", Outcome.INDISTINGUISHABLE): 1,
        ("not", Outcome.NOT_SHOWN): 3,
        ("not", Outcome.OVER_FORGETTING): 1,
        ("not", Outcome.TOO_FEW): 10,
        ("retrain", Outcome.RETRAINED): 10,
        ("hf-online", Outcome.GUARANTEED): 10,
    }
    ledger: Any = SimpleNamespace(requests=SimpleNamespace(outcomes=lambda _: counts))
    assert shown_here(ledger, Granularity.CLIENT) == {"not": Shown(3, 7)}


def test_nothing_is_recommended_where_nothing_can_serve() -> None:
    """A federation that refuses all of them."""
    assert advise(refused=set(METHODS)) == Recommendation()
    assert advise(refused=set(METHODS) - {"natural"}).method == "natural"


def case(title: str, parameters: int, retrain: float = 1000.0, **methods: Figures) -> Comparison:
    """Return a comparison in which two spreads' length tells methods apart."""
    natural, nothing = (Figures(distance=value, spread=0.1, bytes=1, seconds=1) for value in (10, 12))
    there = {"natural": natural, **methods}
    return Comparison(
        title=title, page="page.md", granularity=Granularity.CLIENT, num_parameters=parameters, num_seeds=3,
        nothing=told_apart(nothing, there), retrain=Figures(distance=0, bytes=retrain, seconds=1),
        methods={name: told_apart(one, {**there, NOTHING: nothing}) for name, one in there.items()},
    )  # fmt: skip


def told_apart(own: Figures, others: Mapping[str, Figures]) -> Figures:
    nearer = [
        name
        for name, one in others.items()
        if own.spread is not None
        and one.spread is not None
        and one.distance - own.distance > 2 * math.hypot(own.spread, one.spread)
    ]
    return replace(own, nearer_than=tuple(nearer))


def at(distance: float, spread: float | None = 0.1, **changes: Any) -> Figures:
    return Figures(distance=distance, spread=spread, **{"bytes": 10, "seconds": 1, **changes})


@pytest.mark.parametrize(
    ("methods", "method"),
    [
        ({"fedau": at(2), "fedosd": at(3)}, "fedau"),
        ({"fedau": at(2, 0.6), "fedosd": at(3, bytes=5)}, "fedosd"),  # 1 apart, spreads of 0.6 and 0.1: a tie
        ({"fedau": at(9.5, 0.6)}, "retrain"),  # no clear difference from training on
        ({"fedau": at(2, bytes=501)}, "retrain"),  # more than half of retraining's price
        ({"fedau": at(2, failed=1)}, "retrain"),
        ({"fedau": at(2, None)}, "retrain"),  # one seed tells nothing of chance
        ({"mode": at(2)}, "retrain"),  # one request at a time
        ({"another-package": at(1), "fedau": at(2)}, "fedau"),
    ],
)
def test_the_clearly_nearest_of_those_worth_their_price(
    monkeypatch: pytest.MonkeyPatch, methods: dict[str, Figures], method: str
) -> None:
    """Natural is at 10, doing nothing at 12, retraining costs 1,000 bytes."""
    monkeypatch.setattr(recommending, "known", lambda: [case("own", 188_810, **methods)])
    assert advise().method == method


def test_what_the_nearest_cannot_tell_apart_the_next_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tie at one size of model; at the next one the other is clearly nearer."""
    cases = [
        case("far", 100_000, fedau=at(2), fedosd=at(5)),
        case("near", 188_810, fedau=at(2.1, bytes=20), fedosd=at(2)),
    ]
    monkeypatch.setattr(recommending, "known", lambda: cases)
    assert advise().method == "fedau"
    assert [[one.title for one in group] for group in near(Granularity.CLIENT, CNN)] == [["near"], ["far"]]


def test_a_plan_says_whether_a_difference_from_doing_nothing_is_clear(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Worse by more than chance explains, better, or neither."""
    monkeypatch.setattr(
        recommending, "known", lambda: [case("own", 188_810, fedau=at(13), fedosd=at(12.1), puf=at(2))]
    )
    said = {name: compared(name, Granularity.CLIENT, CNN) for name in ("fedau", "fedosd", "puf")}
    assert {name: one and one.is_worse for name, one in said.items()} == {
        "fedau": True,
        "fedosd": None,
        "puf": False,
    }
    assert said["fedosd"] is not None
    assert said["fedosd"].text == (
        "12.1 ± 0.1 points off Retrain, doing nothing 12.0, which is no clear difference; place 3 of 4 (own, 3 seeds)"
    )
    assert compared("retrain", Granularity.CLIENT, CNN) is None


def test_the_places_that_a_method_can_have_follow_from_what_is_told_apart() -> None:
    """By hand: fedau and fedosd tie before natural; the third may be anywhere, for it has one seed only."""
    there = case("own", 188_810, fedau=at(2, 0.6), fedosd=at(3), puf=at(1, None))
    assert {name: there.rank(name) for name in there.methods} == {
        "natural": (3, 4),
        "fedau": (1, 3),
        "fedosd": (1, 3),
        "puf": (1, 4),
    }
    assert there.front == ["fedau", "fedosd", "puf"]
    assert (
        there.ranking == "Not told apart from the nearest to retraining: fedau, fedosd, puf (own, 3 seeds)."
    )
    assert case("own", 188_810, fedau=at(9, 5)).ranking.startswith("No method is better than another here")


def test_own_runs_of_the_same_model_take_the_place_of_publications() -> None:
    """Of another model they say nothing; the reason names their date and their seeds."""
    own = replace(case("hospital", 188_810, fedosd=at(2)), page="", made_on="2026-11-24", num_seeds=5)
    assert near(Granularity.CLIENT, like(188_810, score_name="dice"), [own]) == [[own]]
    assert [own] not in near(Granularity.CLIENT, like(188_811), [own])
    said = compared("fedosd", Granularity.CLIENT, CNN, [own])
    assert said is not None
    assert said.is_own
    assert "your own runs of 2026-11-24, 5 seeds" in said.text
    assert advise(own=[own]).method == "fedosd"
