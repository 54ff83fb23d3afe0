"""A model that has no room is refused in one sentence before the first round, at the server and at a site."""

from types import SimpleNamespace

import pytest

from client import site_work
from server import app
from strategies.settings.run_config import RunSettings
from tests.federation import SMALL
from tests.raising import refuses
from unlearning.errors import TrainingFailed
from unlearning.training import initial_parameters


def test_a_model_without_room_on_the_servers_disk_is_refused_and_nothing_is_written(federation, monkeypatch):
    """Three checkpoints and the one that is being written; with exactly as much room it runs."""
    one = federation(**SMALL)
    size = initial_parameters(one.task, 0).nbytes
    monkeypatch.setattr(app, "disk_usage", lambda _: SimpleNamespace(free=4 * size - 1))
    with refuses("state-dir"):
        one.run(rounds=1)
    assert not any((one.directory / "checkpoints").iterdir())
    monkeypatch.setattr(app, "disk_usage", lambda _: SimpleNamespace(free=4 * size))
    assert one.run(rounds=1).round == 1


def test_a_model_that_no_stream_carries_is_refused(federation, monkeypatch):
    """By its size; Flower's messages carry it."""
    one = federation(**SMALL)
    over_sessions = RunSettings.from_run_config(
        {**one.run_config, "transport": "session", "session-address": "127.0.0.1:9101"}
    )
    monkeypatch.setattr(app, "disk_usage", lambda _: SimpleNamespace(free=2**50))
    with refuses("transport"):
        app._check_room(over_sessions, one.directory, 2**33 + 1)
    app._check_room(over_sessions, one.directory, 2**33)
    app._check_room(one.app_run.settings, one.directory, 2**33 + 1)


def test_a_site_without_memory_for_the_model_says_so_and_the_others_go_on(federation, monkeypatch, caplog):
    """Before it loads anything; once it has the memory it trains."""
    one = federation(**SMALL)
    needed = site_work.MODELS_HELD * initial_parameters(one.task, 0).nbytes
    asked = iter([needed // 2])
    monkeypatch.setattr(site_work, "free_memory", lambda: next(asked, 2 * needed))
    state = one.run(rounds=1)
    assert len(state.num_examples) == 2
    [line] = [line for line in caplog.messages if "did not take part" in line]
    assert "memory" in line
    assert len(one.run(rounds=2).num_examples) == 3


def test_a_run_in_which_no_site_has_the_memory_ends_with_the_sentence(federation, monkeypatch):
    """It trains nothing."""
    monkeypatch.setattr(site_work, "free_memory", lambda: 0)
    with pytest.raises(TrainingFailed, match="GB of memory"):
        federation(**SMALL).run(rounds=1)
