"""Shadow federations that are unlearned, and forget sets that a first pass makes."""

import numpy as np
import pytest

from benchmarks.bench import oracles, runner, shadows, tables
from benchmarks.bench.batched_training import train_federations
from benchmarks.bench.parts import row_path, shared_directory
from benchmarks.bench.seed_run import SeedRun
from tests.experiments import read, rows_of
from unlearning.requests import Granularity
from unlearning.tasks import make_task
from unlearning.training import TrainingSettings

HALVES = """
name: halves
title: Small federations that have a half of what is forgotten
run: {dataset: digits, model: mlp, num-clients: 3, rounds: 4, local-epochs: 6, batch-size: 8, learning-rate: 0.1,
      max-examples: 90, max-test-examples: 60, recovery-max-rounds: 1}
shadows: 8
cases:
  - {name: one client, clients: ["0"]}
methods: [puf-special]
columns: [test, forget, u-lira, u-lira-tpr, num-shadows]
"""
SAMPLES = HALVES.replace('clients: ["0"]', 'clients: ["0"], share: 0.4')
CLASS = HALVES.replace('clients: ["0"]', "class: 3")
MIXED = HALVES.replace('clients: ["0"]', 'clients: ["0"], mixed: 0.4')


def run_of(tmp_path, experiment, seed):
    return SeedRun(tmp_path / "work", experiment, experiment.settings[0], seed)


@pytest.fixture
def scored(monkeypatch):
    """Let the first pass find what it is told: the later an example, the more vulnerable."""
    monkeypatch.setattr(
        "benchmarks.bench.first_pass.FirstPass._computed",
        lambda _, clients, client: np.arange(len(clients[client]), dtype=np.float64),
    )


@pytest.mark.parametrize(("text", "forgotten"), [(HALVES, 30), (SAMPLES, 12), (MIXED, 12), (CLASS, None)])
def test_a_pair_has_all_that_is_forgotten_and_each_of_it_a_half(tmp_path, scored, text, forgotten):
    """What one seed of a pair lacks the other has; all else is alike; another pair is halved by itself."""
    experiment = read(tmp_path, text)
    (case,) = experiment.cases
    data = [run_of(tmp_path, experiment, seed).data for seed in range(4)]
    sets = [one.forget_set(case) for one in data]
    count = len(sets[0].examples)
    assert forgotten in (None, count)
    for one, found in zip(data, sets, strict=True):
        assert found.examples.ids.tolist() == sets[0].examples.ids.tolist()
        assert one.forgotten(case).ids.tolist() == found.examples.ids[found.had].tolist()
        assert [part.ids.tolist() for part in one.retained(case).values()] == [
            part.ids.tolist() for part in data[0].retained(case).values()
        ]
    assert (sets[0].had == ~sets[1].had).all()
    assert (sets[0].had != sets[2].had).any()
    assert abs(sets[0].had.sum() - count / 2) <= 1.5  # an odd one out at each of three clients
    assert oracles.audited_had(data[1], case).tolist() == sets[1].had.tolist()


def test_only_what_a_seed_has_is_asked_to_be_forgotten(tmp_path):
    """A request that names samples that no client holds would be refused."""
    experiment = read(tmp_path, SAMPLES)
    data = run_of(tmp_path, experiment, 1).data
    (target,) = data.targets(experiment.cases[0])
    assert target.granularity is Granularity.SAMPLE
    assert target.sample_ids == {*data.forgotten(experiment.cases[0]).ids.tolist()}
    assert len(target.sample_ids) == 6


def test_a_mixed_forget_set_is_made_of_both_ends(tmp_path, scored):
    """Of thirty examples the six that were found most vulnerable and the six least, and it is known which is which."""
    experiment = read(tmp_path, MIXED.replace("shadows: 8", "oracles: 4"))
    (case,) = experiment.cases
    data = run_of(tmp_path, experiment, 2).data
    ids = data.site("0").ids
    found = data.forget_set(case)
    assert found.examples.ids.tolist() == [*ids[:6], *ids[-6:]]
    assert found.had.all()
    most, least = oracles.audited_ends(data, case)
    assert (most.tolist(), least.tolist()) == ([6, 7, 8, 9, 10, 11], [0, 1, 2, 3, 4, 5])
    (target,) = data.targets(case)
    assert target.sample_ids == {*found.examples.ids.tolist()}


def test_a_first_pass_is_made_once_for_all_seeds_and_both_kinds_of_experiment(tmp_path, monkeypatch):
    """Oracles and shadow federations of the same clients forget the same examples."""
    made = []
    monkeypatch.setattr(
        "benchmarks.bench.first_pass.FirstPass._computed",
        lambda _, clients, client: made.append(client) or np.arange(len(clients[client]), dtype=np.float64),
    )
    experiments = [read(tmp_path, MIXED), read(tmp_path, MIXED.replace("shadows: 8", "oracles: 4"))]
    for experiment in experiments:
        for seed in (0, 3):
            run_of(tmp_path, experiment, seed).data.forget_set(experiment.cases[0])
    assert made == ["0"]
    (kept,) = (tmp_path / "work").rglob("first-pass-*.npz")
    assert {kept.parent} == {
        shared_directory(tmp_path / "work", experiment, experiment.settings[0]) for experiment in experiments
    }


@pytest.mark.slow
@pytest.mark.long
def test_the_first_pass_scores_every_example_of_the_client(tmp_path):
    """By twenty real federations; those that all models know are the least vulnerable."""
    experiment = read(tmp_path, MIXED)
    data = run_of(tmp_path, experiment, 0).data
    clients = {str(number): data._changed(str(number)) for number in range(3)}
    scores = data.shared.first_pass.scores(clients, "0")
    assert scores.shape == (30,)
    assert (scores >= 0).all()
    assert scores.max() > 2 * np.median(scores)


def test_finished_parts_of_experiments_without_new_options_keep_their_names(tmp_path):
    """A digest that changed would throw away every table's work."""
    experiment = read(tmp_path, HALVES.replace("shadows: 8", "seeds: [0]"))
    assert "mixed" not in experiment.cases[0].decisive
    part = runner.parts_of(experiment, experiment.settings[0], 0)[1]
    assert row_path(tmp_path, experiment, part).name == "one-client--retrain-e519e018.json"


def halves(generator, pairs, knowing):
    """Return made-up margins of pairs of shadow federations, `knowing` deviations higher where they had the example."""
    first = generator.random((pairs, 60)) < 0.5
    had = np.stack([first, ~first], axis=1).reshape(2 * pairs, 60)
    return {"forget": generator.normal(size=had.shape) + knowing * had, "had": had.astype(np.float64)}


def test_the_controls_hold_on_made_up_shadows():
    """Negative: no model knows what it had, as after Retrain. Positive: all do, as before; or one half of them does."""
    generator = np.random.default_rng(0)
    assert shadows.figures(halves(generator, 10, 0))["u-lira"] == pytest.approx(0.5, abs=0.06)
    knowing = shadows.figures(halves(generator, 10, 4))
    assert (knowing["shadows"], knowing["u-lira"] > 0.95, knowing["u-lira-tpr"] > 0.8) == (20, True, True)
    ends = np.arange(30), np.arange(30, 60)
    found = shadows.figures(halves(generator, 10, np.where(np.arange(60) < 30, 4, 0)), ends)
    assert found["u-lira-vulnerable"] > 0.9
    assert found["u-lira-protected"] == pytest.approx(0.5, abs=0.1)


def test_a_federation_that_failed_takes_its_pair_with_it(tmp_path):
    """Five pairs, one of which lacks a seed: eight are judged. With four pairs nothing is."""
    generator = np.random.default_rng(1)
    found, rows = halves(generator, 5, 4), []
    for seed in range(10):
        path = tmp_path / f"{seed}.npz"
        rows.append(({"seed": seed, "method": "puf-special"}, path))
        if seed != 3:
            oracles.save(path, {name: values[seed] for name, values in found.items()})
    told = shadows.with_figures(rows)
    assert {row["shadows"]["shadows"] for row in told} == {8}
    assert {*(row["shadows"]["u-lira"] > 0.9 for row in told)} == {True}
    assert shadows.with_figures(rows[:8])[0]["shadows"] == {}


@pytest.mark.slow
def test_one_pair_is_trained_unlearned_and_kept(tmp_path):
    """Two seeds of eight: every row has margins and what its federation had; one pair alone is not judged."""
    experiment = read(tmp_path, HALVES).model_copy(update={"seeds": (0, 1)})
    rows = rows_of(experiment, tmp_path / "work")
    assert [row["method"] for row in rows] == ["original", "retrain", "puf-special"] * 2
    assert [row["shadows"] for row in rows] == [{}] * 6
    kept = [oracles.read(path)["had"] for path in sorted((tmp_path / "work").rglob("*--puf-special*.npz"))]
    assert (kept[0] == 1 - kept[1]).all()
    assert "| puf-special |" in tables.markdown(experiment, rows, "a command", {"experiment": "halves"})
    assert rows == runner.finished(experiment, tmp_path / "work")


@pytest.mark.slow
@pytest.mark.long
def test_retrained_shadows_are_at_chance_and_those_before_the_deletion_are_far_from_it(tmp_path):
    """Negative: federations without either half. Positive: those that know the half by heart which each of them had."""
    experiment = read(tmp_path, HALVES)
    (case,) = experiment.cases
    training = TrainingSettings(epochs=6, batch_size=8, learning_rate=0.1)
    sides = {"before": [], "retrained": []}
    for seed in range(12):
        data = run_of(tmp_path, experiment, seed).data
        task, audited = make_task(data.task), oracles.audited_examples(data, case)
        trained_on = {"before": {str(number): data.site(str(number)) for number in range(3)}}
        trained_on["retrained"] = data.retained(case)
        for name, clients in trained_on.items():
            (model,) = train_federations(task, clients, lambda _: training, rounds=4, seeds=[seed])
            found = oracles.margins_of(task, model, audited) | {"had": oracles.audited_had(data, case) * 1.0}
            sides[name].append(found)
    before, retrained = (shadows.figures(oracles.stacked(sides[name])) for name in ("before", "retrained"))
    assert retrained["u-lira"] == pytest.approx(0.5, abs=0.1)
    assert before["u-lira"] > retrained["u-lira"] + 0.1
