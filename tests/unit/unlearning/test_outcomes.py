"""What a deletion achieved, in words; what is weaker; and what to do where one failed."""

import ast
from pathlib import Path

import pytest

from server.federation import gate
from tests.ledgers import CLIENT_3, NOW, advance, live_at, submit
from unlearning.advice import ADVICE, CODE, advice_for
from unlearning.outcomes import Guarantee, describe, describe_request, guarantee_of, is_shown, weakest
from unlearning.requests import Granularity, Outcome, Status
from unlearning.verification.verdict import Finding, outcome_of

REPOSITORY = Path(__file__).parents[3]


@pytest.mark.parametrize("outcome", Outcome)
def test_no_outcome_says_that_data_are_forgotten_and_the_weak_ones_say_what_not_to_tell(
    outcome: Outcome,
) -> None:
    """The three of which nothing was shown forbid the claim; no other does."""
    said = describe(outcome, 5)
    assert "forgotten" not in said
    assert "these 5 records" in said
    assert ("Do not tell the person" in said) == (not is_shown(outcome))
    assert "this record" in describe(outcome, 1)


def test_every_finding_has_an_outcome_and_stronger_facts_come_before_it() -> None:
    """A proven guarantee, then a method that trains without the data, then the verdict."""
    plain = {finding: outcome_of(finding, is_exact=False, is_guaranteed=False) for finding in Finding}
    assert len({*plain.values()}) == len(Finding)
    for finding in Finding:
        assert outcome_of(finding, is_exact=True, is_guaranteed=False) is Outcome.RETRAINED
        assert outcome_of(finding, is_exact=False, is_guaranteed=True) is Outcome.GUARANTEED


def test_several_deletions_have_the_weakest_outcome() -> None:
    """Over-forgetting is weaker than nothing shown; an unknown one makes the whole unknown."""
    assert weakest([Outcome.REDUCED, Outcome.NOT_SHOWN]) is Outcome.NOT_SHOWN
    assert weakest([Outcome.TOO_FEW, Outcome.OVER_FORGETTING]) is Outcome.OVER_FORGETTING
    assert weakest([Outcome.GUARANTEED, None]) is None
    assert weakest([]) is None


@pytest.mark.parametrize(
    ("account", "guarantee"),
    [
        (None, None),
        ({"basis": "proven", "spent_epsilon": 2.0, "delta": 1e-5}, Guarantee(2.0, 1e-5)),
        ({"basis": "proven", "spent_epsilon": 10.1, "delta": 1e-5}, None),
        ({"basis": "proven", "spent_epsilon": None, "delta": 1e-5}, None),
        ({"basis": "empirical", "spent_epsilon": 2.0, "delta": 1e-5}, None),
    ],
)
def test_a_guarantee_is_a_proven_account_that_protects(
    account: dict[str, object], guarantee: Guarantee | None
) -> None:
    """Up to an ε of 10; a measured sensitivity proves nothing."""
    assert guarantee_of(account) == guarantee


def test_a_ledger_counts_outcomes_by_method_and_granularity(ledger) -> None:
    """Of deletions that were carried out; and a completed request says its outcome in words."""
    token = ledger.acquire_fence("loop", now=NOW)
    one = submit(ledger, method="not")
    advance(ledger, one.id, Status.VERIFYING, token)
    live_at(ledger, token).move(one.id, Status.COMPLETED, outcome=Outcome.REDUCED)
    other = submit(ledger, key="2", method="not")
    live_at(ledger, token).move(other.id, Status.COMPLETED, outcome=Outcome.REDUCED)  # answered by the first
    assert ledger.requests.outcomes(Granularity.CLIENT) == {("not", Outcome.REDUCED): 1}
    assert ledger.requests.outcomes(Granularity.SAMPLE) == {}
    assert ledger.requests.outcomes(Granularity.CLASS) == {}
    tried = submit(ledger, key="3", method="retrain")
    advance(ledger, tried.id, Status.UNLEARNING, token)
    live_at(ledger, token).move(tried.id, Status.SCHEDULED)
    answered = {"answered_by": [one.id]}
    live_at(ledger, token).move(tried.id, Status.COMPLETED, outcome=Outcome.REDUCED, result=answered)
    assert ledger.requests.outcomes(Granularity.CLIENT) == {("not", Outcome.REDUCED): 1}
    assert [method for method, _ in ledger.requests.results(9)] == ["not"]
    assert "recognises the records less" in describe_request(ledger.requests.get(one.id))
    live_at(ledger, token).move(one.id, Status.REOPENED)
    assert ledger.requests.outcomes(Granularity.CLIENT) == {("not", Outcome.NOT_SHOWN): 1}


@pytest.mark.parametrize("code", [*ADVICE, "", "another"])
def test_advice_fits_the_cause_and_names_the_request(sqlite_ledger, code: str) -> None:
    """Ids that are unknown or name others now are no method's fault: none is advised; nothing where none has failed."""
    token = sqlite_ledger.acquire_fence("loop", now=NOW)
    request = submit(sqlite_ledger, CLIENT_3)
    assert advice_for(request) == ""
    failed = live_at(sqlite_ledger, token).move(request.id, Status.FAILED, result={CODE: code})
    said = advice_for(failed)
    assert ("flower-unlearn retry r-000001" in said) == (code not in ("unknown-samples", "moved-samples"))
    assert ("ompare your list" in said) == (code in ("unknown-samples", "nothing-to-forget"))
    assert "{" not in said


def test_every_failure_of_a_method_has_a_code_with_advice() -> None:
    """General advice is for errors of other kinds; a code that is passed on was given where it was raised first."""
    classes = ("MethodFailed", "ModelRefused", "UnsupportedRequest")
    files = [
        path for part in ("unlearning", "strategies", "server") for path in (REPOSITORY / part).rglob("*.py")
    ]
    calls = [
        (path.name, node)
        for path in files
        if any(f"{name}(" in (text := path.read_text()) for name in classes)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in classes
    ]
    given = [(name, node.lineno, {k.arg: k.value for k in node.keywords}.get("code")) for name, node in calls]
    assert [(name, line) for name, line, code in given if code is None] == []
    codes = {code.value for _, _, code in given if isinstance(code, ast.Constant)}
    assert len(codes) > 20
    assert codes - set(ADVICE) == set()


def test_the_gates_refusal_has_advice_of_its_own() -> None:
    """By its code, and with the loss that would have to be accepted."""
    verdict = gate.Judgement(False, "quality was checked: 20.3 points lost", 20.3)
    refused = gate.refusal("r-000001", verdict, "no client is left")
    assert refused.code == "score-lost"
    assert "--accept-score-loss 21" in str(refused)
    assert "Recovery ended: no client is left. " in str(refused)
    assert "--accept-score-loss" in ADVICE[refused.code]
