"""The bound on rounding against the same training in 80-bit arithmetic."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.unlearning.certified.problems import LOGISTIC, blobs
from unlearning.certified.linear_head import feature_norm
from unlearning.certified.round_lengths import declared_logistic_constants
from unlearning.certified.rounding import Arithmetic, largest_norm, local_rounding, mean_rounding
from unlearning.certified.tangents import train_with_tangents
from unlearning.errors import NumericalError
from unlearning.parameters import weighted_mean
from unlearning.tasks.task import Examples
from unlearning.training import TrainingSettings

LONG = np.longdouble
needs_80_bits = pytest.mark.skipif(
    np.finfo(LONG).eps > 1e-18, reason="this machine has no type that is more exact than float64"
)


def exactly(model, tangent, examples: Examples, training: TrainingSettings):
    """SGD and its tangent as `train_with_tangents` makes them, in 80-bit arithmetic."""
    x = np.concatenate([examples.inputs.numpy(), np.ones((len(examples), 1))], axis=1).astype(LONG)
    y = np.eye(3, dtype=LONG)[examples.targets.numpy()]
    w, a = (
        np.concatenate([v[:12].reshape(3, 4), v[12:, None]], axis=1).astype(LONG) for v in (model, tangent)
    )
    eta, mu = LONG(training.learning_rate), LONG(training.weight_decay)
    generator = torch.Generator().manual_seed(training.seed)
    for _ in range(training.epochs):
        for batch in torch.split(torch.randperm(len(examples), generator=generator), training.batch_size):
            rows, targets = x[batch.numpy()], y[batch.numpy()]
            logits = rows @ w.T
            p = np.exp(logits - logits.max(axis=1, keepdims=True))
            p /= p.sum(axis=1, keepdims=True)
            v = rows @ a.T
            q = p * v - p * (p * v).sum(axis=1, keepdims=True)
            a = a - eta * (q.T @ rows / len(rows) + mu * a)
            w = w - eta * ((p - targets).T @ rows / len(rows) + mu * w)
    return [np.concatenate([v[:, :4].reshape(-1), v[:, 4]]) for v in (w, a)]


@needs_80_bits
@given(
    seed=st.integers(0, 10**6),
    scale=st.sampled_from([0.01, 1.0, 10.0]),
    size=st.sampled_from([1e-3, 1.0, 50.0]),
    training=st.builds(
        TrainingSettings,
        epochs=st.integers(1, 4),
        batch_size=st.sampled_from([1, 7, 24]),
        learning_rate=st.sampled_from([1e-6, 1e-2, 0.3]),
        weight_decay=st.sampled_from([1e-3, 0.5]),
    ),
)
@settings(max_examples=25, deadline=None)
def test_rounding_in_local_training_never_exceeds_its_bound(seed, scale, size, training) -> None:
    """Neither the model's nor that of what it carries, for weights and features small and large."""
    generator, drawn = np.random.default_rng(seed), blobs(24, seed=seed)
    examples = Examples(scale * drawn.inputs, drawn.targets, drawn.ids)
    model, tangent = size * generator.standard_normal(15), generator.standard_normal(15)
    trained, carried = train_with_tangents(LOGISTIC, model, examples, training, tangent[None])
    exact, exactly_carried = exactly(model, tangent, examples, training)
    radius, count = feature_norm(LOGISTIC, examples), training.epochs * -(-24 // training.batch_size)
    rate, l2 = training.learning_rate, training.weight_decay
    norm = largest_norm(
        float(np.linalg.norm(model)), learning_rate=rate, l2=l2, feature_norm=radius, count=count
    )
    bound = local_rounding(
        declared_logistic_constants(feature_norm=radius, l2=l2),
        Arithmetic(num_inputs=5, num_classes=3, feature_norm=radius, batch_size=training.batch_size),
        weight_norm=norm,
        learning_rate=rate,
        count=count,
    )
    assert np.sqrt(((trained.parameters - exact) ** 2).sum()) <= bound.model
    error = np.sqrt(((carried[0] - exactly_carried) ** 2).sum())
    assert error <= bound.tangent * np.linalg.norm(tangent)


@needs_80_bits
def test_rounding_in_a_mean_never_exceeds_its_bound() -> None:
    """Of fifty models with unequal numbers of examples."""
    generator = np.random.default_rng(0)
    models = {str(at): (int(generator.integers(1, 99)), generator.standard_normal(500)) for at in range(50)}
    total = sum(count for count, _ in models.values())
    exact = sum(LONG(count) / LONG(total) * model.astype(LONG) for count, model in models.values())
    norm = max(float(np.linalg.norm(model)) for _, model in models.values())
    error = np.sqrt(((weighted_mean(models) - exact) ** 2).sum())
    assert 0 < error <= mean_rounding(weight_norm=norm, num_clients=50)


def test_the_bounds_are_those_of_the_legend() -> None:
    """By hand, with numbers that make each term count: weight decay that is too large for the step, and three steps."""
    rate, l2, radius, classes, inputs, batch, start, count = 0.5, 6.0, 2.0, 3, 5, 7, 4.0, 3
    longest = largest_norm(start, learning_rate=rate, l2=l2, feature_norm=radius, count=count)
    assert longest == pytest.approx(2 * 2.0**3 * (start + 3 * rate * np.sqrt(2) * radius))  # |1 − ημ| = 2
    constants = declared_logistic_constants(feature_norm=radius, l2=l2)
    of = Arithmetic(num_inputs=inputs, num_classes=classes, feature_norm=radius, batch_size=batch)
    found = local_rounding(constants, of, weight_norm=longest, learning_rate=rate, count=count)
    u, logits = 2.0**-53, radius * longest
    error = 2 * u * ((inputs + 2) * logits + 10 * logits + 10 * np.log(classes) + 2 * classes + 40)
    gradient = radius * (error + np.sqrt(2) * (batch + 6) * u + 6 * u)
    product = radius**2 * (4 * error + 2 * (classes + inputs + batch + 15) * u)
    step = 2 * (rate * gradient + 4 * u * (longest + rate * (np.sqrt(2) * radius + l2 * longest)))
    carried = 2 * (rate * product + 4 * u * (1 + rate * constants.smoothness))
    rho = constants.step_contraction(rate)
    assert rho > 1
    assert found.model == pytest.approx(step * (1 + rho + rho**2), rel=1e-12, abs=0)
    carried += rate * constants.hessian_lipschitz * found.model
    assert found.tangent == pytest.approx(
        count * carried * rho**count * (1 + carried) ** count, rel=1e-12, abs=0
    )
    assert mean_rounding(weight_norm=3.0, num_clients=10) == pytest.approx(2 * 18 * u * 3.0, rel=1e-12, abs=0)


def test_numbers_that_float64_cannot_hold_apart_have_no_bound() -> None:
    """The message says what to do."""
    of = Arithmetic(num_inputs=5, num_classes=3, feature_norm=1.0, batch_size=5)
    constants = declared_logistic_constants(feature_norm=1.0, l2=0.1)
    with pytest.raises(NumericalError):
        local_rounding(constants, of, weight_norm=1e15, learning_rate=0.1, count=3)
    with pytest.raises(NumericalError):
        local_rounding(constants, replace(of, batch_size=2**50), weight_norm=1.0, learning_rate=0.1, count=3)
    with pytest.raises(NumericalError):
        local_rounding(
            constants, replace(of, feature_norm=np.inf), weight_norm=1.0, learning_rate=0.1, count=3
        )
