"""`flower-unlearn bench --app`: an own app is compared by its own runs, and what cannot be is refused first."""

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.bench import own_app
from benchmarks.bench.own_app import values_of
from server.cli import app as commands
from server.cli.app_commands import new_command
from server.requests.comparisons import Comparison
from tests.raising import refuses
from unlearning.errors import AppError, ConfigurationError
from unlearning.methods.registry import METHODS
from unlearning.runtime.json_codec import from_plain


@pytest.fixture
def ward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """An app as `flower-unlearn new` writes it, of a package that no other test has."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    name = f"ward{abs(hash(request.node.name)) % 10**6}"
    new_command(f"a{name}", tmp_path)
    return tmp_path / f"a{name}"


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def module(ward: Path, name: str) -> Path:
    return ward / ward.name / f"{name}.py"


def test_the_experiment_of_an_app_has_every_method_that_goes_with_it(ward: Path) -> None:
    """What needs preparation is there where the app prepares for it; Retrain is what all are compared with."""
    change(ward / "pyproject.toml", 'prepare = ""', 'prepare = "federaser; pga"')
    found = values_of(str(ward))
    prepared = {one["method"]: one["prepare"] for one in found["methods"]}
    assert {"natural", "puf-special"} < {*prepared}
    assert not {"retrain", "exact-ridge", "sisa"} & {*prepared}
    assert (prepared["pga"], prepared["federaser"]) == ("pga", "federaser")
    assert [case["name"] for case in found["cases"]] == [
        "one client",
        "half of a client's samples",
        "a class",
    ]
    assert found["run"][f"{ward.name}.depth"] == 1


def test_a_directory_without_an_app_is_refused(tmp_path: Path) -> None:
    """Also one whose module has no load_test."""
    with refuses("--app"):
        values_of(str(tmp_path))


def test_an_app_without_the_functions_is_refused(ward: Path) -> None:
    """The sentence names the module and the function."""
    module(ward, "server_app").write_text("app = None\n")
    with refuses("--app") as caught:
        values_of(str(ward))
    assert "make_task" in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "old", "new"),
    [("num-clients", "num-clients = 3", "num-clients = 1"), ("rounds", "rounds = 10", "rounds = 0")],
)
def test_a_federation_that_cannot_be_compared_is_refused(
    ward: Path, setting: str, old: str, new: str
) -> None:
    """Before anything is computed."""
    change(ward / "pyproject.toml", old, new)
    with refuses(setting):
        values_of(str(ward))


def test_a_site_without_data_is_refused(ward: Path) -> None:
    """As many sites as num-clients says must have examples."""
    change(module(ward, "task"), "[site::num_sites]", "[site:site]")
    with refuses("client 0", "client 2"):
        values_of(str(ward))


def test_an_app_that_raises_is_named(ward: Path) -> None:
    """One sentence with the function."""
    change(module(ward, "task"), "    own = _rows()", '    raise OSError("no disk")\n    own = _rows()')
    with pytest.raises(AppError, match="load_site raised OSError: no disk"):
        values_of(str(ward))


@pytest.mark.parametrize(
    "arguments", [["--app", "X", "--seed", "0", "--seed", "0"], ["digits-small", "--app", "X"], []]
)
def test_too_few_seeds_and_two_experiments_are_refused(ward: Path, arguments: list[str]) -> None:
    """Nothing is written."""
    given = [str(ward) if one == "X" else one for one in arguments]
    done = CliRunner().invoke(commands, ["bench", *given, "--output", str(ward / "out")])
    assert done.exit_code == ConfigurationError.exit_code
    assert not (ward / "out").exists()


def test_the_list_comes_as_data_too() -> None:
    """`bench --list --json`, as other commands."""
    done = CliRunner().invoke(commands, ["bench", "--list", "--json"])
    names = {item["name"] for item in json.loads(done.stdout)}
    assert {"digits-small", "held-out-reuters-r8"} < names


@pytest.mark.slow
@pytest.mark.long
def test_own_runs_are_written_where_plans_read_them(ward: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three seeds of the app's own data: three cases, with date and seeds, and no other page.

    With two methods; that all are compared is the first test's.
    """
    monkeypatch.setattr(own_app, "METHODS", {name: METHODS[name] for name in ("natural", "puf-special")})
    change(ward / "pyproject.toml", "rounds = 10", "rounds = 1")
    change(ward / "pyproject.toml", "recovery-max-rounds = 5", "recovery-max-rounds = 0")
    seeds = ["--seed", "0", "--seed", "1", "--seed", "2"]
    given = ["bench", "--app", str(ward), *seeds, "--output", str(ward / "out"), "--work", str(ward / "work")]
    done = CliRunner().invoke(commands, [*given, "--state-dir", str(ward / "state")], catch_exceptions=False)
    assert done.exit_code == 0
    found = from_plain(list[Comparison], json.loads((ward / "state" / "comparisons.json").read_text()))
    assert [item.granularity for item in found] == ["client", "sample", "class"]
    assert {(item.page, item.num_seeds, bool(item.made_on)) for item in found} == {("", 3, True)}
    assert {item.num_parameters for item in found} == {30 * 16 + 16 + 16 * 2 + 2}
    page = (ward / "out" / f"{ward.name}.md").read_text()
    assert page.startswith(f"# The app {ward.name}")
