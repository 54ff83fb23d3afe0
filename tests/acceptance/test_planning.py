"""Plans of a live federation, also as `flower-unlearn plan` and `methods` say them: who can serve, and at what price.

The federation is prepared for PGA and has trained two rounds; client 0 was forgotten by PUF-Special.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from server.cli import app
from server.requests.plan_data import Plan, PlannedMethod
from server.requests.planning import past_deletions, plan
from server.service.grpc_server import serve
from tests.federation import InProcessFederation, client
from unlearning.errors import UnknownClient
from unlearning.methods.registry import METHODS
from unlearning.requests import Granularity, Outcome, Target
from unlearning.runtime.json_codec import from_plain
from unlearning.verification.verdict import Finding, outcome_of

MODEL = 650 * 4
"""Its bytes: digits, logistic regression, 4 bytes each."""

NOW = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)

Command = Callable[..., str]


@pytest.fixture(scope="module")
def trained(shared_federation) -> InProcessFederation:
    one: InProcessFederation = shared_federation(
        prepare="pga", rounds=2, recovery_max_rounds=1, max_examples=200
    )
    one.run()
    assert past_deletions(one.ledger) == {}
    one.forget(client("0"))
    return one


@pytest.fixture(scope="module")
def found(trained: InProcessFederation) -> Plan:
    """The plan for client 3."""
    return plan(trained.ledger, client("3"), now=NOW)


@pytest.fixture(scope="module")
def command(trained: InProcessFederation) -> Iterator[Command]:
    """Runs `flower-unlearn` on a wide screen; what it says, runs of white space as one blank."""
    running = serve(trained.ledger, trained.directory / "reports", "127.0.0.1:0")

    def run(*arguments: str) -> str:
        runner = CliRunner(env={"COLUMNS": "500"})
        done = runner.invoke(app, ["--server", running.address, *arguments])
        assert done.exit_code == 0, done.output
        return re.sub(r"\s+", " ", done.stdout.replace("│", " "))

    yield run
    running.stop(0)


def by_name(found: Plan) -> Mapping[str, PlannedMethod]:
    return {item.method: item for item in found.methods}


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


def test_the_price_is_that_of_the_closed_formula(found: Plan) -> None:
    """PUF-Special: the model to the target and back; Retrain: two rounds of the two that stay, as one of recovery."""
    special, retrain = (by_name(found)[name] for name in ("puf-special", "retrain"))
    assert (special.bytes, special.rounds) == (2 * MODEL, 0.5)
    assert special.flops is not None
    assert retrain.bytes == 2 * MODEL * 2 * 2
    assert found.recovery_bytes == 2 * MODEL * 2
    assert found.round_seconds is not None
    assert found.round_seconds > 0


def test_the_unprepared_are_refused_and_come_last(found: Plan) -> None:
    """This federation prepares for PGA alone, and not with privacy; those that can serve come first."""
    assert set(by_name(found)) == set(METHODS)
    assert 'prepare = "federaser"' in by_name(found)["federaser"].refusal
    refused = [item.method for item in found.methods if item.refusal]
    assert set(refused) == {"dp-covered", "exact-ridge", "federaser", "fedau-learning", "hf-online", "sisa"}
    assert refused == [item.method for item in found.methods][-len(refused) :]


def test_plan_prices_those_that_can_serve_and_gives_the_others_reasons(command: Command, found: Plan) -> None:
    """Bytes, rounds and FLOPs of each that can; of each other its whole reason."""
    said = command("plan", "--client", "3")
    for item in found.methods:
        assert f" {item.method} " in said
        assert item.refusal in said
    assert "5.2 kB" in said
    assert "= 0.5 round(s)" in said
    assert f"{by_name(found)['puf-special'].flops:.3g} FLOPs" in said
    assert "Then recovery: at most 1 round(s)" in said


def test_a_plan_begins_with_what_it_recommends_and_a_request_without_a_method_gets_that(
    trained: InProcessFederation, command: Command, found: Plan
) -> None:
    """A model of 650 parameters is near to no measurement, so Retrain."""
    said = command("plan", "--client", "3")
    assert said.startswith(f"Recommended: retrain. {found.why}")
    assert found.methods[0].method == "retrain"
    assert by_name(found)["retrain"].guarantee in said
    assert by_name(found)["retrain"].reveals[0].name in said
    assert not found.cannot_show
    filed = trained.file(Target(Granularity.CLASS, class_label=3), method="")
    assert filed.method == plan(trained.ledger, filed.target, now=NOW).recommended
    trained.ledger.decisions.cancel(filed.id, by="ada", now=filed.created_at)


def test_a_plan_for_few_samples_says_what_tests_cannot_show(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three records nothing, of five hardly anything, of forty it says nothing."""
    monkeypatch.setattr("server.cli.plan_command._SITE_S", 0.0)  # no run is there that could ask the site
    for count, words in ((3, "no test can show"), (5, "at least 95 of 100 cases"), (40, "")):
        ids = tmp_path / "ids"
        ids.write_text("\n".join(map(str, range(count))))
        said = command("plan", "--client", "3", "--samples", str(ids))
        assert ("With" in said, words in said) == (bool(words), True)


def test_plan_is_the_same_as_json(command: Command, found: Plan) -> None:
    """For programs."""
    assert from_plain(Plan, json.loads(command("plan", "--client", "3", "--json"))) == found


def test_a_method_of_another_granularity_is_refused(trained: InProcessFederation) -> None:
    """PGA forgets whole clients."""
    samples = Target(Granularity.SAMPLE, "1", frozenset({"17"}))
    assert "works at the level(s) client" in by_name(plan(trained.ledger, samples, now=NOW))["pga"].refusal


def test_an_unknown_client_has_no_plan(trained: InProcessFederation, federation) -> None:
    """As on admission; and before the start there is nothing to plan with yet."""
    with pytest.raises(UnknownClient):
        plan(trained.ledger, client("99"), now=NOW)
    with pytest.raises(UnknownClient):
        plan(federation().ledger, client("1"), now=NOW)


def test_what_a_deletion_took_is_in_the_next_plan(trained: InProcessFederation, found: Plan) -> None:
    """Medians over completed deletions of this federation, by method."""
    request, *_ = trained.ledger.requests.select()
    past = by_name(found)["puf-special"].measured
    assert past is not None
    assert past.deletions == 1
    assert past.bytes >= 2 * MODEL
    assert past.recovery_rounds == request.result["recovery_rounds"]


def test_a_completed_request_has_one_outcome_in_ledger_report_and_certificate(
    trained: InProcessFederation,
) -> None:
    """That of the report's verdict: PUF proves nothing, and is not training without the data."""
    request, *_ = trained.ledger.requests.select()
    folder = trained.directory / "reports" / request.id
    report = json.loads((folder / "report.json").read_text())
    certified = json.loads((folder / "certificate.json").read_text())["certificate"]
    assert request.outcome is not None
    assert report["outcome"] == certified["outcome"] == request.outcome
    finding = Finding(report["attacks"]["verdict"])
    assert outcome_of(finding, is_exact=False, is_guaranteed=False) is request.outcome


def test_what_the_safest_method_forgot_is_retrained_and_answers_the_next_request(federation) -> None:
    """Without a method it is Retrain here; a second request for the same has that deletion's outcome."""
    one = federation(rounds=2, recovery_max_rounds=1, max_examples=200)
    one.run()
    done = one.forget(client("0"), method="")
    assert (done.method, done.outcome) == ("retrain", Outcome.RETRAINED)
    again = one.forget(client("0"), method="")
    assert (again.answered_by, again.outcome) == ((done.id,), Outcome.RETRAINED)


def test_with_shards_a_client_concerns_its_own_and_a_class_all_of_them(federation) -> None:
    """Four clients in two shards, two rounds: one neighbour trains again, or all four do."""
    one = federation(prepare="sisa shards=2 slices=2", rounds=2)
    model = 4 * one.run().parameters.size
    of_client = by_name(plan(one.ledger, client("1"), now=NOW))["sisa"]
    of_class = by_name(plan(one.ledger, Target(Granularity.CLASS, class_label=3), now=NOW))["sisa"]
    assert of_client.bytes == 2 * model * 1 * 2
    assert of_class.bytes == 2 * model * 4 * 2
