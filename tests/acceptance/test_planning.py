"""Plans of a live federation: who can serve a request, at what price, and why the others cannot."""

import pytest

from server.requests.plan import Plan
from server.requests.planning import past_deletions, plan
from tests.federation import InProcessFederation, client
from unlearning.errors import UnknownClient
from unlearning.methods.registry import METHODS
from unlearning.plain import from_plain, to_plain
from unlearning.requests import Granularity, Status, Target

PARAMETERS = 650  # digits, logistic regression, 4 bytes each


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory):
    federation = InProcessFederation(tmp_path_factory.mktemp("plan"), {"prepare": "pga", "rounds": 3})
    federation.run()
    yield federation
    federation.close()


def by_name(found: Plan):
    return {item.method: item for item in found.methods}


def test_every_method_is_in_the_plan(trained):
    """One that cannot serve is there too, with the reason."""
    assert set(by_name(plan(trained.ledger, client("1")))) == set(METHODS)


def test_the_unprepared_are_refused_and_the_prepared_are_not(trained):
    """This federation prepares for PGA and not for FedEraser."""
    found = by_name(plan(trained.ledger, client("1")))
    assert not found["pga"].refusal
    assert 'prepare = "federaser"' in found["federaser"].refusal


def test_a_method_of_another_granularity_is_refused(trained):
    """PGA forgets whole clients."""
    samples = Target(Granularity.SAMPLE, "1", frozenset({"17"}))
    assert "works at the level(s) client" in by_name(plan(trained.ledger, samples))["pga"].refusal


def test_the_price_is_that_of_the_closed_formula(trained):
    """PUF-Special: the model to the target and back; Retrain: three rounds of three clients."""
    found = by_name(plan(trained.ledger, client("1")))
    model = 4 * PARAMETERS
    assert found["puf-special"].bytes == 2 * model
    assert found["retrain"].bytes == 2 * model * 3 * 3
    assert found["puf-special"].rounds == pytest.approx(1 / 3)


def test_those_that_can_serve_come_first(trained):
    """Sorted for a person who looks for a method, not for a reason."""
    refusals = [bool(item.refusal) for item in plan(trained.ledger, client("1")).methods]
    assert refusals == sorted(refusals)


def test_a_recovery_round_is_priced_by_the_rounds_that_were(trained):
    """Three clients stay; the seconds are measured."""
    found = plan(trained.ledger, client("1"))
    assert found.recovery_bytes == 2 * 4 * PARAMETERS * 3
    assert found.round_seconds is not None
    assert found.round_seconds > 0


def test_a_plan_survives_json(trained):
    """It travels as JSON."""
    found = plan(trained.ledger, client("1"))
    assert from_plain(Plan, to_plain(found)) == found


def test_an_unknown_client_has_no_plan(trained):
    """As on admission."""
    with pytest.raises(UnknownClient):
        plan(trained.ledger, client("99"))


def test_a_federation_that_has_not_started_has_no_plan(tmp_path):
    """There is nothing to plan with yet."""
    federation = InProcessFederation(tmp_path, {})
    try:
        with pytest.raises(UnknownClient, match="has not started"):
            plan(federation.ledger, client("1"))
    finally:
        federation.close()


def test_what_a_deletion_took_is_in_the_next_plan(tmp_path):
    """Medians over completed deletions of this federation, by method."""
    federation = InProcessFederation(tmp_path, {"rounds": 1, "recovery-max-rounds": 1})
    try:
        federation.run()
        assert past_deletions(federation.ledger) == {}
        request = federation.file(client("1"))
        federation.run(rounds=2)
        assert federation.ledger.get(request.id).status is Status.COMPLETED
        past = by_name(plan(federation.ledger, client("2")))["puf-special"].measured
        assert past is not None
        assert past.deletions == 1
        assert past.bytes >= 2 * 4 * PARAMETERS
        assert past.recovery_rounds == federation.ledger.get(request.id).result["recovery_rounds"]
    finally:
        federation.close()


def test_with_shards_a_client_concerns_its_own_and_a_class_all_of_them(tmp_path):
    """Four clients in two shards, two rounds: one neighbour trains again, or all four do."""
    federation = InProcessFederation(tmp_path, {"prepare": "sisa shards=2 slices=2", "rounds": 2})
    try:
        model = 4 * federation.run().parameters.size
        of_client = by_name(plan(federation.ledger, client("1")))["sisa"]
        of_class = by_name(plan(federation.ledger, Target(Granularity.CLASS, class_label=3)))["sisa"]
        assert of_client.bytes == 2 * model * 1 * 2
        assert of_class.bytes == 2 * model * 4 * 2
    finally:
        federation.close()
