"""Experiment files, tables and a whole small experiment."""

import json
import lzma
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from flwr.app import Message
from typer.testing import CliRunner

from benchmarks.bench import figures, runner, tables
from benchmarks.bench.cases import Case, Contender
from benchmarks.bench.columns import Column, Row, is_retrain
from benchmarks.bench.command import packed_rows
from benchmarks.bench.experiment import Experiment, found
from benchmarks.bench.experiment_files import SHIPPED, shipped_experiments
from benchmarks.bench.federations import SeedFederations, newest
from benchmarks.bench.parts import parts_of, row_path, seed_directory
from client.app import clients_in_process
from server.cli import app
from strategies import built_in
from strategies.messages import arrays_content, failure_values
from tests.experiments import read, rows_of, written
from unlearning.errors import ConfigurationError, DataError, TrainingFailed
from unlearning.evaluation import evaluate
from unlearning.requests import Granularity

TINY = """
name: tiny
title: A tiny experiment
run: {dataset: digits, model: logistic, num-clients: 3, rounds: 2, learning-rate: 0.5, recovery-max-rounds: 1,
      max-examples: 120}
seeds: [0]
cases:
  - {name: one client, clients: ["0"]}
methods: [natural, puf-special, {method: federaser, prepare: federaser}]
"""


SEVERAL = """
name: several
title: Two federations, one of them poisoned
run: {dataset: digits, model: mlp, num-clients: 3, rounds: 6, max-examples: 150, recovery-max-rounds: 0}
settings:
  - {name: clean}
  - {name: poisoned, backdoor: {client: "0", label: 7, share: 1.0, side: 3}}
seeds: [0]
cases: [{name: one client, clients: ["0"]}]
methods: [puf-special]
columns: [test, backdoor]
published:
  - {source: "A paper, Table 1", columns: [test], rows: {puf-special: ["99.9"]}, settings: [clean]}
"""

PRIVATE = TINY.replace(", {method: federaser, prepare: federaser}", "").replace(
    "recovery", "privacy: client, privacy-noise-multiplier: 1, fraction: 0.5, recovery"
)


@pytest.mark.parametrize("name", sorted(shipped_experiments()))
def test_every_shipped_experiment_is_in_order(name):
    """It reads, and is called what its file is called."""
    assert found(name).name == name


@pytest.mark.parametrize(
    ("text", "old", "new", "message"),
    [
        (TINY, "seeds: [0]", "seeds: []", "seeds"),
        (TINY, "seeds: [0]", "seeds: [0, 0]", "seeds: 0 is there twice"),
        (TINY, "seeds: [0]", "seeds: [-1]", "from 0 to 2147483647, not -1"),
        (TINY, "seeds: [0]", "seeds: [2147483648]", "from 0 to 2147483647, not 2147483648"),
        (TINY, 'clients: ["0"]', 'clients: ["0", "0"]', "one client: 0 is there twice"),
        (TINY, 'clients: ["0"]', 'clients: ["0", "1", "2"]', "none is left to train"),
        (TINY, "seeds: [0]", "seeds: [0]\ncolumns: [test, test]", "test is there twice"),
        (TINY, "run: {", "run: 3\nother: {", "run and each of sizes have names and values"),
        (TINY, TINY, "- pga", "is no experiment"),
        (TINY, "natural", "amnesia", "Unknown method 'amnesia'"),
        (TINY, "prepare: federaser", "prepare: ''", "it needs prepare"),
        (TINY, 'clients: ["0"]', 'clients: ["7"]', "there is no client 7"),
        (TINY, 'clients: ["0"]', "share: 0.5", "either clients or a class"),
        (TINY, "rounds: 2", "rounds: -2", "run: rounds"),
        (TINY, "natural, ", "natural, natural, ", "natural is there twice"),
        (TINY, "natural, ", "retrain, ", "have a row of that name"),
        (TINY, "title: A tiny experiment", "title: [a, b", "is no YAML"),
        (TINY, "seeds: [0]", "seeds: [0]\noracles: 4", "leave them out"),
        (TINY, "seeds: [0]", "oracles: 8\nshadows: 8", "give one of the two"),
        (TINY, "seeds: [0]", "shadows: 6", "even number from 8, not 6"),
        (TINY, "seeds: [0]\ncases:", "shadows: 8\ncases:\n  - {name: a class, class: 3}", "one case only"),
        (TINY, 'clients: ["0"]', 'clients: ["0"], mixed: 0.2', "whose seeds share their clients"),
        (TINY, 'clients: ["0"]', 'clients: ["0"], mixed: 0.2, share: 0.5', "without share or class"),
        (SEVERAL, "columns: [test, backdoor]", "columns: [taste]", "there is no 'taste'"),
        (SEVERAL, "rows: {puf-special", "rows: {natural", "no row 'natural' of ours"),
        (SEVERAL, '["99.9"]', "[1, 2]", "2 values for 1 columns"),
        (SEVERAL, "settings: [clean]", "settings: [green]", "no setting 'green'"),
        (SEVERAL, "name: poisoned", "name: clean", "clean is there twice"),
        (SEVERAL, 'client: "0"', 'client: "9"', "there is no client 9"),
        (TINY, "prepare: federaser", "prepare: 'federaser; pga every=2'", "Options of pga: none"),
        (TINY, "natural", "{method: pga, prepare: 'pga; federaser every=3'}", "cannot share one training"),
        (TINY, "natural", "dp-covered", "run, dp-covered: Covered by private training needs rounds"),
        (PRIVATE, "natural, ", "", "run, puf-special: PUF-Special .* without the noise"),
        (PRIVATE, "puf-special", "mode", "run, mode: MoDe puts what clients answer"),
        (SEVERAL, "[puf-special]", "[{method: exact-ridge, prepare: exact-ridge}]", "poisoned, exact-ridge"),
        (SEVERAL, 'name: one client, clients: ["0"]', "name: a class, class: 10", "no class 10"),
    ],
)
def test_a_wrong_file_is_refused_with_the_reason(tmp_path, text, old, new, message):
    """What is wrong is named before anything is trained, so that the file can be mended without reading our code."""
    with pytest.raises(ConfigurationError, match=message):
        read(tmp_path, text.replace(old, new))


def test_an_unknown_experiment_is_refused_with_the_list():
    """The message lists those that come along."""
    with pytest.raises(ConfigurationError):
        found("no-such-experiment")


def test_a_size_replaces_run_settings_one_by_one_and_everything_else_as_a_whole(tmp_path):
    """Of two run settings the size changes one; its seeds take the place of the file's."""
    path = written(tmp_path, TINY + "sizes: {small: {run: {rounds: 1}}, full: {seeds: [3, 4]}}\n")
    small, full = found(f"{path}:small"), found(f"{path}:full")
    assert (small.name, small.run["rounds"], small.run["num-clients"], small.seeds) == (
        "tiny-small",
        1,
        3,
        (0,),
    )
    assert (full.name, full.run["rounds"], full.seeds) == ("tiny-full", 2, (3, 4))
    with pytest.raises(ConfigurationError):
        found(str(path))
    with pytest.raises(ConfigurationError):
        found(f"{written(tmp_path, TINY)}:huge")


def test_a_case_says_at_which_level_it_forgets():
    """Whole clients, a share of samples, or a class; of four samples the first half is two."""
    assert Case(name="c", clients=("0",)).granularity is Granularity.CLIENT
    assert Case.model_validate({"name": "c", "class": 3}).granularity is Granularity.CLASS
    half = Case(name="c", clients=("0",), share=0.5)
    (target,) = half.targets({"0": ["d", "a", "b", "c"]})
    assert target.sample_ids == {"d", "a"}


def test_a_mixed_case_needs_models_that_can_be_trained_at_once(tmp_path):
    """A first pass trains twenty; Adam has no batched form."""
    text = TINY.replace("seeds: [0]", "oracles: 4").replace('clients: ["0"]', 'clients: ["0"], mixed: 0.2')
    assert read(tmp_path, text).cases[0].granularity is Granularity.SAMPLE
    with pytest.raises(ConfigurationError):
        read(tmp_path, text.replace("rounds: 2", "rounds: 2, optimizer: adamw"))


def test_what_a_run_computes_is_said(tmp_path):
    """Eight seeds, a case and two methods, one of which trains in a way of its own; oracles come in fives."""
    text = TINY.replace("seeds: [0]", "oracles: 8")
    text = text.replace("[natural, puf-special, {method: federaser, prepare: federaser}]",
                        "[natural, {method: hf-online, prepare: hf-online}]")  # fmt: skip
    experiment = read(tmp_path, text)
    assert runner.cost(experiment) == "16 trainings, 8 retrainings, 10 oracles, 16 deletions"
    with pytest.raises(ConfigurationError):
        read(tmp_path, TINY.replace("seeds: [0]", "shadows: 8")).of_number(9)


def test_a_method_runs_only_where_it_serves(tmp_path):
    """FedEraser forgets clients; it has no part in a case of samples."""
    text = TINY.replace('clients: ["0"]}', 'clients: ["0"], share: 0.5}')
    experiment = read(tmp_path, text)
    names = [part.name for part in parts_of(experiment, experiment.settings[0], 0)]
    assert names == ["original", "retrain", "natural", "puf-special"]


def row(seed: int, method: str, forget: float, size: int) -> dict:
    return {
        "seed": seed,
        "setting": "",
        "case": "one client",
        "method": method,
        "test": 0.5,
        "retained": 0.5,
        "forget": forget,
        "attacks": {},
        "bytes": size,
        "flops": 0.0,
        "seconds": 1.0,
        "recovery_rounds": 1,
    }


@pytest.mark.parametrize(
    ("values", "cell"),
    [
        ([0.1 + 0.2, 0.3, 0.3], "0.3 ± 0"),
        ([0.3, 0.3 + 1e-6, 0.3 - 1e-6], "0.3 ± 1e-06"),
        ([0.0, 0.0], "0 ± 0"),
        ([1e-20, 3e-20], "2e-20 ± 1.41e-20"),
    ],
)
def test_what_sums_are_rounded_by_is_no_spread(values, cell):
    """A spread that small beside the mean is not one of seeds."""
    rows = [{"seed": seed, "value": value} for seed, value in enumerate(values)]
    assert Column("value", lambda row: row["value"]).cell("puf", rows, []) == cell


def test_a_table_shows_mean_spread_distance_and_gain_and_who_failed(tmp_path):
    """By hand: 60 and 85 % against 50 and 90 %: mean 72.5, distances 10 and 5; 100 bytes to 400: 4 times."""
    failed = {"seed": 0, "setting": "", "case": "one client", "method": "natural", "attacks": {}}
    rows = [
        row(0, "puf-special", 0.6, 100),
        row(1, "puf-special", 0.85, 100),
        row(0, "retrain", 0.5, 400),
        row(1, "retrain", 0.9, 400),
        failed | {"failed": "failed: it blew up"},
    ]
    experiment = read(tmp_path, TINY)
    text = tables.markdown(experiment, rows, "flower-unlearn bench tiny", {"experiment": "tiny"})
    assert "72.5 (7.5 ± 3.5)" in text
    assert "70.0 ± 28.3" in text  # Retrain's own spread
    assert "100 (4×)" in text
    assert "- natural, seed 0: failed: it blew up" in text
    assert "| natural | – | – |" in text
    assert figures.draw(experiment, rows, tmp_path / "tiny") == []


@dataclass(frozen=True, slots=True)
class Ran:
    """The tiny experiment, run once for several tests, each on a copy of its work."""

    experiment: Experiment
    work: Path
    rows: list[dict[str, Any]]
    seen: list[tuple[int, int]]

    def copy(self, to: Path) -> Path:
        """Copy the work, with its files' times."""
        return Path(shutil.copytree(self.work, to / "work"))


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> Ran:
    """Run it."""
    directory = tmp_path_factory.mktemp("tiny")
    experiment, seen = read(directory, TINY), []
    rows = runner.run(
        experiment, directory / "work", jobs=1, progress=lambda done, total, _: seen.append((done, total))
    )
    return Ran(experiment, directory / "work", rows, seen)


def test_a_whole_experiment_runs_and_goes_on_where_it_stopped(tmp_path, ran):
    """Every part gives a row; a second run does no part again; tables and figures come out."""
    experiment, rows = ran.experiment, ran.rows
    ran.copy(tmp_path)
    assert [item["method"] for item in rows] == ["original", "retrain", "natural", "puf-special", "federaser"]
    assert ran.seen[-1] == (5, 5)
    by_name = {item["method"]: item for item in rows}
    assert by_name["federaser"]["server_bytes"] > 0 == by_name["puf-special"]["server_bytes"]
    assert by_name["natural"]["bytes"] > 0
    assert by_name["retrain"]["bytes"] < by_name["original"]["bytes"]
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "work").rglob("*--*.json")}
    assert len(files) == 5
    assert rows == rows_of(experiment, tmp_path / "work")
    assert files == {path: path.stat().st_mtime_ns for path in files}
    assert json.dumps(rows)
    (original,) = (tmp_path / "work").glob("*/seed-0/original-*")
    histories = list((original / "kept").rglob("*.npz"))
    assert histories
    for path in histories:  # each method worked on a copy: what it erased there is whole here
        assert np.load(path).files
    (figure,) = figures.draw(experiment, rows, tmp_path / "tiny")
    assert 10_000 < figure.stat().st_size < 100_000
    text = tables.markdown(experiment, rows, "a command", runner.circumstances(experiment, rows))
    assert "| federaser |" in text


def test_a_folder_of_work_may_be_relative(tmp_path, monkeypatch):
    """As the command's own is; its federations are given whole paths."""
    monkeypatch.chdir(tmp_path)
    experiment = read(tmp_path, TINY)
    federations = SeedFederations(Path("work"), experiment, experiment.settings[0], 0)
    settings = federations.settings(federations.directory / "original")
    assert settings.state_dir == str(tmp_path / federations.directory / "original")
    (node, *_) = federations.grid(settings).contexts.values()
    assert node.node_config["state-dir"].startswith(f"{settings.state_dir}/")


@pytest.mark.slow
@pytest.mark.long
def test_parts_side_by_side_give_the_rows_of_one_after_the_other(tmp_path):
    """Three at a time in one seed wait for each other's federations and train none of them twice."""
    text = TINY.replace("methods: [", "methods: [{method: sisa, prepare: sisa}, ")
    experiment = read(tmp_path, text)
    alone = rows_of(experiment, tmp_path / "alone")
    together = rows_of(experiment, tmp_path / "together", jobs=3)
    # An answer says how much memory its process took: a figure with a digit more is a byte more.
    assert [row["bytes"] for row in together] == pytest.approx([row["bytes"] for row in alone], rel=1e-3)
    for rows in (alone, together):
        for row in rows:
            for name in ("wall_seconds", "seconds", "peak_memory", "bytes", "load"):
                row.pop(name)
    assert together == alone
    trained = [
        sorted(path.name for path in (tmp_path / work).glob("*/seed-0/original-*"))
        for work in ("alone", "together")
    ]
    assert trained[0] == trained[1]
    assert len(trained[0]) == 2  # SISA trains in a way of its own


def test_the_federations_come_before_the_methods_and_seeds_take_turns(tmp_path):
    """No job waits for what could have been done first."""
    experiment = read(tmp_path, TINY.replace("seeds: [0]", "seeds: [0, 1]"))
    turns = runner._turns(experiment, runner._seed_runs(tmp_path, experiment))
    assert [(number, part.name) for number, part in turns[:5]] == [
        (0, "original"),
        (1, "original"),
        (0, "retrain"),
        (1, "retrain"),
        (0, "natural"),
    ]
    assert len(turns) == 10


def test_other_settings_have_parts_of_their_own(tmp_path):
    """Finished parts of another configuration are never mixed in; how recovery goes decides rows, not the training."""
    one = read(tmp_path, TINY)
    longer = read(tmp_path, TINY.replace("rounds: 2", "rounds: 3"))
    recovered = read(tmp_path, TINY.replace("recovery-max-rounds: 1", "recovery-max-rounds: 2"))
    places = [seed_directory(tmp_path, item, item.settings[0], 0) for item in (one, longer, recovered)]
    assert places[0] != places[1]
    assert places[0] == places[2]
    parts = [parts_of(item, item.settings[0], 0)[-1] for item in (one, recovered)]
    assert row_path(places[0], one, parts[0]) != row_path(places[0], recovered, parts[1])


def test_what_is_finished_is_written_and_what_is_missing_is_said(tmp_path, ran):
    """A row came from another machine, one is not there yet: the page names both machines and the method."""
    experiment, rows, work = ran.experiment, ran.rows, ran.copy(tmp_path)
    (missing,) = work.rglob("*--puf-special-*.json")
    missing.unlink()
    (elsewhere,) = work.rglob("*--natural-*.json")
    row_there = json.loads(elsewhere.read_text())
    elsewhere.write_text(json.dumps({**row_there, "made": {**row_there["made"], "machine": "a large one"}}))
    found_rows = runner.finished(experiment, work)
    assert [row["method"] for row in found_rows] == ["original", "retrain", "natural", "federaser"]
    facts = runner.circumstances(experiment, found_rows)
    assert facts["machine"] == f"a large one; {rows[0]['made']['machine']}"
    assert facts["not run"] == "1 of 5 parts"
    assert "wanted a processor" in facts["load"]
    assert "Not run: puf-special." in tables.markdown(experiment, found_rows, "a command", facts)


def test_clients_of_one_process_load_their_data_once(tmp_path, monkeypatch):
    """Three clients answer twenty messages and more; each reads its data for training and for the measurement."""
    loads = []
    load_site = built_in.load_site
    monkeypatch.setattr(built_in, "load_site", lambda *given: loads.append(given) or load_site(*given))
    experiment = read(tmp_path, TINY.replace("rounds: 2", "rounds: 12"))
    run = runner._seed_runs(tmp_path, experiment)[0]
    run.row(parts_of(experiment, experiment.settings[0], 0)[1])
    assert len(loads) <= 3 * 4


def test_recovery_from_a_class_aims_at_what_retrain_scores_without_it(tmp_path):
    """Counted by hand from the retrained model's answers; over all classes it is lower by the class's share."""
    a_class = TINY.replace('{name: one client, clients: ["0"]}', "{name: a class, class: 3}")
    experiment = read(tmp_path, a_class)
    run = runner._seed_runs(tmp_path, experiment)[0]
    retrain = parts_of(experiment, experiment.settings[0], 0)[1]
    row = run.row(retrain)
    model = newest(run.federations.retrained_directory(retrain.case)).parameters
    test = run.data.test
    right = evaluate(run.federations.task_of(run.federations.run), model, test).score
    target = run._recovery_target(retrain.case, row)
    assert target == pytest.approx(float(right[test.targets != 3].mean()))
    assert target == pytest.approx(
        row["test"] / (test.targets != 3).float().mean().item()
    )  # of the class none is right


def test_a_page_names_the_command_with_what_replaced_the_experiments_numbers(tmp_path):
    """`--oracles` and `--seed` decide the rows, so that the page's command must have them; paths do not."""
    path = written(tmp_path, TINY)
    page = tmp_path / "tiny.md"
    for options in ([], ["--oracles", "2"], ["--seed", "0", "--seed", "1"]):
        given = ["bench", str(path), *options]
        where = ["--only-finished", "--output", str(tmp_path), "--work", str(tmp_path / "work")]
        done = CliRunner().invoke(app, [*given, *where])
        assert done.exit_code == 0, done.output
        assert f"\n    flower-unlearn {' '.join(given)}\n" in page.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.long
def test_the_medium_experiments_run_in_their_smallest_form(tmp_path):
    """The command of docs/results, on embedded data: both settings, all three cases, every method has a row."""
    medium = yaml.safe_load((SHIPPED / "fashion-mnist.yaml").read_text(encoding="utf-8"))
    medium["sizes"]["medium"]["run"] |= {
        "dataset": "digits", "model": "mlp", "rounds": 2, "recovery-max-rounds": 1, "max-examples": 200,
    }  # fmt: skip
    medium["seeds"] = [0]
    path = written(tmp_path, yaml.safe_dump(medium))
    arguments = ["bench", f"{path}:medium", "--output", str(tmp_path), "--work", str(tmp_path / "work")]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    page = (tmp_path / "fashion-mnist-medium.md").read_text(encoding="utf-8")
    assert page.count("## ") == 7  # two settings of three cases, and how it was made
    assert "Not run" not in page
    again = CliRunner().invoke(app, [*arguments, "--only-finished"])
    assert again.exit_code == 0, again.output
    assert (tmp_path / "fashion-mnist-medium.md").read_text(encoding="utf-8") == page


@pytest.mark.slow
def test_settings_are_federations_of_their_own_and_a_paper_stands_below_ours(tmp_path):
    """The backdoor succeeds where it was planted and not after Retrain; the paper's row is where it was asked for."""
    experiment = read(tmp_path, SEVERAL)
    rows = rows_of(experiment, tmp_path / "work")
    found = {(row["setting"], row["method"]): row.get("backdoor") for row in rows}
    assert found["clean", "original"] is None
    assert found["poisoned", "original"] > found["poisoned", "retrain"] + 0.2
    text = tables.markdown(experiment, rows, "a command", {"experiment": "several"})
    clean, poisoned = text.split("## ")[1:3]
    assert "| *A paper* | *99.9* |" in clean
    assert "backdoor succeeds % (Δ)" not in clean
    assert "*A paper*" not in poisoned
    assert "backdoor succeeds % (Δ)" in poisoned


OTHER_KINDS = """
name: other-kinds
title: Methods whose models ordinary training does not give
run: {dataset: digits, model: logistic, num-clients: 4, rounds: 3, max-examples: 200, recovery-max-rounds: 3}
seeds: [0]
cases: [{name: one client, clients: ["0"]}]
methods:
  - natural
  - {method: exact-ridge, prepare: exact-ridge}
  - {method: sisa, prepare: sisa shards=2}
"""


@pytest.mark.slow
@pytest.mark.long
def test_a_method_of_another_kind_is_compared_with_a_retrain_of_its_kind(tmp_path):
    """Both are exact: their distance is nothing or rounding, whatever ordinary retraining gives."""
    experiment = read(tmp_path, OTHER_KINDS)
    rows = {row["method"]: row for row in rows_of(experiment, tmp_path / "work")}
    assert [name for name in rows if is_retrain(name)] == [
        "retrain",
        "retrain, by exact-ridge",
        "retrain, by sisa",
    ]
    for name in ("exact-ridge", "sisa"):
        assert rows[name]["parameter_gap"] < 1e-6
        assert rows[name]["agreement"] == 1
        assert rows[name]["forget"] == rows[f"retrain, by {name}"]["forget"]
        assert rows[name]["recovery_rounds"] == 0
    assert rows["natural"]["parameter_gap"] > 1e-3
    assert rows["exact-ridge"]["forget"] != rows["retrain"]["forget"]
    text = tables.markdown(experiment, list(rows.values()), "a command", {"experiment": "other-kinds"})
    shown = f"{100 * rows['exact-ridge']['test']:.1f}"
    assert f"| exact-ridge | {shown} (0.0) |" in text
    assert f"| retrain, by exact-ridge | {shown} |" in text
    assert "3 retrainings" in runner.cost(experiment)


def test_an_experiment_with_oracles_refuses_a_method_that_has_none_of_its_kind(tmp_path):
    """Oracles are retrained ordinarily."""
    text = OTHER_KINDS.replace("seeds: [0]", "oracles: 2")
    with pytest.raises(ConfigurationError):
        read(tmp_path, text)


def test_a_method_that_trains_alone_shares_no_original():
    """SISA's shards are a training of their own; PGA's last model is kept beside the common one."""
    assert Contender(method="sisa", prepare="sisa").trains_alone
    assert not Contender(method="pga", prepare="pga").trains_alone


def test_the_documented_experiment_is_in_order(tmp_path):
    """What docs/how-to-write-an-experiment.md shows as an experiment file is one, in both of its sizes."""
    document = Path(__file__).parents[4] / "docs" / "how-to-write-an-experiment.md"
    (example,) = re.findall(r"```yaml\n(.*?)```", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    path = written(tmp_path, example)
    assert found(f"{path}:small").run["max-examples"] == 500
    assert len(found(f"{path}:full").seeds) == 5


def failing_from(number: int):
    """Clients that answer everything but the training of round `number` and later."""
    answer, refusal = clients_in_process(), failure_values(DataError("the disk is full"))

    def fail(message, context):
        if message.metadata.message_type == "train" and int(message.metadata.group_id) >= number:
            return Message(arrays_content({}, refusal), reply_to=message)
        return answer(message, context)

    return fail


def broken_once(kind: str):
    """Clients of which one raises at its first message of a kind, as where memory is at an end."""
    answer, left = clients_in_process(), ["1"]

    def fail(message, context):
        if message.metadata.message_type == kind and context.node_config["client-id"] in left:
            left.clear()
            raise MemoryError("no more of it")
        return answer(message, context)

    return fail


@pytest.mark.slow
def test_a_round_in_which_every_client_fails_ends_the_bench(tmp_path, monkeypatch):
    """The sentence names seed, part, round and reason; no row is written; when the cause is gone the bench goes on."""
    experiment = read(tmp_path, TINY)
    monkeypatch.setattr("client.app.clients_in_process", lambda: failing_from(2))
    with pytest.raises(
        TrainingFailed, match=r"Seed 0, original: .* round 2; of client 0: .*the disk is full.* \(2 more"
    ):
        rows_of(experiment, tmp_path / "work")
    assert list((tmp_path / "work").rglob("*--*.json")) == []
    monkeypatch.undo()
    assert len(rows_of(experiment, tmp_path / "work")) == 5


@pytest.mark.slow
@pytest.mark.long
def test_a_client_whose_code_raises_ends_the_bench(tmp_path, monkeypatch):
    """There is no row without it; and with it they are those of a bench in which nothing happened."""
    experiment = read(tmp_path, TINY.replace("natural, puf-special,", "{method: puf-special}, newton-cg,"))

    def rows(work: str) -> list[Row]:
        found = rows_of(experiment, tmp_path / work)
        return [{name: row[name] for name in ("method", "test", "forget", "bytes")} for row in found]

    undisturbed = rows("undisturbed")
    for kind in ("train", "train.unlearn", "evaluate"):
        clients = broken_once(kind)
        with monkeypatch.context() as patch:
            patch.setattr("client.app.clients_in_process", lambda clients=clients: clients)
            with pytest.raises(TrainingFailed):
                rows(kind)
        assert rows(kind) == undisturbed


def test_rows_are_kept_to_six_digits():
    """Floats in all depths; whole numbers, words and what is not a number stay as they are."""
    row = {
        "seed": 123456789,
        "method": "natural",
        "figures": {"a": [0.123456789, -1234567.89], "b": None},
        "x": 1e-20,
    }
    [line] = lzma.decompress(packed_rows([row])).decode().splitlines()
    assert json.loads(line) == {**row, "figures": {"a": [0.123457, -1234570.0], "b": None}}
