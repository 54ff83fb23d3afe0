"""A convex problem on which retraining is exact: L2-regularised multinomial logistic regression.

Clients share scikit-learn's digits with label skew; the original and the retrained model are the minimisers
of their objectives, found to a gradient norm near rounding. Whatever a method does can be compared with
the true move. Everything is float64.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

import numpy as np

from benchmarks.data import sites_and_test
from unlearning.curvature.gradients import gradient
from unlearning.local import exchange, problem_of
from unlearning.local.learning import forget_sets
from unlearning.methods.method import Method, UnlearningState
from unlearning.parameters import Vector
from unlearning.requests import Forget, Target
from unlearning.tasks import TaskSettings, make_task
from unlearning.tasks.task import Examples, Task, forgotten_mask, join
from unlearning.testing.convex import hessian, minimiser
from unlearning.training import TrainingSettings, initial_parameters


@dataclass(frozen=True, kw_only=True)
class ConvexFederation:
    """The task, each client's examples, the L2 weight and the minimiser over all of them."""

    task: Task
    clients: Mapping[str, Examples]
    test: Examples
    l2: float
    original: Vector

    def split(self, target: Target) -> tuple[Examples, Examples]:
        """Return all forgotten and all retained examples."""
        forgets = forget_sets([target], self.clients)
        forgotten, retained = [], []
        for client, examples in self.clients.items():
            mask = forgotten_mask(examples, forgets.get(client, Forget()))
            forgotten.append(examples.select(mask))
            retained.append(examples.select(~mask))
        return reduce(join, forgotten), reduce(join, retained)


def convex_federation(
    *, num_clients: int = 10, alpha: float = 0.5, seed: int = 0, l2: float = 0.01, max_examples: int = 0
) -> ConvexFederation:
    """Return digits among `num_clients`, and the minimiser of the L2-regularised mean loss over everybody."""
    settings = TaskSettings(
        dataset="digits",
        model="logistic",
        partition="dirichlet",
        alpha=alpha,
        num_clients=num_clients,
        seed=seed,
        dtype="float64",
        max_examples=max_examples,
    )
    task = make_task(settings)
    clients, test = sites_and_test(settings)
    start = initial_parameters(task, seed)
    original = minimiser(task, reduce(join, clients.values()), l2, start)
    return ConvexFederation(task=task, clients=clients, test=test, l2=l2, original=original)


def exact_newton(federation: ConvexFederation, target: Target) -> Vector:
    """Compute θ − H_R⁻¹ ∇F_R(θ) with the dense Hessian of the retained objective."""
    _, retained = federation.split(target)
    theta = federation.original
    slope = gradient(federation.task, theta, retained, l2=federation.l2)
    return theta - np.linalg.solve(hessian(federation.task, theta, retained, federation.l2), slope)


def retrain(federation: ConvexFederation, target: Target) -> Vector:
    """Return the minimiser of the retained objective."""
    _, retained = federation.split(target)
    return minimiser(federation.task, retained, federation.l2, federation.original)


def run_method(
    federation: ConvexFederation,
    method: Method,
    target: Target,
    *,
    lose: Mapping[int, str] | None = None,
    **parameters: object,
) -> UnlearningState:
    """Run a method to its end, client halves included; `lose` takes a client away at an exchange."""
    training = TrainingSettings(weight_decay=federation.l2, batch_size=100_000, learning_rate=0.1)
    problem = problem_of(method, federation.task, [target], federation.clients, training, **parameters)
    state, data = method.begin(problem, federation.original), dict(federation.clients)
    while not state.finished:
        data.pop((lose or {}).get(state.exchanges, ""), None)
        state, _ = exchange(method, problem, state, data)
    return state
