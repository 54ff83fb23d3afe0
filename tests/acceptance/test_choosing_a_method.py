"""`flower-unlearn methods` and `flower-unlearn plan` on a federation that has trained and has forgotten a client."""

import json
import re
from collections.abc import Callable, Iterator

import pytest
from typer.testing import CliRunner

from server.api.server import serve
from server.cli import app
from server.requests.plan import Plan
from server.requests.planning import plan
from tests.federation import InProcessFederation, client
from unlearning.methods.registry import METHODS
from unlearning.plain import from_plain

Command = Callable[..., str]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessFederation]:
    """Prepared for PGA, two rounds; client 0 was forgotten by PUF-Special."""
    settings = {"prepare": "pga", "rounds": 2, "recovery-max-rounds": 1, "max-examples": 200}
    one = InProcessFederation(tmp_path_factory.mktemp("choosing"), settings)
    one.run()
    one.file(client("0"))
    one.run()
    yield one
    one.close()


@pytest.fixture(scope="module")
def command(federation: InProcessFederation) -> Iterator[Command]:
    """Runs `flower-unlearn` on a wide screen; what it says, runs of white space as one blank."""
    running = serve(federation.ledger, federation.directory / "reports", "127.0.0.1:0")

    def run(*arguments: str) -> str:
        runner = CliRunner(env={"COLUMNS": "500"})
        done = runner.invoke(app, ["--server", running.address, *arguments])
        assert done.exit_code == 0, done.output
        return re.sub(r"\s+", " ", done.stdout.replace("│", " "))

    yield run
    running.stop(0)


def test_methods_says_what_each_method_is_needs_and_takes(command: Command) -> None:
    """Levels, paper, needs, what preparing keeps, and each parameter's default."""
    said = command("methods")
    for name, method in METHODS.items():
        info = method.info
        assert f" {name} " in said
        levels = ", ".join(sorted(info.granularities)) + ("" if info.several_at_once else " (one)")
        assert levels in said
        assert f"{info.title}: {info.source}" in said
        assert f"needs: {'; '.join(sorted(info.needs)) or 'nothing'}" in said
        assert info.preparation is None or f'prepare = "{name}", which keeps {info.preparation.keeps}' in said
        for parameter, field in method.Parameters.model_fields.items():
            default = json.loads(method.Parameters().model_dump_json())[parameter]
            assert field.is_required() or f"{parameter}={json.dumps(default)}" in said, (name, parameter)


def test_methods_says_what_past_deletions_took(command: Command) -> None:
    """Of those that there were: one, by PUF-Special."""
    found = re.findall(r"here: ([\d.e+-]+) s, [\d.]+ [kMG]?B \((\d+) deletion", command("methods"))
    assert [int(deletions) for _, deletions in found] == [1]


def test_plan_prices_those_that_can_serve_and_gives_the_others_reasons(
    command: Command, federation: InProcessFederation
) -> None:
    """Bytes, rounds and FLOPs of each that can; of each other its whole reason."""
    found = plan(federation.ledger, client("3"))
    said = command("plan", "--client", "3")
    assert {item.method for item in found.methods} == set(METHODS)
    for item in found.methods:
        assert f" {item.method} " in said
        if item.refusal:
            assert item.refusal in said
    special = next(item for item in found.methods if item.method == "puf-special")
    assert (special.bytes, special.rounds) == (2 * 650 * 4, 0.5)  # to one client and back; two clients stay
    assert special.flops is not None
    assert "5.2 kB" in said
    assert "= 0.5 round(s)" in said
    assert f"{special.flops:.3g} FLOPs" in said
    refused = {item.method for item in found.methods if item.refusal}
    assert refused == {"exact-ridge", "federaser", "fedau-learning", "hf-online", "sisa"}
    assert "Then recovery: at most 1 round(s)" in said


def test_plan_is_the_same_as_json(command: Command, federation: InProcessFederation) -> None:
    """For programs."""
    said = json.loads(command("plan", "--client", "3", "--json"))
    assert from_plain(Plan, said) == plan(federation.ledger, client("3"))
