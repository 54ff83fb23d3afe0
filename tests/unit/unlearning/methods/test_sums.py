"""Every method for which sums suffice makes the same model of sums as of answers, on the convex federation."""

from dataclasses import replace

import numpy as np
import pytest

from tests.deletions import CLIENT, THETA, samples
from unlearning.errors import MethodFailed
from unlearning.local import answer, carry_out, problem_of
from unlearning.methods.method import Instructions, Method, Problem, UnlearningState
from unlearning.methods.newton_cg import _FLATTEST, _unit
from unlearning.methods.newton_cg_solve import GRADIENT, PRECONDITION, PRODUCT
from unlearning.methods.registry import METHODS
from unlearning.requests import Granularity, Target
from unlearning.secure_aggregation.addends import MOST_RATE, TAIL, SecureTotal, addend, read_total
from unlearning.secure_aggregation.terms import RoundTerms
from unlearning.testing.convex import DATA, TASK, TRAINING

# The noise of noisy fine-tuning follows from its model's bits, and exact ridge is prepared for: in their own tests.
OTHERS = {"noisy-fine-tuning", "exact-ridge"}
SUMS = sorted({name for name, one in METHODS.items() if one.info.sums_suffice} - OTHERS)
CLASS = Target(Granularity.CLASS, class_label=1)


def total_of(
    method: Method, problem: Problem, asked: Instructions, *, clip_norm: float = 10.0, left: str = ""
) -> SecureTotal:
    """The sum of the clients' answers in fixed point, without a mask; `left` is a client that is gone."""
    replies = answer(method, problem, asked, {name: one for name, one in DATA.items() if name != left})
    terms = RoundTerms(
        federation="test",
        run=1,
        sequence=1,
        purpose="train.unlearn",
        length=THETA.size + TAIL,
        num_clients=len(asked),
        clip_norm=clip_norm,
        max_weight=1e6 * MOST_RATE,
    )
    parts = [
        addend(TASK, method.sum_terms(asked[name], one), one.metrics.get("loss", 0.0), terms)
        for name, one in replies.items()
    ]
    return read_total(TASK, np.sum(parts, axis=0, dtype=np.uint64), terms, sorted(replies))


def by_sums(
    method: Method, problem: Problem, *, clip_norm: float = 10.0, lose: tuple[int, str] = (-1, "")
) -> UnlearningState:
    """The whole deletion from THETA, of sums alone; from the exchange of a number on a client is gone."""
    state = method.begin(problem, THETA)
    while not state.finished:
        now = replace(problem, round=1 + state.exchanges)
        left = lose[1] if 0 <= lose[0] <= state.exchanges else ""
        asked = method.configure(now, state)
        state = method.after_sum(now, state, total_of(method, now, asked, clip_norm=clip_norm, left=left))
    return state


CASES = [
    (name, target)
    for name in SUMS
    for target in (CLIENT, samples(3), CLASS)
    if target.granularity in METHODS[name].info.granularities
]


@pytest.mark.parametrize(("name", "target"), CASES)
def test_sums_give_the_model_of_answers(name: str, target: Target) -> None:
    """Up to fixed point, whose error is 2⁻²⁶ of the sum's weights at most."""
    method = METHODS[name]
    given = {"rounds": 2} if name == "retrain" else {}
    problem = problem_of(method, TASK, [target], DATA, TRAINING, **given)
    answered, summed = carry_out(method, problem, THETA, DATA), by_sums(method, problem)
    np.testing.assert_allclose(summed.parameters, answered.parameters, rtol=0, atol=1e-6)
    assert summed.exchanges == answered.exchanges


def test_newton_steps_of_sums_that_only_remove_are_those_of_answers() -> None:
    """The forgotten gradient is a sum over targets; a second step begins with it again."""
    problem = problem_of(
        METHODS["newton-cg"], TASK, [CLASS], DATA, TRAINING, remove_only=True, newton_steps=2
    )
    answered = carry_out(METHODS["newton-cg"], problem, THETA, DATA)
    summed = by_sums(METHODS["newton-cg"], problem)
    np.testing.assert_allclose(summed.parameters, answered.parameters, rtol=0, atol=1e-6)


def test_a_solve_of_sums_ends_where_a_client_leaves() -> None:
    """The others' gradient at the same model would show that of the one that left."""
    problem = problem_of(METHODS["newton-cg"], TASK, [CLIENT], DATA, TRAINING)
    with pytest.raises(MethodFailed, match=r"Client\(s\) s left", check=lambda exc: not exc.retryable):
        by_sums(METHODS["newton-cg"], problem, lose=(2, "s"))
    assert by_sums(METHODS["newton-cg"], problem, lose=(0, "s")).finished


def test_the_products_of_all_newton_steps_are_counted() -> None:
    """The formula of the cost counts them; each step begins a solve of its own."""
    problem = problem_of(METHODS["newton-cg"], TASK, [CLIENT], DATA, TRAINING, newton_steps=2)
    found = carry_out(METHODS["newton-cg"], problem, THETA, DATA)
    each = [found.findings[f"solve {step}"]["products"] for step in (1, 2)]
    assert min(each) > 0
    assert found.work.products == sum(each)
    assert found.findings["exchanges"] == found.exchanges


def test_a_solve_takes_no_shortened_product_for_one() -> None:
    """A clipped update is a smaller step; a clipped product is a wrong one."""
    problem = problem_of(METHODS["newton-cg"], TASK, [CLIENT], DATA, TRAINING)
    with pytest.raises(MethodFailed, match="secure-clip-norm"):
        by_sums(METHODS["newton-cg"], problem, clip_norm=1e-6)


def test_what_a_client_divides_by_is_known_to_all() -> None:
    """‖p‖ for a product, ‖r‖/(μ+λ) for a preconditioned residual, and 1 where there is no direction or an empty one."""
    direction = np.array([3.0, 4.0])
    assert _unit(PRODUCT, direction, 0.5) == 5.0
    assert _unit(PRECONDITION, direction, 0.5) == 10.0
    assert _unit(PRECONDITION, direction, 0.0) == 5.0 / _FLATTEST
    assert _unit(PRODUCT, np.zeros(2), 0.5) == _unit(GRADIENT, None, 0.5) == 1.0


@pytest.mark.parametrize("name", SUMS)
def test_all_clients_of_an_exchange_are_told_the_same_values(name: str) -> None:
    """Rates among them: a server that gave one client another rate would see little else in the sum."""
    problem = problem_of(METHODS[name], TASK, [CLIENT], DATA, TRAINING)
    state = METHODS[name].begin(problem, THETA)
    told = [one.values for one in METHODS[name].configure(problem, state).values()] or [{}]
    assert all(values == told[0] for values in told)
