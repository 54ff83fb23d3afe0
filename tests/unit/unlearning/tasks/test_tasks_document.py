"""docs/reference-tasks.md names every model and data set."""

from pathlib import Path

from unlearning.tasks import DATASETS, MODELS


def test_every_model_and_data_set_is_documented():
    """A reader finds each name in backquotes."""
    text = (Path(__file__).parents[4] / "docs" / "reference-tasks.md").read_text(encoding="utf-8")
    assert [name for name in (*MODELS, *DATASETS) if f"`{name}`" not in text] == []
