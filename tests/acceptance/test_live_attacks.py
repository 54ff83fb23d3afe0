"""The attacks on a live federation: what the report of a real deletion holds."""

import pytest

from tests.federation import client
from unlearning.verification.figures import MIA_U
from unlearning.verification.standard_attacks import ATTACKS, ON_CHANGE


@pytest.fixture(scope="module")
def report(shared_federation):
    """The report of one client's deletion from a small network that has learnt the digits."""
    one = shared_federation(model="mlp", local_epochs=3, recovery_max_rounds=1, attack_samples=1000)
    one.run()
    return one.report(one.forget(client("1"), rounds=3).id)


def test_every_attack_runs_on_the_model_that_the_deletion_leaves(report):
    """Clients told enough for all of them, the change included; before it there is no change."""
    assert set(report["attacks"]["after"]) == set(ATTACKS)
    assert set(report["attacks"]["before"]) == set(ATTACKS) - {*ON_CHANGE}


def test_the_figures_rest_on_the_targets_own_examples(report):
    """As many as the set that was measured, each paired with its output before the deletion."""
    forgotten = report["measurements"][-1]["forgotten"]["num_examples"]
    for figure in report["attacks"]["after"].values():
        assert figure["num_forgotten"] == forgotten
    change = report["attacks"]["after"][MIA_U]["auc"]
    assert 0 <= change["low"] <= change["value"] <= change["high"] <= 1


def test_the_verdict_is_one_that_a_live_federation_may_give(report):
    """There is no retrained model here."""
    assert report["attacks"]["verdict"] in {"reduced", "not shown"}


def test_the_measured_bytes_agree_with_the_formulas(report):
    """PUF-Special sends the model once to the target and back; three clients recover for one round."""
    unlearning, recovery = report["formulas"]
    assert (unlearning["phase"], recovery["phase"]) == ("unlearning", "recovery")
    assert recovery["formula_bytes"] == 3 * unlearning["formula_bytes"]
    for line in report["formulas"]:
        assert line["ratio"] == pytest.approx(1, abs=0.01)
        assert line["formula_flops"] > 0
        assert line["explanation"] == ""
