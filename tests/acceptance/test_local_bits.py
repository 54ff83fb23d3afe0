"""Learning and forgetting in one process give the bits that a federation of the same seed gives."""

from dataclasses import replace

import numpy as np

from strategies import FedAvg, PUFRegular
from strategies.messages import vector_of
from unlearning.local import begin, learn, unlearn
from unlearning.requests import Granularity, Target
from unlearning.tasks import load_site

TINY = {"num_clients": 3, "max_examples": 90, "learning_rate": 0.5, "dtype": "float64", "seed": 5}


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
