"""Learning and forgetting in one process give the bits that a federation of the same seed gives."""

from dataclasses import replace

import numpy as np
import pytest

from server.state_directory.files import NOISE_SECRET
from strategies import FedAvg, PUFRegular
from strategies.messages import vector_of
from tests.cases import LONG
from unlearning.certified.secret_noise import derived_key, noise_secret
from unlearning.local import begin, learn, retained, unlearn
from unlearning.methods.registry import METHODS
from unlearning.requests import Granularity, Target
from unlearning.tasks import load_site

TINY = {
    "num_clients": 3,
    "max_examples": 90,
    "learning_rate": 0.5,
    "dtype": "float64",
    "seed": 5,
    "max_influence_factor": 0.0,  # the library averages what it trained itself, without bounds
}


def test_the_bits_are_those_of_a_federation(federation):
    """Two rounds by Flower's messages and two without; then the method's exchange."""
    one = federation(**TINY)
    fedavg = FedAvg(one.task, one.settings)
    trained = fedavg.start(one.grid, fedavg.initial_arrays(), num_rounds=2)
    target = [Target(Granularity.CLIENT, "1")]
    forgotten = PUFRegular(target, fedavg).start(one.grid, trained.arrays, num_rounds=1)

    sites = {str(number): load_site(one.settings.task(), number).train for number in range(3)}
    learnt = learn(one.task, sites, begin(one.task, one.settings.training(1)), rounds=2)
    np.testing.assert_array_equal(learnt.parameters, vector_of(trained.arrays))
    as_first = replace(learnt, rounds=0)  # Flower's start() counts its rounds anew
    unlearned = unlearn("puf-regular", one.task, as_first, sites, target)
    np.testing.assert_array_equal(unlearned.parameters, vector_of(forgotten.arrays))


FOUR = {
    **TINY,
    "num_clients": 4,
    "max_examples": 120,
    "recovery_max_rounds": 0,
    "attack_samples": 20,
    "rounds": 2,
}
PREPARE = {"hf-online": "hf-online", "sisa": "sisa shards=2 slices=1"}


IN_THE_GATE = {"not": (), "puf-regular": pytest.mark.slow, "sisa": pytest.mark.slow}
EVERY_METHOD = [
    pytest.param(name, False, marks=IN_THE_GATE.get(name, LONG))
    for name in sorted(METHODS)
    if not METHODS[name].info.rests_on_training  # the library trains without privacy
]


@pytest.mark.parametrize(("name", "leaves_out"), [pytest.param("hf-kcu", True, marks=LONG), *EVERY_METHOD])
def test_deletions_one_after_another_are_those_of_a_federation(federation, name: str, leaves_out: bool):
    """Two clients with a round between, then samples and a class with none: what is forgotten counts nowhere.

    leaves_out: whether the library is given the data without what is forgotten, as in its documentation.
    """
    method = METHODS[name]
    prepare = PREPARE.get(name, name) if method.info.preparation is not None else ""
    one = federation(prepare=prepare, **FOUR)
    one.run()
    sites = {str(number): load_site(one.settings.task(), number).train for number in range(4)}
    learnt = learn(one.task, sites, begin(one.task, one.settings.training(1), prepare), rounds=2)
    some = frozenset(map(str, sites["0"].ids[:5]))
    targets = (
        Target(Granularity.CLIENT, "1"),
        Target(Granularity.CLIENT, "3"),
        Target(Granularity.SAMPLE, "0", some),
        Target(Granularity.CLASS, class_label=3),
    )
    for number, target in enumerate(targets):
        if target.granularity not in method.info.granularities or (name == "fedau-learning" and number > 1):
            continue  # that method forgets what it was prepared for, here whole clients
        request = one.forget(target, name, rounds=2 + min(number, 1))
        secret = noise_secret(one.directory / NOISE_SECRET) if method.info.draws_noise else bytes(32)
        key = derived_key(secret, "requests", request.id)
        learnt = unlearn(name, one.task, learnt, sites, [target], noise_key=key).learnt
        if leaves_out:
            sites = retained(sites, [target])
        if number == 0:
            one.run(rounds=3)
            learnt = learn(one.task, sites, learnt)
        np.testing.assert_array_equal(learnt.parameters, one.checkpoint().parameters, err_msg=str(target))
        assert learnt.num_examples == dict(one.checkpoint().num_examples)
