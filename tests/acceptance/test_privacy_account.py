"""What deletions with noise use up of a budget, on a live federation: reports, the ledger, the door, restarts."""

import json

import numpy as np
import pytest

from server.accounting import FINDING, earlier_releases
from tests.federation import InProcessFederation, client
from unlearning.certified import Basis, analytic_sigma, create_key
from unlearning.errors import UnsupportedRequest
from unlearning.parameters import content_hash
from unlearning.requests import Status

SMALL = {
    "num_clients": 4,
    "max_examples": 150,
    "recovery_max_rounds": 0,
    "attack_samples": 20,
    "learning_rate": 0.02,
    "weight_decay": 0.1,
    "dtype": "float64",
}
BUDGET = "hf-online feature_norm=9 sigma=0.5 epsilon=1 delta=1e-5"


def account(one: InProcessFederation, request_id: str) -> dict:
    """What the report of a deletion says of the account."""
    report = json.loads((one.directory / "reports" / request_id / "report.json").read_text())
    return report["unlearning"]["findings"][FINDING]


def deleted(one: InProcessFederation, name: str, rounds: int, **parameters) -> dict:
    """The account after a deletion, which must have been completed."""
    request = one.file(client(name), "hf-online", **parameters)
    one.run(rounds=rounds)
    assert one.ledger.get(request.id).status is Status.COMPLETED, one.ledger.get(request.id).reason
    return account(one, request.id)


def test_the_budget_is_used_up_by_all_deletions_together_and_the_bound_is_proven(federation):
    """Logistic regression with L2: certified; the second deletion's Δ contains the first's, over a restart."""
    one = federation(prepare=BUDGET, **SMALL)
    one.run(rounds=2)
    first = deleted(one, "1", rounds=3)
    one.new_grid()
    second = deleted(one, "2", rounds=4)
    assert [first["basis"], second["basis"]] == ["proven", "proven"]
    assert first["statement"].startswith("Certified: ")
    assert first["sensitivity_is_bound"]
    assert 0 < first["sensitivity"] < second["sensitivity"]
    ratio = np.hypot(first["sensitivity"] / 0.5, second["sensitivity"] / 0.5)
    assert second["num_releases"] == 2
    assert ratio * analytic_sigma(
        epsilon=second["spent_epsilon"], delta=1e-5, sensitivity=1
    ) == pytest.approx(1)
    assert first["spent_epsilon"] < second["spent_epsilon"] < 1
