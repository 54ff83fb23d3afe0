"""The method in docs/tutorial-your-own-method.md is a real one: it runs in a federation by one registry line."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.federation import client
from unlearning.errors import InvalidRequest
from unlearning.local import begin, unlearn
from unlearning.methods import registry
from unlearning.methods.method import Need
from unlearning.tasks import TaskSettings, load_site, make_task
from unlearning.testing import check_method
from unlearning.training import TrainingSettings, local_seed, train

DOCS = Path(__file__).parents[2] / "docs"
TUTORIAL = DOCS / "tutorial-your-own-method.md"


@pytest.fixture
def documented(monkeypatch: pytest.MonkeyPatch):
    """The document's method, registered as a reader would register it."""
    code, *_ = re.findall(
        r"```\{code-cell\} ipython3\n(.*?)```", TUTORIAL.read_text(encoding="utf-8"), re.DOTALL
    )
    names: dict[str, object] = {}
    exec(compile(code, str(TUTORIAL), "exec"), names)
    method = names["RetainedRound"]()  # type: ignore[operator]
    monkeypatch.setattr(registry, "METHODS", {**registry.METHODS, method.info.name: method})
    return method


def test_the_page_says_what_each_need_means():
    """One row per member."""
    rows = re.findall(
        r"(?m)^\| `([A-Z_]+)` \|", (DOCS / "reference-method-seam.md").read_text(encoding="utf-8")
    )
    assert set(rows) == {need.name for need in Need}


def test_the_documented_method_serves_a_request(federation, documented):
    """Filed, carried out and reported like any other."""
    one = federation()
    one.run()
    one.forget(client("2"), documented.info.name, rounds=3, rate=0.5)
    unlearning = next(record for record in one.ledger.rounds() if record.kind == "unlearning")
    assert unlearning.metrics["participants"] == ["0", "1", "3"]


def test_the_documented_method_runs_in_one_process(documented):
    """Without a federation; the retained clients' round at half the rate, worked out with plain training."""
    settings = TaskSettings(
        dataset="digits", model="logistic", num_clients=3, dtype="float64", max_examples=90
    )
    task, training = make_task(settings), TrainingSettings(learning_rate=0.1, seed=1)
    data = {str(number): load_site(settings, number).train for number in range(3)}
    learnt = begin(task, training)
    state = unlearn(documented, task, learnt, data, [client("1")], rate=0.5).state
    seeded = {name: replace(training, seed=local_seed(1, name, 1)) for name in ("0", "2")}
    model = learnt.parameters
    moves = {name: train(task, model, data[name], seeded[name]).parameters - model for name in seeded}
    total = len(data["0"]) + len(data["2"])
    expected = model + 0.5 * sum(len(data[name]) / total * move for name, move in moves.items())
    np.testing.assert_allclose(state.parameters, expected, rtol=1e-12)
    assert (state.finished, state.exchanges) == (True, 1)


def test_the_documented_method_keeps_to_the_contract(documented):
    """That of all methods."""
    check_method(documented)


def test_the_documented_method_refuses_a_bad_parameter(federation, documented):
    """On admission."""
    one = federation()
    one.run()
    with pytest.raises(InvalidRequest):
        one.file(client("2"), documented.info.name, rate=-1)
