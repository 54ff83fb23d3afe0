"""The `flwr` commands' arguments and answers are written and read without loss."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import flwr
import pytest
from flwr.common.config import parse_config_args

from server.operations import flower_control
from server.operations.flower_control import (
    DeploymentError,
    FlowerControl,
    config_argument,
    flower_environment,
    refuse_unusable_flower,
)
from tests.cases import LONG, slow_but
from tests.fake_flower import control_of_app
from tests.raising import raises

_MIGRATE = """
import sys
from sqlalchemy import create_engine, inspect
from flwr.supercore.state.alembic.utils import run_migrations
engine = create_engine(f"sqlite:///{sys.argv[1]}")
run_migrations(engine)
if inspect(engine).has_table("node"):
    print("tables")
"""


def a_control(directory: Path, output: str) -> FlowerControl:
    answer = subprocess.CompletedProcess(["flwr"], 0, output, "")
    return control_of_app(directory, lambda _: answer)


def test_flower_reads_what_is_written():
    """Flower's own parser gives every kind of value back as it was."""
    values = {"text": "two words,\tit's", "yes": True, "no": False, "count": 3, "rate": 1e-05, "none": ""}
    assert parse_config_args([config_argument(values)]) == values


@pytest.mark.parametrize("text", ['a "quoted" word', "back\\slash", "two\nlines", "nothing\x00", "\x1b[31m"])
def test_a_text_that_flower_cannot_carry_is_refused(text):
    """What would arrive as something else is refused, by its name."""
    with raises(DeploymentError, "no-spelling"):
        config_argument({"motto": text})


@pytest.mark.parametrize(
    "name", slow_but(["My Projects"], ["My Projects", "a,b", "50%", "plain", "müller;'s"], LONG)
)
def test_a_place_is_refused_where_a_superlink_makes_no_tables(tmp_path, name):
    """Flower's own migrations decide, run from a copy of its package in that place."""
    place = tmp_path / name
    shutil.copytree(Path(flwr.__file__).parent, place / "flwr", ignore=shutil.ignore_patterns("*.pyc"))
    done = subprocess.run(
        [sys.executable, "-c", _MIGRATE, str(tmp_path / "superlink.db")],
        env={**os.environ, "PYTHONPATH": str(place)},
        capture_output=True,
        text=True,
        check=False,
    )
    if "tables" in done.stdout:
        refuse_unusable_flower(place / "flwr")
    else:
        with raises(DeploymentError, "place-of-flower"):
            refuse_unusable_flower(place / "flwr")


def test_an_sqlite_with_which_a_superlink_ends_is_refused(monkeypatch):
    """Its log would have the syntax error of a migration."""
    monkeypatch.setattr(flower_control, "old_sqlite", lambda: "too old")
    with raises(DeploymentError, "old-sqlite"):
        refuse_unusable_flower()


@pytest.mark.parametrize(
    ("set_here", "expected"),
    [
        ({}, "localhost,127.0.0.1,::1"),
        ({"no_proxy": "example.org"}, "example.org,localhost,127.0.0.1,::1"),
        ({"NO_PROXY": "example.org"}, "example.org,localhost,127.0.0.1,::1"),
        ({"no_proxy": "*"}, "*"),
    ],
)
def test_flowers_programs_call_this_host_past_a_proxy(monkeypatch, set_here, expected):
    """A proxy cannot reach this host's loopback; what else goes past it stays."""
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in set_here.items():
        monkeypatch.setenv(name, value)
    assert flower_environment()["no_proxy"] == expected


def test_an_answer_is_found_behind_remarks(tmp_path):
    """Whatever is printed before the JSON, braces too, does not matter."""
    control = a_control(
        tmp_path, 'Note: {"half": \n{so}\n{"success": true, "run-id": "18446744073709551615"}'
    )
    assert control.submit_run({}) == 2**64 - 1


def test_a_failure_is_an_error_although_the_command_ends_well(tmp_path):
    """`flwr` ends with status 0 and says in its JSON that it failed."""
    control = a_control(tmp_path, '{"success": false, "error-message": "Connection is unavailable."}')
    with raises(DeploymentError, "refused", reason="Connection is unavailable."):
        control.runs()


def test_no_answer_is_an_error(tmp_path):
    """No JSON at all is told with what was printed instead."""
    with raises(DeploymentError, "no-answer"):
        a_control(tmp_path, "Traceback").runs()


def test_a_directory_without_an_app_is_refused(tmp_path):
    """Before anything is asked of it."""
    with raises(DeploymentError, "no-app"):
        FlowerControl(tmp_path, "here")


@pytest.mark.parametrize("config", ["config = 3", 'config = ["rounds"]'])
def test_an_app_whose_settings_are_no_table_is_refused(tmp_path, config):
    """Where they are looked through for secrets, before anything is submitted."""
    app = '[project]\nname = "a"\n[tool.flwr.app]\npublisher = "b"\n'
    (tmp_path / "pyproject.toml").write_text(app + config)
    with raises(DeploymentError, "no-app"):
        FlowerControl(tmp_path, "here").submit_run({})
