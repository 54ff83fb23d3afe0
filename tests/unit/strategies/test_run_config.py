"""The run configuration is validated once, with all errors at once."""

import tomllib
from pathlib import Path

import pytest

from strategies.run_config import RunSettings, local_seed
from unlearning.errors import ConfigurationError


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


def test_a_wrong_data_set_names_the_allowed_ones():
    """Task settings are checked in the same place."""
    with pytest.raises(ConfigurationError, match="digits"):
        RunSettings.from_run_config({"dataset": "no-such-data"})


def test_pyproject_lists_every_setting_with_its_default():
    """`flwr run` only accepts overrides of settings that pyproject.toml names."""
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8")
    written = tomllib.loads(text)["tool"]["flwr"]["app"]["config"]
    defaults = {name.replace("_", "-"): value for name, value in RunSettings().model_dump().items()}
    assert written == defaults


def test_docs_explain_every_setting():
    """docs/configuration.md has a row for each."""
    text = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text(encoding="utf-8")
    missing = [
        name for field in RunSettings.model_fields if f"`{(name := field.replace('_', '-'))}`" not in text
    ]
    assert missing == []


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
