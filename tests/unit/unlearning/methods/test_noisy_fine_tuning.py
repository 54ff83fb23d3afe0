"""Noisy fine-tuning: its steps, its guarantee against an attack that may choose its best test, and what it refuses."""

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy

from tests.normalised import TASK as NORMALISED
from tests.normalised import sites as normalised_sites
from unlearning.certified.privacy_accountant import Account, AccountedRelease, Basis
from unlearning.errors import InvalidRequest, MethodFailed, UnsupportedRequest
from unlearning.local import begin, exchange, learn, problem_of, retained, unlearn
from unlearning.methods.method import Problem, Reply, UnlearningState
from unlearning.methods.noisy_fine_tuning import NoisyFineTuning
from unlearning.methods.registry import validated_parameters
from unlearning.parameters import Vector
from unlearning.requests import Granularity, Target
from unlearning.secure_aggregation.addends import SecureTotal
from unlearning.testing.deletions import TASK, TRAINING, sites
from unlearning.training import initial_parameters

METHOD, LEAVER = NoisyFineTuning(), Target(Granularity.CLIENT, "a")
SITES = sites()
ANCHOR = initial_parameters(TASK, TRAINING.seed).astype(np.float64)
LEARNT = learn(TASK, SITES, begin(TASK, TRAINING), rounds=3)


def asked(seed: int = 0, **parameters: object) -> Problem:
    """The problem of forgetting client a, with a key for the noise."""
    problem = problem_of(METHOD, TASK, [LEAVER], SITES, TRAINING, **parameters)
    return replace(problem, noise_key=seed.to_bytes(32, "big"))


def released(start: Vector, problem: Problem) -> UnlearningState:
    """Carry it out from the model `start` (d,)."""
    state = METHOD.begin(problem, start)
    while not state.finished:
        state, _ = exchange(METHOD, problem, state, SITES, {})
    return state


def empirical_epsilon(with_it: np.ndarray, without: np.ndarray, delta: float) -> float:
    """Return the ε that an attacker with the best threshold has shown, at 95 % (Clopper and Pearson)."""
    best = 0.0
    for cut in np.quantile(np.concatenate([with_it, without]), np.linspace(0.02, 0.98, 49)):
        for caught, false in (
            ((with_it > cut), (without > cut)),
            ((without <= cut), (with_it <= cut)),
        ):
            hits, misses = int(caught.sum()), int(false.sum())
            low = scipy.stats.beta.ppf(0.025, hits, len(caught) - hits + 1) if hits else 0.0
            high = scipy.stats.beta.ppf(0.975, misses + 1, len(false) - misses) if misses < len(false) else 1
            if low > delta:
                best = max(best, math.log((low - delta) / high))
    return best


RUNS = 300
GUARANTEE = {"epsilon": 1.0, "delta": 0.03, "radius": 1.0, "update_share": 0.01, "steps": 2}


def attacked(share: float) -> float:
    """Return the ε that an attacker has shown who knows both models that the steps began with; with a share of σ.

    The two are as far apart as the ball lets models be, and what clients answer is known.
    """
    outwards = np.ones_like(ANCHOR) / math.sqrt(ANCHOR.size)
    answer = {"b": Reply(vector=np.zeros(ANCHOR.size, dtype=np.float32), num_examples=9)}

    def seen(side: float, seed: int) -> float:
        problem = asked(seed, **GUARANTEE)
        state = METHOD.begin(problem, (ANCHOR + side * outwards).astype(np.float32))
        state = replace(state, noise=replace(state.noise, sigma=share * state.noise.sigma))
        while not state.finished:
            state = METHOD.aggregate(problem, state, answer)
        return float((state.parameters - ANCHOR) @ outwards)

    with_it = np.array([seen(1.0, seed) for seed in range(RUNS)])
    without = np.array([seen(-1.0, RUNS + seed) for seed in range(RUNS)])
    return empirical_epsilon(with_it, without, 0.03)


@pytest.mark.slow
def test_an_attacker_shows_less_than_is_certified_and_more_where_the_noise_is_halved():
    """The second is the control: the attack would have found it."""
    assert attacked(1.0) < 1.0 < attacked(0.5)


def test_the_steps_by_hand():
    """Two steps are those of the formula, with the noise taken out."""
    problem = asked(steps=2, radius=0.5, update_share=0.1, contraction=0.8, epsilon=3.0)
    state = METHOD.begin(problem, LEARNT.parameters)
    start = LEARNT.parameters - ANCHOR
    np.testing.assert_allclose(state.parameters - ANCHOR, 0.5 * start / np.linalg.norm(start), atol=1e-6)
    state = replace(state, noise=replace(state.noise, sigma=0.0))
    answer = {
        "b": Reply(vector=np.full(ANCHOR.size, 1.0, dtype=np.float32), num_examples=9),
        "c": Reply(vector=np.full(ANCHOR.size, -0.5, dtype=np.float32), num_examples=3),
    }
    update = np.full(ANCHOR.size, 0.05 / math.sqrt(ANCHOR.size))
    expected = state.parameters - ANCHOR
    for _ in range(2):
        state = METHOD.aggregate(problem, state, answer)
        expected = 0.8 * expected + update
        np.testing.assert_allclose(state.parameters - ANCHOR, expected, atol=1e-6)
    assert state.finished


def test_the_released_model_hides_which_model_it_began_with():
    """The bound that is accounted for is that of the steps, from a model that never saw the client as from this one."""
    problem = asked(steps=4, radius=0.3)
    retrained = learn(TASK, retained(SITES, [LEAVER]), begin(TASK, TRAINING), rounds=3)
    sigma = METHOD.begin(problem, LEARNT.parameters).noise.sigma
    steps = problem.parameters.noisy_steps(ANCHOR)
    assert steps.delta(epsilon=3.0, sigma=sigma) == pytest.approx(1e-5)
    found = [released(start, problem) for start in (LEARNT.parameters, retrained.parameters)]
    assert found[0].findings["σ"] == sigma
    assert found[0].noise.bound.value / sigma == pytest.approx(steps.reach / sigma)
    assert not np.array_equal(found[0].parameters, found[1].parameters)


def test_work_done_again_has_the_same_noise_and_other_work_has_none_of_it():
    """As after a crash; of another request, model or guarantee the noise is another."""
    same = [released(LEARNT.parameters, asked(steps=2)).parameters for _ in range(2)]
    np.testing.assert_array_equal(*same)
    others = [
        released(LEARNT.parameters, asked(1, steps=2)),
        released(LEARNT.parameters, asked(steps=2, epsilon=2.0)),
    ]
    assert all(not np.isclose(one.parameters, same[0]).any() for one in others)


def test_without_steps_no_client_is_asked():
    """Output perturbation: the ball's model with noise, at once."""
    state = METHOD.begin(asked(steps=0, radius=2.0, epsilon=1.0), LEARNT.parameters)
    assert state.finished
    assert state.noise.sigma == pytest.approx(7.46 * 2.0, rel=0.01)


@pytest.mark.parametrize("clip", ["updates", "models"])
def test_without_a_radius_the_noise_is_as_long_as_the_first_model(clip: str):
    """Nothing of the model is looked at for it; where the first model is zero it has to be given."""
    problem = asked(steps=3, clip=clip)
    steps, sigma = (
        problem.parameters.noisy_steps(ANCHOR),
        METHOD.begin(problem, LEARNT.parameters).noise.sigma,
    )
    assert sigma * steps.spread * math.sqrt(ANCHOR.size) == pytest.approx(np.linalg.norm(ANCHOR))
    with pytest.raises(MethodFailed) as failed:
        problem.parameters.noisy_steps(np.zeros_like(ANCHOR))
    assert failed.value.code == "no-radius"


@pytest.mark.parametrize("clip", ["updates", "models"])
def test_the_account_says_what_was_asked_for(clip: str):
    """One release: the ε that the request names, proven; what clients see is said beside it."""
    noise = released(LEARNT.parameters, asked(steps=3, epsilon=2.0, clip=clip)).noise
    release = AccountedRelease(
        name="r", number=1, sigma=noise.sigma, sensitivity=noise.bound, not_of=noise.not_of
    )
    account = Account(releases=(release,), delta=noise.delta)
    assert account.spent_epsilon == pytest.approx(2.0)
    assert account.basis is Basis.PROVEN
    assert "the steps in between" in account.statement


def test_what_it_cannot_guarantee_is_refused():
    """Running statistics at admission as in the method; kept optimizers; a δ that allows to give an example away."""
    clients = normalised_sites(1.0, 0.0)
    normalised = learn(NORMALISED, clients, begin(NORMALISED, TRAINING), rounds=1)
    with pytest.raises(UnsupportedRequest) as caught:
        unlearn(METHOD, NORMALISED, normalised, clients, [Target(Granularity.CLIENT, "u")])
    assert caught.value.code == "has-statistics"
    kept = replace(asked(), training=replace(TRAINING, keep_optimizer=True))
    for problem, code in ((kept, "keeps-optimizer"), (asked(delta=0.05), "delta-too-large")):
        with pytest.raises(MethodFailed) as failed:
            METHOD.begin(problem, LEARNT.parameters)
        assert failed.value.code == code
    for wrong in ({"epsilon": 0}, {"delta": 1}, {"contraction": 1.5}, {"radius": math.inf}, {"clip": "both"}):
        with pytest.raises(InvalidRequest):
            validated_parameters(METHOD, wrong)


def test_of_a_sum_it_makes_the_same_step_as_of_answers():
    """What the server needs of the clients is their mean alone."""
    problem = asked(steps=1, radius=0.5)
    state = METHOD.begin(problem, LEARNT.parameters)
    update = np.linspace(-0.02, 0.03, ANCHOR.size, dtype=np.float32)
    answered = METHOD.aggregate(problem, state, {"b": Reply(vector=update, num_examples=9)})
    total = SecureTotal(clients=("b",), step=update.astype(np.float64), counts=np.zeros(0, dtype=np.int64))
    summed = METHOD.after_sum(problem, state, total)
    np.testing.assert_allclose(summed.parameters, answered.parameters, rtol=1e-5)
    assert summed.finished
