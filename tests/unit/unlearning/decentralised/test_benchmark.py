"""The benchmark of decentralised deletions, at a tiny size."""

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

import benchmarks.decentralised.__main__ as benchmark
from benchmarks.decentralised.federation import (
    SHARE,
    Federation,
    Trained,
    draw_ids,
    forgets_of,
    made_federation,
    targets,
)
from benchmarks.decentralised.measures import measure_row, of_the_same_classes
from benchmarks.decentralised.published import PUBLISHED, TABLES
from benchmarks.decentralised.runs import rows_of, sequence_rows, train_federation
from benchmarks.decentralised.tables import document, drawing
from benchmarks.tables import Row
from unlearning.requests import Granularity

TINY = replace(benchmark.MNIST, dataset="digits", rounds=3, batch_size=10, learning_rate=0.05, compared=())


@pytest.fixture(scope="module")
def federation() -> Federation:
    return made_federation(TINY, partition="iid", topology="ring", seed=0, data_dir="")


@pytest.fixture(scope="module")
def before(federation: Federation) -> Trained:
    """Its peers after training."""
    return train_federation(federation)


def rows(values: dict[str, list[float]], **labels: object) -> list[Row]:
    """A row for each seed and method, with these test accuracies."""
    rest = {"attack": 50.0, "called_members": 50.0, "forget_accuracy": 80.0, "seconds": 2.0}
    return [
        {"method": method, "seed": seed, **labels, **rest, "test_accuracy": value}
        for method, accuracies in values.items()
        for seed, value in enumerate(accuracies)
    ]


def test_every_client_is_asked_for_its_share_of_samples(federation: Federation) -> None:
    """A tenth each, and the parts of a sequence do not overlap."""
    for name, [ids] in draw_ids(federation, SHARE, 1).items():
        assert len(ids) == round(SHARE * len(federation.sites[name]))
    for parts in draw_ids(federation, 0.2, 3).values():
        assert len(frozenset().union(*parts)) == sum(map(len, parts))


def test_attacked_examples_are_of_the_same_classes() -> None:
    """Else the attack would tell classes apart instead of members."""
    members, others = np.array([0] * 5 + [1] * 30), np.array([0] * 20 + [1] * 10 + [2] * 9)
    here, there = of_the_same_classes(members, others, np.random.default_rng(0))
    assert np.bincount(members[here]).tolist() == np.bincount(others[there]).tolist() == [5, 10]


def test_retraining_forgets_a_class_and_training_knew_it(federation: Federation, before: Trained) -> None:
    """The two ends between which a method lies."""
    trained_on, again, corrected = rows_of(federation, before, Granularity.CLASS)
    assert (trained_on["method"], again["method"], corrected["method"]) == ("before", "RT", "DU")
    assert trained_on["forget_accuracy"] > 50
    assert again["forget_accuracy"] == 0
    assert corrected["forget_accuracy"] < trained_on["forget_accuracy"]


def test_pdudt_stands_beside_a_clients_deletion_only(federation: Federation, before: Trained) -> None:
    """It is a method for clients."""
    methods = {
        level: [row["method"] for row in rows_of(federation, before, level)]
        for level in (Granularity.SAMPLE, Granularity.CLIENT)
    }
    assert methods[Granularity.SAMPLE] == ["before", "RT", "DU"]
    assert methods[Granularity.CLIENT] == ["before", "RT", "DU", "PDUDT"]


def test_a_leavers_model_is_not_in_the_mean(federation: Federation, before: Trained) -> None:
    """Nobody uses it any more, and it still holds what it learnt."""
    forgets = forgets_of(targets(federation, Granularity.CLIENT), Granularity.CLIENT)
    starts = before.starts()
    expected = measure_row(federation, federation.network(starts=starts), forgets)
    starts[federation.leaver] = np.flip(1e3 * starts[federation.leaver])
    assert measure_row(federation, federation.network(starts=starts), forgets) == expected


@pytest.mark.slow
@pytest.mark.long
def test_a_sequence_asks_three_times_and_is_drawn(
    federation: Federation, before: Trained, tmp_path: Path
) -> None:
    """RT and DU after each request, with a curve each."""
    found = sequence_rows(federation, before)
    assert [(row["method"], row["request"]) for row in found] == [
        (method, request) for request in (1, 2, 3) for method in ("RT", "DU")
    ]
    assert {len(row["curve"]) for row in found if row["method"] == "RT"} == {TINY.rounds}
    labels = {"dataset": "digits", "partition": "iid", "topology": "ER", "seed": 0, "case": "sequence"}
    drawing([{**labels, **row} for row in found], tmp_path / "drawn.png")
    assert (tmp_path / "drawn.png").exists()


@pytest.mark.slow
def test_a_stopped_run_goes_on_without_computing_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finished cases are read, and the page is the same."""
    monkeypatch.setattr(benchmark, "EXPERIMENTS", (replace(TINY, rounds=1),))
    every_case = benchmark.cases
    monkeypatch.setattr(benchmark, "cases", lambda *of, **by: islice(every_case(*of, **by), 2))
    work, output = tmp_path / "work", tmp_path / "page"
    benchmark.main(data_dir="", work=work, output=output, only=None, seeds=1, full=False)
    page = output.with_suffix(".md").read_text()

    def fail(*_: object) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr(benchmark, "train_federation", fail)
    monkeypatch.setattr(benchmark, "rows_of", fail)
    benchmark.main(data_dir="", work=work, output=output, only=["digits"], seeds=1, full=False)
    assert output.with_suffix(".md").read_text() == page
    assert len(json.loads(output.with_suffix(".json").read_text())["rows"]) == 2 * 3


def test_changed_settings_make_new_cases(tmp_path: Path) -> None:
    """Rows of another learning rate are not shown as this one's."""
    (one, *_), (other, *_) = (
        list(benchmark.cases([experiment], 1)) for experiment in (TINY, replace(TINY, learning_rate=0.5))
    )
    assert one.file(tmp_path) != other.file(tmp_path)


def test_the_page_has_the_papers_figures_beside_ours() -> None:
    """Mean and deviation over seeds in table I, and the paper's as printed."""
    found = rows(
        {"RT": [86.0, 88.0], "DU": [85.0, 85.0]},
        dataset="mnist",
        partition="iid",
        topology="ring",
        case="sample",
    )
    page = document(found, [benchmark.MNIST], "a machine")
    [retrained] = [line for line in page if line.startswith("| ring | mnist | RT")]
    assert "| 87.0 ± 1.4 | 86.34 ± 0.23 | 50.0 ± 0.0 | 52.29 ± 0.27 |" in retrained
    assert "## Table I: samples, IID" in page
    assert "## Table II:" not in page


def test_every_row_of_the_papers_tables_is_there() -> None:
    """Four tables of two graphs, three data sets and two methods."""
    assert {key[:2] for key in PUBLISHED} == set(TABLES)
    assert len(PUBLISHED) == len(TABLES) * 2 * 3 * 2


def test_a_drawing_without_a_sequence_is_not_made(tmp_path: Path) -> None:
    """A part of the runs makes a page all the same."""
    drawing([], tmp_path / "nothing.png")
    assert not (tmp_path / "nothing.png").exists()
