"""What federation.toml says and what the newest run was started with are compared, setting by setting."""

import json
from pathlib import Path

import pytest

from server.operations.checklist import Level
from server.operations.checklist.applied import check_applied, unapplied
from server.operations.federation_toml import read_federation_file
from strategies.settings.run_config import RunSettings


def write(directory: Path, run: str, *, above: str = "") -> Path:
    path = directory / "federation.toml"
    path.write_text(f'state-dir = "{directory}"\n{above}\n[run]\n{run}\n')
    return path


def started_with(path: Path, **changes: object) -> None:
    """The ServerApp's own record of a run of this file, submitted when three clients were registered."""
    file = read_federation_file(path)
    given = {"start-clients": 3, **file.run_settings(), **changes}
    settings = RunSettings.from_run_config(
        {name: given[name] for name in given if "." not in name}
    ).to_run_config()
    (file.state_dir / "settings.json").write_text(json.dumps(settings))


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("rounds = 0", "rounds = 0", []),
        ("max-score-loss = 15", "max-score-loss = 15.0", []),
        ("rounds = 10", "rounds = 0", ["rounds is 10 in the run and 0 in the file"]),
        ("rounds = 3", "", ["rounds is 3 in the run and 10 in the file"]),  # taken out: the default counts
        ("", "start-clients = 2", ["start-clients is 3 in the run and 2 in the file"]),
        (
            "rounds = 10\nlocal-epochs = 1",
            "rounds = 0\nlocal-epochs = 2",
            ["local-epochs is 1 in the run and 2 in the file", "rounds is 10 in the run and 0 in the file"],
        ),
    ],
)
def test_settings_that_differ_are_named(tmp_path, before, after, expected):
    """With both values; a setting that was counted when the run was submitted does not differ."""
    started_with(write(tmp_path, before))
    assert unapplied(read_federation_file(write(tmp_path, after))) == expected


def test_the_name_of_the_federation_is_compared_too(tmp_path):
    """It is a setting of the run that lies above the tables."""
    started_with(write(tmp_path, ""))
    [found] = unapplied(read_federation_file(write(tmp_path, "", above='name = "hearts"')))
    assert found == "federation is 'main' in the run and 'hearts' in the file"


def test_settings_of_an_own_app_are_compared(tmp_path):
    """Those of its table, with the app's defaults."""
    app = tmp_path / "app"
    app.mkdir()
    (app / "pyproject.toml").write_text(
        '[project]\nname = "app"\n[tool.flwr.app]\npublisher = "tests"\n'
        "[tool.flwr.app.config]\nrounds = 4\n[tool.flwr.app.config.hospital]\ndepth = 3\n"
    )
    path = write(tmp_path, "", above=f'app = "{app}"')
    started_with(path, rounds=4)
    kept = tmp_path / "settings.json"
    kept.write_text(json.dumps({**json.loads(kept.read_text()), "hospital.depth": 3}))
    assert unapplied(read_federation_file(path)) == []
    path = write(tmp_path, "[run.hospital]\ndepth = 5", above=f'app = "{app}"')
    assert unapplied(read_federation_file(path)) == ["hospital.depth is 3 in the run and 5 in the file"]


def test_before_the_first_run_nothing_differs(tmp_path):
    """Nothing was started yet."""
    assert unapplied(read_federation_file(write(tmp_path, "rounds = 0"))) == []


@pytest.mark.parametrize("content", ["", "3", "[3]", "{", pytest.param("[" * 3000, id="deep")])
def test_damaged_settings_of_the_run_are_no_difference(tmp_path, content):
    """`model` says that they are damaged; `check` and the supervisor go on."""
    path = write(tmp_path, "")
    (tmp_path / "settings.json").write_text(content)
    assert unapplied(read_federation_file(path)) == []
    assert [finding.level for finding in check_applied(path)] == [Level.OK]


@pytest.mark.parametrize(
    "content", ["", "tool = 3", "[tool.flwr.app]\nconfig = 3", pytest.param("x = " + "[" * 3000, id="deep")]
)
def test_an_app_whose_settings_cannot_be_read_is_a_wrong_setting(tmp_path, content):
    """Whatever its pyproject.toml holds."""
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "pyproject.toml").write_text(content)
    path = write(tmp_path, "", above=f'app = "{tmp_path / "app"}"')
    started_with(path)
    assert [finding.level for finding in check_applied(path)] == [Level.PROBLEM]


def test_check_names_what_differs_and_what_to_do(tmp_path):
    """And a file that cannot be read."""
    path = write(tmp_path, "rounds = 0")
    started_with(path)
    assert [one.level for one in check_applied(path)] == [Level.OK]
    write(tmp_path, "rounds = 5")
    [different] = check_applied(path)
    assert different.level is Level.PROBLEM
    assert "rounds is 0 in the run and 5 in the file" in different.what
    assert "flwr stop RUN_ID" in different.mend
    for run, above in (("rounds = ", ""), ("rounds = -1", ""), ("", 'app = "/nowhere"')):
        [wrong] = check_applied(write(tmp_path, run, above=above))
        assert wrong.level is Level.PROBLEM
