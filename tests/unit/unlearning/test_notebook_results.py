"""Results in a notebook: tables, pictures, progress, and a comparison with retraining."""

import sys
import types
from dataclasses import replace
from html import unescape
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest

from tests.contract.test_task_kinds import BUILT_IN, TRAINING, data_of
from tests.raising import raises
from unlearning.errors import ConfigurationError, DataError
from unlearning.evaluation import evaluate
from unlearning.local import Comparison, begin, compare, learn, retained, unlearn
from unlearning.requests import Granularity, Target
from unlearning.runtime import display

DATA = data_of("built-in training")
GONE = [Target(Granularity.CLIENT, "b")]
NEW = DATA["c"]


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    learnt = learn(BUILT_IN, DATA, begin(BUILT_IN, TRAINING), rounds=2)
    return compare(["retrain", "natural", "pga"], BUILT_IN, learnt, DATA, GONE, NEW, recovery_rounds=0)


@pytest.fixture(autouse=True)
def closed() -> Any:
    yield
    plt.close("all")


def test_a_comparison_goes_from_the_model_before_to_the_retrained_one(comparison: Comparison) -> None:
    """Retrain repeats the rounds with other seeds; a method that only stops training changes nothing."""
    assert [one.method for one in comparison.rows] == ["before", "retrain", "natural", "retrained"]
    assert comparison.row("natural").difference == comparison.row("before").difference > 0
    assert comparison.row("retrained").difference == 0


def test_a_method_that_cannot_serve_has_its_reason_in_place_of_a_row(comparison: Comparison) -> None:
    """PGA was not prepared for."""
    assert 'prepare = "pga"' in comparison.refused["pga"]
    assert 'prepare = "pga"' in unescape(comparison._repr_html_())
    with raises(DataError, "no-row"):
        comparison.row("pga")


def test_the_figures_of_a_comparison_are_of_the_forgotten_and_the_new_examples(
    comparison: Comparison,
) -> None:
    """By `evaluate`, on what the target names."""
    learnt = learn(BUILT_IN, DATA, begin(BUILT_IN, TRAINING), rounds=2)
    gone, new = (evaluate(BUILT_IN, learnt.parameters, one) for one in (DATA["b"], NEW))
    row = comparison.row("before")
    assert (row.forgotten_score, row.new_score) == (gone.score.mean(), new.score.mean())
    assert row.attack_auc == np.mean(
        [(a < b) + (a == b) / 2 for a in gone.loss for b in new.loss]
    )  # the share of pairs in which the forgotten example has the lower loss


def test_recovery_rounds_follow_each_deletion() -> None:
    """On what is retained."""
    learnt = learn(BUILT_IN, DATA, begin(BUILT_IN, TRAINING), rounds=2)
    found = compare(["natural"], BUILT_IN, learnt, DATA, GONE, NEW, recovery_rounds=1)
    rest = retained(DATA, GONE)
    after = learn(BUILT_IN, rest, unlearn("natural", BUILT_IN, learnt, DATA, GONE).learnt)
    retrained = learn(BUILT_IN, rest, begin(BUILT_IN, TRAINING), rounds=2)
    old, new = (evaluate(BUILT_IN, one.parameters, DATA["b"]).confidence for one in (after, retrained))
    assert found.row("natural").difference == np.abs(old - new).mean()


def test_a_model_from_elsewhere_cannot_be_compared() -> None:
    """Without rounds there is no retraining."""
    with raises(DataError, "nothing-to-compare"):
        compare(["natural"], BUILT_IN, begin(BUILT_IN, TRAINING), DATA, GONE, NEW)


def test_every_result_has_a_table_and_a_picture(comparison: Comparison) -> None:
    """The model, the deletion, the measures, the comparison."""
    learnt = learn(BUILT_IN, DATA, begin(BUILT_IN, TRAINING), rounds=2)
    forgotten = unlearn("puf-special", BUILT_IN, learnt, DATA, GONE)
    for result in (learnt, forgotten, evaluate(BUILT_IN, learnt.parameters, NEW), comparison):
        assert result._repr_html_().startswith("<table>")
        assert result.plot()


def test_a_cell_is_text_and_no_markup() -> None:
    """Ids come from clients."""
    assert "<b>" not in display.table("<b>", ("<b>",), [("<b>",)])


def test_the_loss_of_each_round_is_drawn_with_a_gap_for_a_deletion() -> None:
    """Three rounds, an exchange, a round."""
    learnt = learn(BUILT_IN, DATA, begin(BUILT_IN, TRAINING), rounds=3)
    forgotten = unlearn("puf-special", BUILT_IN, learnt, DATA, GONE)
    recovered = learn(BUILT_IN, retained(DATA, GONE), forgotten.learnt)
    (line,) = recovered.plot().lines
    assert np.isnan(line.get_ydata()).tolist() == [False, False, False, True, False]
    assert line.get_ydata()[0] > line.get_ydata()[2]


def test_two_sets_of_measures_share_axes() -> None:
    """Each with its name."""
    learnt = begin(BUILT_IN, TRAINING)
    axes = evaluate(BUILT_IN, learnt.parameters, DATA["a"]).plot(label="a")
    evaluate(BUILT_IN, learnt.parameters, DATA["b"]).plot(axes, label="b")
    assert len(axes.lines) == 2


def test_without_matplotlib_plot_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables need none."""
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ConfigurationError, match="pip install matplotlib"):
        replace(begin(BUILT_IN, TRAINING)).plot()


class Bar:
    """Stands in for IPython's display: what is shown, one after another."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.HTML = str

    def display(self, text: str, *, display_id: bool) -> "Bar":
        return self.update(text)

    def update(self, text: str) -> "Bar":
        self.shown.append(text)
        return self


@pytest.fixture
def bar(monkeypatch: pytest.MonkeyPatch) -> Bar:
    """A Jupyter kernel, in which nothing is too quick for a bar."""
    found = Bar()
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    monkeypatch.setattr(display, "_NOT_BEFORE_S", -1)
    monkeypatch.setattr(display, "import_module", lambda _: found)
    return found


def test_a_notebook_shows_the_round_and_clears_the_bar(bar: Bar) -> None:
    """One line at a time."""
    learn(BUILT_IN, DATA, begin(BUILT_IN, TRAINING), rounds=2)
    assert [text.partition(" <")[0] for text in bar.shown] == ["Round 1 of 2", "Round 2 of 2", ""]


def test_a_loop_within_another_shows_no_bar_of_its_own(bar: Bar) -> None:
    """The methods of a comparison have one, the rounds within have none."""
    inner = [list(display.with_progress(range(2), "inner")) for _ in display.with_progress([1], "outer")]
    assert inner == [[0, 1]]
    assert not [text for text in bar.shown if "inner" in text]


def test_a_script_shows_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no kernel."""
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    monkeypatch.setattr(display, "import_module", None)
    assert list(display.with_progress([1, 2], "Round")) == [1, 2]
