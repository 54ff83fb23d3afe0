"""The client's app: what travels to another process, and data that does not fit the task."""

import pickle
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from client import make_client_app
from client.app import app
from strategies.in_process_grid import InProcessGrid
from strategies.messages import TRAIN
from strategies.roster import Roster
from tests.small_app import SmallApp, load_site, make_task
from unlearning.errors import TrainingFailed
from unlearning.tasks import Site


def test_the_app_travels_to_another_process_by_what_it_is_made_of() -> None:
    """A simulation hands it to a Ray process with every message: its code stays where it is installed."""
    written = pickle.dumps(app)
    assert len(written) < 500
    there = InProcessGrid(pickle.loads(written), [{"client-id": "a"}], {})
    assert list(Roster().online(there)) == ["a"]


def unknown_classes(settings: Mapping[str, Any], node_config: Mapping[str, Any]) -> Site:
    """Return a site whose labels are 5 and 6, of a task with two classes."""
    site = load_site(settings, node_config)
    return replace(site, train=site.train.with_targets(site.train.targets + 5))


def test_data_that_does_not_fit_the_task_is_refused_at_the_site(tmp_path: Path) -> None:
    """With the sentence that says what is wrong, before anything is trained."""
    one = SmallApp(tmp_path)
    one.client = make_client_app(make_task, unknown_classes, table="own")
    with pytest.raises(TrainingFailed):
        one.run(rounds=1)
    said = one.errors(TRAIN)
    assert len(said) == 3
    assert all("whole numbers from 0 to 1" in sentence for sentence in said)
