"""Second-order methods against exact retraining on a convex problem."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse.linalg

from benchmarks.second_order.convex import (
    ConvexFederation,
    convex_federation,
    exact_newton,
    retrain,
    run_method,
)
from strategies.by_name import class_name, strategies_by_name
from strategies.exchange import exchange
from strategies.fedavg import FedAvg
from strategies.messages import model_record
from strategies.round_plan import RoundPlan
from tests.federation import InProcessFederation
from unlearning.curvature.gradients import gradient
from unlearning.evaluation import evaluate
from unlearning.methods.method import UnlearningState
from unlearning.methods.registry import METHODS
from unlearning.requests import Exclusions, Granularity, Target
from unlearning.testing.convex import hessian


@cache
def federation() -> ConvexFederation:
    return convex_federation(num_clients=5, max_examples=300)


def target(kind: str) -> Target:
    if kind == "client":
        return Target(Granularity.CLIENT, "0")
    if kind == "class":
        return Target(Granularity.CLASS, class_label=3)
    ids = sorted(federation().clients["0"].ids.tolist())
    return Target(Granularity.SAMPLE, "0", frozenset(ids[: len(ids) // 2]))


@cache
def truth(kind: str) -> np.ndarray:
    return retrain(federation(), target(kind))


def gap(theta: np.ndarray, kind: str) -> float:
    return float(np.linalg.norm(theta - truth(kind)))


def cosine(theta: np.ndarray, kind: str) -> float:
    move, true = theta - federation().original, truth(kind) - federation().original
    return float(move @ true / np.linalg.norm(move) / np.linalg.norm(true))


def over_messages(method: str, forgotten: Exclusions, tmp_path: Path, **parameters: Any) -> UnlearningState:
    """Forget client 0 from the same start by real clients and messages, two of five clients a round."""
    settings = {
        "num-clients": 5,
        "alpha": 0.5,
        "max-examples": 300,
        "dtype": "float64",
        "weight-decay": 0.01,
        "fraction": 0.4,
    }
    one = InProcessFederation(tmp_path, settings)
    counts = {client: len(examples) for client, examples in federation().clients.items()}
    fedavg = FedAvg(one.task, one.settings, plan=RoundPlan(exclusions=forgotten, counts=counts))
    chosen = strategies_by_name()[class_name(METHODS[method])]
    strategy = chosen([target("client")], fedavg, **parameters)
    model = model_record(federation().original)
    for number in range(1, 200):
        replies = exchange(one.grid, strategy.unlearn_messages(number, model, one.grid), timeout_s=60)
        strategy.aggregate_train(number, replies.messages.values())
        assert strategy.state is not None
        if strategy.state.finished:
            return strategy.state
    raise AssertionError("the method did not end")


@pytest.mark.slow
@pytest.mark.long
def test_newton_cg_asks_everyone_where_a_share_of_the_clients_trains_in_a_round(tmp_path):
    """With two of five clients a round it makes the step of all: the retrained model is that of everybody's data."""
    state = over_messages("newton-cg", Exclusions(), tmp_path, curvature="hessian", precondition=False)
    assert gap(state.parameters, "client") < 0.15 * gap(federation().original, "client")


@pytest.mark.slow
def test_the_corrected_step_of_hf_kcu_has_no_forgotten_client_in_its_denominator(tmp_path):
    """n_u/(n − n_u) of those that are left: with client 1 forgotten earlier n is that of 0, 2, 3 and 4."""
    counts = {client: len(examples) for client, examples in federation().clients.items()}
    earlier = Exclusions().including([Target(Granularity.CLIENT, "1")])
    moves = [
        over_messages("hf-kcu-influence", forgotten, tmp_path / name).parameters - federation().original
        for name, forgotten in (("all", Exclusions()), ("earlier", earlier))
    ]
    staying = sum(counts.values()) - counts["0"]
    np.testing.assert_allclose(moves[1], moves[0] * staying / (staying - counts["1"]), rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["client", "class"])
def test_newton_cg_comes_within_two_percent_of_exact_newton(kind):
    """The distance to the retrained model, over the network's products, against the dense step."""
    state = run_method(federation(), METHODS["newton-cg"], target(kind), curvature="hessian")
    exact = gap(exact_newton(federation(), target(kind)), kind)
    start = gap(federation().original, kind)
    assert abs(gap(state.parameters, kind) - exact) < 0.02 * start
    assert gap(state.parameters, kind) < 1.02 * exact + 1e-3 * start
    # a whole class is a large move; one quadratic model takes it two thirds of the way
    assert gap(state.parameters, kind) < (0.4 if kind == "class" else 0.15) * start


def test_newton_cg_equals_the_dense_step():
    """At a tight tolerance the two agree digit for digit."""
    state = run_method(
        federation(),
        METHODS["newton-cg"],
        target("client"),
        curvature="hessian",
        iterations=200,
        tolerance=1e-12,
    )
    np.testing.assert_allclose(state.parameters, exact_newton(federation(), target("client")), atol=1e-8)


@cache
def solved(kind: str, *, precondition: bool = False, **changes: Any) -> UnlearningState:
    """Newton-CG to a tight tolerance, with changed parameters.

    To precondition takes fewer exchanges and, of so small a problem, many times the arithmetic.
    """
    tight: dict[str, Any] = {"tolerance": 1e-8, "iterations": 500, "precondition": precondition}
    return run_method(federation(), METHODS["newton-cg"], target(kind), **tight, **changes)


@pytest.mark.slow
@pytest.mark.long
def test_the_preconditioner_saves_iterations_and_not_accuracy():
    """Half the products at most, the same solution."""
    preconditioned, plain = solved("client", precondition=True), solved("client")
    products = [state.findings["solve 1"]["products"] for state in (preconditioned, plain)]
    assert products[0] < products[1] / 2
    np.testing.assert_allclose(preconditioned.parameters, plain.parameters, atol=1e-5)


@pytest.mark.slow
@pytest.mark.long
def test_two_newton_steps_come_closer_than_one():
    """Quadratic convergence to the retrained model."""
    two = solved("client", newton_steps=2)
    assert gap(two.parameters, "client") < 0.1 * gap(solved("client").parameters, "client")


@pytest.mark.slow
@pytest.mark.long
def test_remove_only_agrees_with_the_default_at_a_minimum():
    """At the minimiser ∇F_R = −(n_u/n_R)(∇ℓ(D_u) + μθ), so both forms are one."""
    only = solved("sample", remove_only=True)
    np.testing.assert_allclose(only.parameters, solved("sample").parameters, atol=1e-6)


@pytest.mark.slow
def test_a_client_lost_during_the_solve_is_left_out_and_said():
    """The result is the Newton step of those that remained."""
    lost = run_method(
        federation(),
        METHODS["newton-cg"],
        target("client"),
        lose={6: "3"},
        tolerance=1e-12,
        iterations=300,
        curvature="hessian",
    )
    remaining = {key: value for key, value in federation().clients.items() if key != "3"}
    without = replace(federation(), clients=remaining)
    np.testing.assert_allclose(lost.parameters, exact_newton(without, target("client")), atol=1e-8)
    assert "3" in lost.findings["clients lost during the solve"]


def test_published_hf_kcu_equals_its_formula():
    """θ − w α s v with v from k plain CG steps, computed here with dense matrices."""
    examples = federation().clients["0"]
    theta, k, damping, beta = federation().original, 10, 0.01, 0.01
    forgetting = gradient(federation().task, theta, examples)
    matrix = hessian(federation().task, theta, examples, damping)
    v, _ = scipy.sparse.linalg.cg(matrix, forgetting, rtol=0, maxiter=k)
    scale = min(1.0, beta * np.linalg.norm(theta) / np.linalg.norm(v))
    weight = len(examples) / sum(len(own) for own in federation().clients.values())
    state = run_method(federation(), METHODS["hf-kcu"], target("client"))
    np.testing.assert_allclose(state.parameters, theta - weight * scale * v, atol=1e-12)


def test_published_hf_kcu_moves_against_the_removal_and_within_its_cap():
    """The sign of an added weight: the loss on the forgotten data falls."""
    state = run_method(federation(), METHODS["hf-kcu"], target("client"))
    forgotten, _ = federation().split(target("client"))
    assert cosine(state.parameters, "client") < -0.3
    loss = [
        evaluate(federation().task, theta, forgotten).loss.mean()
        for theta in (federation().original, state.parameters)
    ]
    assert loss[1] < loss[0]
    change = state.findings["relative change of the model ‖Δθ‖/‖θ‖"]
    assert change <= state.findings["cap on the relative change Σ w α β"] * (1 + 1e-9)


def test_the_corrected_form_equals_its_formula():
    """θ + n_u/(n−n_u) (H+(μ+λ)I)⁻¹(g+μθ) with a dense matrix of what the client keeps, and Theorem 3 with its ends."""
    task, theta, l2, damping, k = federation().task, federation().original, federation().l2, 0.3, 25
    own = federation().clients["0"]
    leaves = np.isin(own.ids, list(target("sample").sample_ids))
    forgotten, kept = (own.select(np.flatnonzero(chosen)) for chosen in (leaves, ~leaves))
    matrix = hessian(task, theta, kept, l2 + damping)
    move = np.linalg.solve(matrix, gradient(task, theta, forgotten, l2=l2))
    retained = sum(len(one) for one in federation().clients.values()) - len(forgotten)
    given = {"iterations": k, "damping": damping, "lanczos_steps": 100, "curvature": "hessian"}
    state = run_method(federation(), METHODS["hf-kcu-influence"], target("sample"), **given)
    np.testing.assert_allclose(state.parameters, theta + len(forgotten) / retained * move, atol=1e-8)
    ends = np.linalg.eigvalsh(matrix)
    root, said = np.sqrt(ends[-1] / ends[0]), state.findings["client 0"]
    bound = 2 * ((root - 1) / (root + 1)) ** (len(said["residuals"]) - 1)
    assert said["bound of Theorem 3 on the relative error"] == pytest.approx(bound, rel=1e-2, abs=0)


@pytest.mark.slow
def test_the_corrected_form_moves_towards_the_retrained_model():
    """Right sign; only a rough approximation."""
    state = run_method(federation(), METHODS["hf-kcu-influence"], target("sample"))
    assert cosine(state.parameters, "sample") > 0.3
    assert gap(state.parameters, "sample") < gap(federation().original, "sample")


def test_the_damping_is_reported_relative_to_the_largest_eigenvalue():
    """Of the requester's own matrix, from within, and near enough to judge λ by."""
    task, examples = federation().task, federation().clients["0"]
    largest = float(np.linalg.eigvalsh(hessian(task, federation().original, examples, 0.0))[-1])
    state = run_method(federation(), METHODS["hf-kcu"], target("client"), damping=0.1, lanczos_steps=20)
    found = state.findings["client 0"]
    assert found["largest eigenvalue (estimate from below)"] == pytest.approx(largest, rel=1e-3)
    assert found["damping relative to it"] == pytest.approx(0.1 / largest, rel=1e-3)


@pytest.mark.slow
def test_newton_cg_reports_its_damping_relative_to_the_curvature_that_it_met():
    """At most the largest eigenvalue of the retained objective, and of its size."""
    _, retained = federation().split(target("client"))
    theta, l2 = federation().original, federation().l2
    largest = float(np.linalg.eigvalsh(hessian(federation().task, theta, retained, l2))[-1])
    state = run_method(federation(), METHODS["newton-cg"], target("client"), curvature="hessian", damping=0.1)
    found = state.findings["solve 1"]
    assert 0.2 * largest < found["largest eigenvalue (estimate from below)"] <= largest * (1 + 1e-9)
    ratio = 0.1 / found["largest eigenvalue (estimate from below)"]
    assert found["damping relative to it"] == pytest.approx(ratio)
