"""Every method on a network with batch normalisation: buffers are statistics, and no step is taken along them."""

from functools import cache

import numpy as np
import pytest

from tests.cases import LONG, slow_but
from tests.normalised import TASK, TRAINING, examples, sites
from unlearning.errors import ConfigurationError, NumericalError, UnsupportedRequest
from unlearning.evaluation import evaluate
from unlearning.local import Learnt, begin, learn, retained, unlearn
from unlearning.methods.registry import METHODS
from unlearning.parameters import Vector, layout
from unlearning.requests import Granularity, Target

ROUNDS, RECOVERY = 5, 12
WITHOUT_STATISTICS = ("dp-covered", "exact-ridge", "hf-online", "noisy-fine-tuning")
"""Methods whose proofs are for models without running statistics; they refuse one that has some."""
METHODS_THAT_TAKE_STATISTICS = sorted(set(METHODS) - set(WITHOUT_STATISTICS))
QUICK = ("puf-special", "hf-kcu", "sisa")

MILD, FAR = "1.5 times as spread", "3 times as spread, and elsewhere"
LEAVERS = {MILD: (1.5, 0.0), FAR: (3.0, 4.0)}
TARGETS = {
    Granularity.CLIENT: Target(Granularity.CLIENT, "u"),
    Granularity.SAMPLE: Target(Granularity.SAMPLE, "u", frozenset(f"u-{row}" for row in range(24))),
    Granularity.CLASS: Target(Granularity.CLASS, class_label=2),
}


def prepared(name: str, target: Target) -> str:
    """Return the setting `prepare` under which the method can forget the target."""
    if METHODS[name].info.preparation is None:
        return ""
    if name != "fedau-learning" or target.granularity is Granularity.CLIENT:
        return name
    return (
        f"{name} class=2" if target.class_label else f"{name} samples={','.join(sorted(target.sample_ids))}"
    )


def variances(parameters: Vector) -> Vector:
    """Return the running variances of a model, or of all models of an ensemble."""
    size = (slots := layout(TASK.build_model()))[-1].stop
    models = parameters[parameters.size % size :].reshape(-1, size)
    places = [slice(slot.start, slot.stop) for slot in slots if slot.name.endswith("running_var")]
    return np.concatenate([models[:, place].ravel() for place in places])


def accuracy(learnt: Learnt) -> float:
    """Return the accuracy on examples that no client has, spread as the retained clients' are."""
    return float(evaluate(learnt.learns(TASK), learnt.parameters, examples("test", 300)).score.mean())


@cache
def trained(leaver: str, prepare: str = "", without: Target | None = None) -> Learnt:
    """Return the model of some rounds; one that never saw the target, where there is one."""
    clients = sites(*LEAVERS[leaver])
    clients = clients if without is None else retained(clients, [without])
    return learn(TASK, clients, begin(TASK, TRAINING, prepare), rounds=ROUNDS)


def check_statistics(parameters: Vector) -> None:
    """Fail where a number is not finite, or a running variance not positive."""
    assert np.isfinite(parameters).all()
    assert (variances(parameters) > 0).all()


@pytest.mark.parametrize("leaver", [pytest.param(MILD, marks=pytest.mark.slow), FAR])
@pytest.mark.parametrize("name", slow_but(QUICK, METHODS_THAT_TAKE_STATISTICS, LONG))
def test_a_leaver_with_spread_inputs_does_not_break_the_model(name: str, leaver: str):
    """With every parameter at its default: finite, positive variances, and recovered as good as a retrained one."""
    target = TARGETS[Granularity.CLIENT]
    prepare, clients = prepared(name, target), sites(*LEAVERS[leaver])
    unlearned = unlearn(name, TASK, trained(leaver, prepare), clients, [target])
    check_statistics(unlearned.parameters)
    recovered = learn(TASK, retained(clients, [target]), unlearned.learnt, rounds=RECOVERY)
    expected = accuracy(trained(leaver, prepare if name == "sisa" else "", target))
    assert accuracy(recovered) > expected - 0.05


@pytest.mark.parametrize(
    ("name", "granularity"),
    slow_but(
        QUICK,
        (
            (name, granularity)
            for name in METHODS_THAT_TAKE_STATISTICS
            for granularity in (Granularity.SAMPLE, Granularity.CLASS)
            if granularity in METHODS[name].info.granularities
        ),
        LONG,
    ),
)
def test_forgetting_a_part_leaves_sound_statistics(name: str, granularity: Granularity):
    """Where a target keeps a part, it is on both sides, and what it keeps counts."""
    target = TARGETS[granularity]
    learnt = trained(FAR, prepared(name, target))
    unlearned = unlearn(name, TASK, learnt, sites(*LEAVERS[FAR]), [target])
    check_statistics(unlearned.parameters)


@pytest.mark.parametrize("name", WITHOUT_STATISTICS)
def test_a_method_whose_proof_knows_no_statistics_refuses_them(name: str):
    """Its bounds are for models that training moves along gradients only, or that nothing else is said of."""
    target = TARGETS[Granularity.CLIENT]
    with pytest.raises((ConfigurationError, NumericalError, UnsupportedRequest)):
        unlearn(name, TASK, trained(MILD, prepared(name, target)), sites(*LEAVERS[MILD]), [target])
