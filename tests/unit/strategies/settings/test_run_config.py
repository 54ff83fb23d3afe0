"""The run configuration is validated once, with all errors at once."""

import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from benchmarks.settings_tables import FILES
from strategies.settings.run_config import RunSettings, local_seed
from tests.raising import refuses
from unlearning.errors import ConfigurationError
from unlearning.local_training import LocalTraining
from unlearning.training import TrainingSettings


def test_every_error_is_reported_at_once_with_what_is_allowed():
    """Four wrong settings give four sentences."""
    with pytest.raises(ConfigurationError) as caught:
        RunSettings.from_run_config(
            {"rounds": -1, "optimizer": "newton", "no-such-setting": 1, "learning-rate": 0.0}
        )
    text = str(caught.value)
    assert len(caught.value.problems) == 4
    assert "'sgd', 'adam' or 'adamw'" in text
    assert "no-such-setting" in text
    assert "learning-rate" in text


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({"dataset": "no-such-data"}, "dataset"),
        ({"max-norm-factor": 0.5}, "max-norm-factor"),
        *(
            ({"client-example-limits": text}, "client-example-limits")
            for text in ("large", "=3", "large=many", "large=0", "a=1; a=2")
        ),
        ({"session-address": "9101"}, "session-address"),
        ({"state-dir": "state"}, "state-dir"),
        ({"session-address": "localhost:0"}, "session-address"),
        ({"session-address": "https://localhost:9101"}, "session-address"),
        ({"session-address": "::1:9101"}, "session-address"),
        ({"session-bind": "127.0.0.1:9101"}, "session-bind"),
        (
            {"session-address": "localhost:9101", "session-tls-ca": "ca.crt"},
            "session-tls-ca, session-tls-cert, session-tls-key",
        ),
    ],
)
def test_a_wrong_setting_is_refused_with_what_is_allowed(settings, wrong):
    """Before the first round: of the task, and of what stands beside it."""
    with refuses(wrong):
        RunSettings.from_run_config(settings)


@pytest.mark.parametrize("given", [True, False])
def test_true_and_false_are_no_numbers(given):
    """`rounds = false` would be rounds without end, and `max-influence-factor = true` the narrowest bound there is."""
    numbers = [name for name, value in RunSettings().to_run_config().items() if type(value) in (int, float)]
    with pytest.raises(ConfigurationError) as caught:
        RunSettings.from_run_config(dict.fromkeys(numbers, given))
    refused = {problem.partition(":")[0] for problem in caught.value.problems if f"got {given}" in problem}
    assert refused == set(numbers)


def test_pyproject_lists_every_setting_with_its_default():
    """`flwr run` only accepts overrides of settings that pyproject.toml names."""
    text = (Path(__file__).parents[4] / "pyproject.toml").read_text(encoding="utf-8")
    assert tomllib.loads(text)["tool"]["flwr"]["app"]["config"] == RunSettings().to_run_config()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_docs_and_defaults_are_those_of_the_definitions(path):
    """`make docs` would change nothing."""
    text = path.read_text(encoding="utf-8")
    assert FILES[path](text) == text


def test_docs_explain_every_setting():
    """docs/reference-settings.md has a row for each, with its default and a sentence."""
    text = (Path(__file__).parents[4] / "docs" / "reference-settings.md").read_text(encoding="utf-8")
    of_a_run, _, _ = text.partition("\n## Retention")
    rows = re.findall(r"(?m)^\| `([a-z0-9-]+)` \| \S+ \| .+ \|$", of_a_run)
    assert sorted(rows) == sorted(RunSettings().to_run_config())


def test_a_run_has_no_copy_of_a_field():
    """Each is defined in one of the groups that a run's settings are made of."""
    assert "__annotations__" not in vars(RunSettings)
    groups = [item.name for group in RunSettings.__bases__ for item in fields(group)]
    assert sorted(groups) == sorted(item.name for item in fields(RunSettings))


def test_what_is_wrong_in_itself_and_what_does_not_go_together_are_told_at_once():
    """A value of the wrong type hides no other mistake."""
    with pytest.raises(ConfigurationError) as caught:
        RunSettings.from_run_config(
            {"rounds": "many", "dataset": "no-such-data", "session-bind": "localhost:1"}
        )
    assert len(caught.value.problems) == 3
    assert "rounds: " in caught.value.problems[0]


def test_the_learning_rate_decays_from_the_second_round():
    """Round 1 has the full rate, round r has it times decay to the power r − 1."""
    settings = RunSettings.from_run_config({"learning-rate": 0.1, "learning-rate-decay": 0.5})
    assert settings.training(1).learning_rate == pytest.approx(0.1)
    assert settings.training(3).learning_rate == pytest.approx(0.025)


def test_local_seeds_differ_by_client_and_round_and_are_stable():
    """One fixed value guards against a change of the recipe, which would change every run."""
    seeds = {local_seed(0, client, number) for client in ("0", "1") for number in (1, 2)}
    assert len(seeds) == 4
    assert local_seed(0, "3", 7) == local_seed(0, "3", 7)


def test_a_run_sets_nothing_of_training_by_a_name_that_means_something_else():
    """Settings reach training by name: what methods alone set there has no name of a run's setting."""
    of_methods = {item.name for item in fields(TrainingSettings)} - {
        item.name for item in fields(LocalTraining)
    }
    assert of_methods & {item.name for item in fields(RunSettings)} == {"seed"}
    assert RunSettings().training(1).clip_norm == 0
