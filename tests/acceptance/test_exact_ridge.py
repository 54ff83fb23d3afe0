"""Exact ridge in a live federation, against least squares on the data that is left, and what it refuses."""

from collections.abc import Iterable

import numpy as np

from tests.federation import InProcessFederation, client
from unlearning.parameters import Vector
from unlearning.requests import NOTHING, Forget, Granularity, Target
from unlearning.tasks import forgotten_mask, load_site

L2 = 0.5
SETTINGS = {
    "prepare": f"exact-ridge l2={L2}",
    "num_clients": 3,
    "max_examples": 120,
    "rounds": 2,
    "recovery_max_rounds": 0,
    "attack_samples": 10,
}


def least_squares(one: InProcessFederation, clients: Iterable[int], gone: Forget = NOTHING) -> Vector:
    """The ridge head of these clients' digits without `gone`, as weight and bias."""
    sites = [load_site(one.settings.task(), number).train for number in clients]
    parts = [data.select(~forgotten_mask(data, gone)) for data in sites]
    inputs = np.concatenate([part.inputs.double().flatten(1).numpy() for part in parts])
    labels = np.concatenate([part.targets.numpy() for part in parts])
    rows = np.vstack([np.column_stack([inputs, np.ones(len(inputs))]), np.sqrt(L2) * np.eye(65)])
    right = np.vstack([np.eye(10)[labels], np.zeros((65, 10))])
    head = np.linalg.lstsq(rows, right, rcond=None)[0]
    return np.concatenate([head[:-1].T.ravel(), head[-1]])


def assert_near(model: Vector, exact: Vector) -> None:
    """To the rounding of the model's type, far below what any deletion here moves it by."""
    assert np.linalg.norm(model - exact) < 1e-6 * np.linalg.norm(exact)


def test_each_deletion_ends_at_the_head_of_what_is_left(federation):
    """A client, then samples of another, with a round between."""
    one = federation(**SETTINGS)
    assert_near(one.run().parameters, least_squares(one, range(3)))
    ids = frozenset(load_site(one.settings.task(), 0).train.ids[:9].tolist())
    samples = Target(Granularity.SAMPLE, "0", ids)
    left = least_squares(one, [0, 2]), least_squares(one, [0, 2], samples.forget)
    for number, target, exact in ((3, client("1"), left[0]), (4, samples, left[1])):
        done = one.forget(target, "exact-ridge", rounds=number)
        assert_near(one.checkpoint().parameters, exact)
        findings = one.report(done.id)["unlearning"]["findings"]
        assert findings["certificate"].startswith("exact: ‖θ − θ*‖ ≤ ")
        assert 0 < findings["bound on ‖θ − θ*‖"] < 1e-5
        assert findings["clients asked"] == (1 if target is samples else 0)
