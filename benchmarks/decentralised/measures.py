"""What the mean model of the peers that stay knows: accuracies, and how well attacks find what was forgotten."""

from collections.abc import Mapping, Sequence
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from benchmarks.data import accuracy_percent
from benchmarks.decentralised.federation import Federation
from benchmarks.decentralised.in_process import InProcessNetwork
from benchmarks.tables import Row
from unlearning.evaluation import evaluate
from unlearning.parameters import Vector
from unlearning.requests import Forget
from unlearning.tasks.task import forgotten_mask, join
from unlearning.verification.membership_inference import confidence_attack

Labels = NDArray[np.int64]

ATTACKED = 1000
"""At most so many members, and non-members, take part in an attack."""
CURVE_EXAMPLES = 2000
"""Of the test set, for accuracies round by round."""


def models(network: InProcessNetwork, names: Sequence[str]) -> Vector:
    """Return these peers' models, shape (peers, d)."""
    return np.array([network.peers[name].model.vector for name in names])


def mean_model(network: InProcessNetwork, forgets: Mapping[str, Forget]) -> Vector:
    """Return the mean (d,) of the models of those that stay."""
    stay = [name for name in network.peers if not forgets.get(name, Forget()).everything]
    mean: Vector = models(network, stay).mean(axis=0)
    return mean


def quick_accuracy(
    federation: Federation, network: InProcessNetwork, forgets: Mapping[str, Forget] | None = None
) -> float:
    """Return the mean model's accuracy in % on some test examples, the same ones each time."""
    order = np.random.default_rng(federation.settings.seed).permutation(len(federation.test))
    few = federation.test.select(order[:CURVE_EXAMPLES])
    return accuracy_percent(federation.task, mean_model(network, forgets or {}), few)


def measure_row(federation: Federation, network: InProcessNetwork, forgets: Mapping[str, Forget]) -> Row:
    """Return accuracies and attacks in % on the mean model of those that stay.

    attack: how well an attack tells forgotten examples from test examples of the same classes, 50 is guessing
    (the paper's measure as far as it says). called_members: the share of the forgotten examples that an attack which
    knows retained and test examples calls members.
    """
    model = mean_model(network, forgets)
    masks = {
        name: forgotten_mask(examples, forgets.get(name, Forget()))
        for name, examples in federation.sites.items()
    }
    gone = reduce(join, [federation.sites[name].select(mask) for name, mask in masks.items() if mask.any()])
    kept = reduce(
        join, [federation.sites[name].select(~mask) for name, mask in masks.items() if not mask.all()]
    )
    generator = np.random.default_rng(federation.settings.seed)
    some = {
        "gone": gone.select(generator.permutation(len(gone))[: 2 * ATTACKED]),
        "kept": kept.select(generator.permutation(len(kept))[:ATTACKED]),
    }
    on_test = evaluate(federation.task, model, federation.test)
    on_gone = evaluate(federation.task, model, some["gone"])
    on_kept = evaluate(federation.task, model, some["kept"])
    members, others = of_the_same_classes(
        some["gone"].targets.numpy(), federation.test.targets.numpy(), generator
    )
    attack = confidence_attack(
        on_gone.confidence[members], on_test.confidence[others], on_gone.confidence, seed=0
    )
    informed = confidence_attack(on_kept.confidence, on_test.confidence, on_gone.confidence, seed=0)
    return {
        "test_accuracy": 100 * float(on_test.score.mean()),
        "forget_accuracy": 100 * float(on_gone.score.mean()),
        "attack": 100 * attack.balanced_accuracy,
        "called_members": 100 * float(informed.called.mean()),
    }


def of_the_same_classes(
    members: Labels, others: Labels, generator: np.random.Generator
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return where to find as many examples of each class among `members` as among `others`, `ATTACKED` of
    each at most.

    Without this an attack on a forgotten class, or on a client with few classes, would tell classes apart.
    """
    left, right = [], []
    for label in np.unique(members):
        here, there = (generator.permutation(np.flatnonzero(side == label)) for side in (members, others))
        size = min(len(here), len(there))
        left.append(here[:size])
        right.append(there[:size])
    chosen = generator.permutation(sum(map(len, left)))[:ATTACKED]
    return np.concatenate(left)[chosen], np.concatenate(right)[chosen]
