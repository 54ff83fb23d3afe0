"""Oracles: many retrained and unlearned models of one experiment, and how far apart they are."""

import json

import numpy as np
import pytest

from benchmarks.bench import oracles, tables
from benchmarks.bench.batched_training import train_federations
from benchmarks.bench.client_data import ClientData
from benchmarks.bench.columns import RETRAIN
from benchmarks.bench.klom import klom
from benchmarks.bench.parts import FIRST_ORACLE, ORACLES, Part, parts_of
from benchmarks.bench.seed_run import SeedRun
from benchmarks.bench.u_lira import mixed, vulnerability
from tests.experiments import read, rows_of
from unlearning.tasks import make_task
from unlearning.training import TrainingSettings

KNOWING = """
name: knowing
title: Small federations that know their examples by heart
run: {dataset: digits, model: mlp, num-clients: 3, rounds: 4, local-epochs: 6, batch-size: 8, learning-rate: 0.1,
      max-examples: 90, max-test-examples: 60, recovery-max-rounds: 1}
oracles: 4
cases:
  - {name: one client, clients: ["0"]}
methods: [puf-special]
columns: [test, klom-forget, klom-test-mean, u-lira, shift, num-oracles]
"""


def test_oracles_say_the_seeds(tmp_path):
    """Four of both kinds; the oracles' seeds are their own, and one part trains five."""
    experiment = read(tmp_path, KNOWING)
    assert experiment.seeds == (0, 1, 2, 3)
    parts = {seed: parts_of(experiment, experiment.settings[0], seed) for seed in experiment.seeds}
    (of_oracles,) = [part for mine in parts.values() for part in mine if part.name == ORACLES]
    assert of_oracles in parts[0]
    assert of_oracles.seeds == tuple(FIRST_ORACLE + seed for seed in range(5))


def test_all_seeds_have_the_same_clients(tmp_path):
    """Else nothing could be said of one example; without oracles each seed deals again."""
    experiment = read(tmp_path, KNOWING)
    runs = [SeedRun(tmp_path, experiment, experiment.settings[0], seed) for seed in (0, 3)]
    assert runs[0].data.site("1").ids.tolist() == runs[1].data.site("1").ids.tolist()
    plain = experiment.model_copy(update={"oracles": 0})
    other = SeedRun(tmp_path, plain, plain.settings[0], 3)
    assert other.data.site("1").ids.tolist() != runs[1].data.site("1").ids.tolist()
    assert other.directory.parent != runs[1].directory.parent


@pytest.mark.slow
def test_an_oracle_is_what_retrain_is_with_that_seed(tmp_path):
    """Trained several at once or by the deployment's code: the same margins, to single precision."""
    experiment = read(tmp_path, KNOWING.replace("oracles: 4", "oracles: 2"))
    setting, (case,) = experiment.settings[0], experiment.cases
    part = Part(setting, case, ORACLES, seeds=(0, 1))
    run = SeedRun(tmp_path, experiment, setting, 0)
    run.row(part)
    together = oracles.read(run.margins_path(part))
    for seed in (0, 1):
        alone = SeedRun(tmp_path, experiment, setting, seed)
        alone.row(Part(setting, case, RETRAIN))
        found = oracles.read(alone.margins_path(Part(setting, case, RETRAIN)))
        for name in ("forget", "retained", "test"):
            assert found[name] == pytest.approx(together[name][seed], abs=1e-3)


@pytest.mark.slow
@pytest.mark.long
def test_a_whole_run_sets_each_method_beside_the_oracles_and_goes_on(tmp_path):
    """Four seeds and five oracles: every row has its method's figures, the page has columns; nothing is done twice."""
    experiment = read(tmp_path, KNOWING)
    rows = rows_of(experiment, tmp_path / "work")
    found = {row["method"]: row["oracles"] for row in rows}
    assert {*found} == {"original", "retrain", "puf-special"}
    assert {(one["unlearned"], one["oracles"]) for one in found.values()} == {(4, 5)}
    assert "KLoM, forget, 95th percentile" in tables.markdown(
        experiment, rows, "a command", {"experiment": "knowing"}
    )
    assert json.dumps(rows)
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "work").rglob("*--*.*")}
    assert rows == rows_of(experiment, tmp_path / "work")
    assert files == {path: path.stat().st_mtime_ns for path in files}


@pytest.mark.slow
@pytest.mark.long
def test_oracles_against_oracles_are_at_the_floor_and_the_original_is_far_from_it(tmp_path):
    """Fifteen of each: the floor is that of any two sets of one distribution; the Original knows what was forgotten."""
    experiment = read(tmp_path, KNOWING)
    data = SeedRun(tmp_path, experiment, experiment.settings[0], 0).data
    task, (case,) = make_task(data.task), experiment.cases
    training = TrainingSettings(epochs=6, batch_size=8, learning_rate=0.1)
    audited = oracles.audited_examples(data, case)

    def models(clients, first):
        seeds = range(first, first + 15)
        found = train_federations(task, clients, lambda _: training, rounds=4, seeds=seeds)
        return oracles.stacked([oracles.margins_of(task, model, audited) for model in found])

    everybody = {str(number): data.site(str(number)) for number in range(3)}
    of_oracles = models(data.retained(case), 0)
    floor = oracles.figures(models(data.retained(case), 100), of_oracles)
    original = oracles.figures(models(everybody, 200), of_oracles)
    normal = np.random.default_rng(0).normal(size=(2, 15, 2000))
    expected = klom(normal[0], normal[1]).mean()
    for name in ("forget", "retained", "test"):
        assert floor[f"klom-{name}-mean"] == pytest.approx(expected, rel=0.25)
    assert floor["u-lira"] == pytest.approx(0.5, abs=0.1)
    assert original["klom-forget-mean"] > 1.2 * floor["klom-forget-mean"]
    assert original["u-lira"] > floor["u-lira"] + 0.15


def sets(generator, models, shift):
    return {
        "forget": generator.normal(shift, 1, (models, 80)),
        "retained": generator.normal(size=(models, 80)),
        "test": generator.normal(size=(models, 80)),
    }


def test_the_controls_hold_on_made_up_margins():
    """Negative: two sets of oracles; positive: margins of the forgotten examples four deviations higher."""
    generator = np.random.default_rng(0)
    of_oracles = sets(generator, 20, 0)
    floor = oracles.figures(sets(generator, 20, 0), of_oracles)
    original = oracles.figures(sets(generator, 20, 4), of_oracles)
    assert floor["u-lira"] == pytest.approx(0.5, abs=0.05)
    assert floor["klom-forget-mean"] == pytest.approx(floor["klom-test-mean"], rel=0.15)
    assert original["klom-forget-mean"] > 2 * floor["klom-forget-mean"]
    assert original["klom-test-mean"] < 1.2 * floor["klom-test-mean"]
    assert original["u-lira"] > 0.95
    assert original["u-lira-centred"] > 0.95


def test_a_class_is_compared_on_all_clients_and_the_rest_on_other_classes(tmp_path):
    """What every client has of it is forgotten; test examples of it would be of what is forgotten, too."""
    experiment = read(tmp_path, KNOWING.replace('clients: ["0"]', "class: 3"))
    (case,) = experiment.cases
    data = SeedRun(tmp_path, experiment, experiment.settings[0], 1).data
    sites = [data.site(str(number)).targets for number in range(3)]
    audited = oracles.audited_examples(data, case)
    assert {*audited["forget"].targets.tolist()} == {3}
    assert len(audited["forget"]) == sum(int((labels == 3).sum()) for labels in sites)
    for name in ("retained", "test"):
        assert 3 not in audited[name].targets
    assert len(audited["test"]) == int((data.test.targets != 3).sum())
    assert oracles.audited_ends(data, case) is None


def test_a_model_that_blew_up_has_no_figures():
    """Nor has a method whose every seed failed."""
    generator = np.random.default_rng(0)
    broken = sets(generator, 4, 0)
    broken["forget"][2, 3] = np.inf
    assert oracles.figures(broken, sets(generator, 4, 0)) == {}
    assert oracles.figures({}, sets(generator, 4, 0)) == {}


def test_the_noise_of_a_client_reaches_its_directory_and_stays_known(tmp_path):
    """A tenth of the client's examples differ from the clean ones by what `planted` has."""
    text = KNOWING.replace("oracles: 4", "seeds: [5]")
    text += "settings: [{noise: {client: '1', share: 0.1, deviation: 0.5}}]\n"
    experiment = read(tmp_path, text)
    data: ClientData = SeedRun(tmp_path, experiment, experiment.settings[0], 5).data
    clean, noisy, planted = data._clean("1"), data.site("1"), data.planted()
    moved = np.flatnonzero((clean.inputs != noisy.inputs).flatten(1).any(dim=1).numpy())
    assert planted is not None
    assert set(clean.ids[moved]) == set(planted.clean.ids)
    assert len(planted.clean) == round(0.1 * len(clean))
    assert data.own_directory("0") is None
    assert make_task(data.task).num_classes == 10


def test_the_mean_hides_the_vulnerable_examples():
    """An Original knows eight of eighty examples, a method leaves it so: all is near ½, and those eight are found."""
    generator = np.random.default_rng(0)
    known = np.where(np.arange(80) < 8, 8.0, 0.0)
    of_oracles, original, unlearned = (sets(generator, 40, shift) for shift in (0, known, known))
    ends = mixed(vulnerability(original["forget"], of_oracles["forget"]), oracles.MIXED_SHARE)
    found = oracles.figures(unlearned, of_oracles, ends)
    assert found["u-lira"] < 0.6
    assert found["u-lira-vulnerable"] > 0.95
    assert found["u-lira-protected"] == pytest.approx(0.5, abs=0.1)
